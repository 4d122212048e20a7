"""A network of hosts with slow links, made of Linux network namespaces on this machine.

Every host is a namespace with one link, ``eth0``, to a switch, which is a bridge in another namespace. ``tc tbf``
limits each link in both directions. Nothing outside the namespaces is changed, and nothing outside can be reached from
them. Needs root, and ``ip`` and ``tc`` of iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import muster
from horovod.runner import gloo_run
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

from benchmarks.bare_horovod import THREADS
from benchmarks.measuring import Unavailable

PREFIX = "muster-bench"
SUBNET = "10.97.0"
SWITCH_ADDRESS = f"{SUBNET}.254"
LINK = "eth0"  # name of a host's link, and of the bridge in the switch's namespace
QUEUE_SECONDS = 0.05  # how long a packet may wait for its turn before the link drops it
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Process:
    """A process on a host, and the file that its output goes to."""

    popen: subprocess.Popen[bytes]
    log: Path


class Network:
    """Hosts that can reach only each other, through one switch.

    Attributes:
        addresses: addresses of the hosts.
    """

    def __init__(self, hosts: int) -> None:
        self.addresses = [f"{SUBNET}.{number + 1}" for number in range(hosts)]
        self._name = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"
        self._switch = f"{self._name}-switch"
        self._processes: list[Process] = []
        self._rendezvous: RendezvousServer | None = None

    def open(self) -> None:
        """Make the namespaces and links; raise Unavailable if they cannot be made."""
        missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
        if missing:
            raise Unavailable(f"There is no {' and no '.join(missing)} here: install iproute2.")
        if os.geteuid() != 0:
            raise Unavailable("Network namespaces can only be made by root.")
        remove_abandoned()
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self.close()
            raise Unavailable(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error

    def close(self) -> None:
        """End all processes on the hosts, and remove the hosts."""
        self.stop()
        remove(self._name)

    def limit(self, rate: str | None) -> None:
        """Limit every link in both directions to a rate such as ``100mbit``; None for no limit."""
        for number in range(len(self.addresses)):
            for where, link in ((self._host(number), LINK), (self._switch, f"port{number}")):
                if rate is None:
                    subprocess.run(["tc", "-n", where, "qdisc", "del", "dev", link, "root"], capture_output=True)
                else:
                    # A link is served only every few milliseconds: with a smaller burst it would not reach the rate.
                    burst = "256kb" if rate.endswith("gbit") else "64kb"
                    tbf = ("tbf", "rate", rate, "burst", burst, "latency", f"{QUEUE_SECONDS * 1000:.0f}ms")
                    _run("tc", "-n", where, "qdisc", "replace", "dev", link, "root", *tbf)

    def start(self, host: int, command: Sequence[str], variables: Mapping[str, str], folder: Path) -> Process:
        """Start a process on a host, with these variables added to its environment; its output goes to a file."""
        log = folder / f"host-{host}.log"
        environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath, "/usr/sbin", "/sbin"]),
            "PYTHONPATH": os.pathsep.join([str(Path(muster.__file__).parents[1]), str(Path(__file__).parents[1])]),
            "HOME": str(folder),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **THREADS,
            **variables,
        }
        with log.open("ab") as output:
            popen = subprocess.Popen(
                ["ip", "netns", "exec", self._host(host), "unshare", "--uts", *_named(self.addresses[host]), *command],
                env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        process = Process(popen, log)
        self._processes.append(process)
        return process

    def start_ranks(
        self, size: int, command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
    ) -> list[Process]:
        """Start a command as Horovod ranks over gloo, one on each of the first hosts."""
        with _inside(self._switch):
            self._rendezvous = RendezvousServer()  # its socket belongs to the namespace in which it is made
            port = self._rendezvous.start()
        slots = get_host_assignments(parse_hosts(",".join(f"{host}:1" for host in self.addresses[:size])), size)
        self._rendezvous.init(slots)
        common = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": SWITCH_ADDRESS,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": LINK,
            **(variables or {}),
        }
        return [
            self.start(slot.rank, command, {**common, **gloo_run.create_slot_env_vars(slot)}, folder) for slot in slots
        ]

    def wait(self, processes: Sequence[Process], seconds: float = 600) -> None:
        """Wait until the processes have ended well.

        Raises:
            RuntimeError: one has failed, or they take too long; the message has the end of its output.
        """
        deadline = time.monotonic() + seconds
        while any(process.popen.poll() is None for process in processes):
            failed = [process for process in processes if process.popen.poll()]
            if failed or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        for process in processes:
            if process.popen.poll() != 0:
                text = process.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{process.log.stem} ended with {process.popen.returncode}:\n{text}")

    def stop(self) -> None:
        """End everything that runs on the hosts."""
        for process in self._processes:
            process.popen.kill()
            process.popen.wait()
        self._processes.clear()
        if self._rendezvous is not None:
            self._rendezvous.stop()
            self._rendezvous._httpd.server_close()  # stop() leaves this to the garbage collector
            self._rendezvous = None

    def _make(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", LINK, "type", "bridge")
        _run("ip", "-n", self._switch, "address", "add", f"{SWITCH_ADDRESS}/24", "dev", LINK)
        _run("ip", "-n", self._switch, "link", "set", LINK, "up")
        for number, address in enumerate(self.addresses):
            host, port = self._host(number), f"port{number}"
            _run("ip", "netns", "add", host)
            _run("ip", "-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", LINK, "netns", host)
            _run("ip", "-n", self._switch, "link", "set", port, "master", LINK, "up")
            _run("ip", "-n", host, "address", "add", f"{address}/24", "dev", LINK)
            _run("ip", "-n", host, "link", "set", LINK, "up")
            _run("ip", "-n", host, "link", "set", "lo", "up")

    def _host(self, number: int) -> str:
        return f"{self._name}-{number}"


@contextlib.contextmanager
def network(hosts: int, rate: str | None = None) -> Iterator[Network]:
    """Make a network that lasts as long as the block, and yield it.

    Raises:
        Unavailable: it cannot be made here; the error says why.
    """
    made = Network(hosts)
    made.open()
    try:
        made.limit(rate)
        yield made
    finally:
        made.close()


def remove(name: str) -> None:
    """Remove the namespaces whose names begin with ``name`` and a hyphen, and end the processes in them."""
    for namespace in [namespace for namespace in _namespaces() if namespace.startswith(f"{name}-")]:
        for pid in _run("ip", "netns", "pids", namespace).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _run("ip", "netns", "delete", namespace)


def remove_abandoned() -> None:
    """Remove the namespaces of benchmarks that were killed."""
    for namespace in _namespaces():
        match = re.match(rf"{PREFIX}-(\d+)-\w+", namespace)
        if match and not Path(f"/proc/{match[1]}").exists():
            remove(match[0])


def _namespaces() -> list[str]:
    return [entry["name"] for entry in json.loads(_run("ip", "-j", "netns", "list") or "[]")]


def _named(address: str) -> tuple[str, ...]:
    """Return the beginning of a command that sets the host's name to its address, and then runs the rest.

    Horovod (0.28.1) sends data to the address that a host's name resolves to, whatever interface it is told to use.
    """
    return ("sh", "-c", 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"', address)


@contextlib.contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """Make the sockets that this thread opens within the block belong to the namespace."""
    with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{namespace}") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(here.fileno())


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
