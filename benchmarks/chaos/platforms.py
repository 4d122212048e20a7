"""Where the workers run: on this machine, on this machine without its files, or on hosts that are logged in to.

Faults are the same everywhere; what differs is how the process is found that is to be hit, and what may be left.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muster.agent import linux
from muster.platforms.hosts.platform import HostsPlatform
from muster.pools import listener

from benchmarks.chaos.faults import Case
from tests.platforms.hosts_network import Host, Network, can_have_networks
from tests.platforms.isolated import Isolated, has_namespaces
from tests.support import command_line

SHARED = Path("/srv")  # which all hosts have in common: what stands for a network's file system
GUARD_OF_HOST = "sys.stdin.buffer.raw"  # in the command line of the process that a login starts, and of its forks
LEFT_BY_GUARD = "/muster-host-"
HOMES_OF_PACKAGES = ("KERAS_HOME", "MPLCONFIGDIR")  # else scripts leave files in their user's own when they import some
SILENT_SECONDS = 1  # until the session asks a machine that does not answer for a sign of life


class Here:
    """This machine, whose workers share the files of this process."""

    @contextlib.contextmanager
    def used(self, case: Case) -> Iterator[dict[str, Any]]:
        """Make it ready for a case; what ``run_cluster`` is to be told of it."""
        yield {}

    def make_folder(self, base: Path) -> Path:
        """Make the folder in which the ranks meet, of which only ``base`` is removed by others."""
        (base / "meet").mkdir()
        return base / "meet"

    def pid(self, told: int, address: str) -> int:
        """The id, for this process, of a process that its agent at that address has told of."""
        return told

    def guard(self, address: str) -> int:
        """The guard of the workers at that address. Raises StopIteration where there is none."""
        return child_of(os.getpid(), "agent/__main__.py guard")

    def login(self, address: str) -> int:
        """The ssh process that is logged in to the host with that address."""
        raise StopIteration

    def pull_cable(self, address: str) -> None:
        """Cut the host with that address off, without a word."""
        raise StopIteration

    def repair(self) -> None:
        """Undo what was done to it, once the run has ended."""

    def left(self) -> list[str]:
        """Return what is left of a run beside processes and scratch folders of this machine."""
        return []


class ApartFromFiles(Here):
    """This machine, whose workers see neither the session's scratch folder nor the run's."""

    def __init__(self) -> None:
        self._platform: Isolated | None = None

    @contextlib.contextmanager
    def used(self, case: Case) -> Iterator[dict[str, Any]]:
        """Such a platform, for one case."""
        self._platform = Isolated()
        try:
            yield {"platform": self._platform, "project": "none"}
        finally:
            self._platform.close()

    def repair(self) -> None:
        """End what belongs to the platform, and not to the run."""
        if self._platform is not None:
            self._platform.close()


class OnHosts(Here):
    """Two hosts with an sshd each, in a network of their own, that this process logs in to.

    One network serves case after case; one on which something was left is not used again.
    """

    def __init__(self) -> None:
        self._network: Network | None = None
        self._folder: Path | None = None

    @contextlib.contextmanager
    def used(self, case: Case) -> Iterator[dict[str, Any]]:
        """The hosts, with as many slots as the case has workers."""
        network = self._network = self._network or _made_to_stay()
        path, silent = os.environ["PATH"], listener.SILENT_SECONDS
        os.environ["PATH"] = network.path
        if "lease_seconds" in case.options:
            listener.SILENT_SECONDS = SILENT_SECONDS
        try:
            yield {
                "platform": "hosts", "hosts": list(case.shape.hosts), "project": "none",
                "env": {name: str(self._folder) for name in HOMES_OF_PACKAGES},
            }  # fmt: skip
        finally:
            os.environ["PATH"], listener.SILENT_SECONDS = path, silent
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            if self.left():
                self.close()

    def make_folder(self, base: Path) -> Path:
        """A folder that the hosts share with this machine."""
        self._folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=SHARED))
        return self._folder

    def pid(self, told: int, address: str) -> int:
        """The id out here of what has another one on its host."""
        for pid in self._host(address).pids():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                if status.split("NSpid:")[1].split("\n")[0].split()[-1] == str(told):
                    return pid
        raise ProcessLookupError(told)

    def guard(self, address: str) -> int:
        """The process that a login has started: the agents are its forks."""
        found = {pid for pid in self._host(address).pids() if GUARD_OF_HOST in command_line(pid)}
        processes = linux.snapshot()
        return next(pid for pid in found if pid in processes and processes[pid].parent not in found)

    def login(self, address: str) -> int:
        """The ssh process of this one."""
        return child_of(os.getpid(), f" {self._host(address).name} ")

    def pull_cable(self, address: str) -> None:
        """Take the host's port of the switch down."""
        self._host(address).cut()

    def left(self) -> list[str]:
        """Processes, files and ports on the hosts."""
        hosts = self._network.hosts.values() if self._network else ()
        return [f"{host.name}: {found}" for host in hosts for found in host.left_behind() if not _is_stale(found)]

    def repair(self) -> None:
        """Plug all cables in, and end what their hosts' sshds still keep for a client that they cannot hear of."""
        for host in self._network.hosts.values() if self._network else ():
            host.plug_in()
            for pid in host.pids():
                if _is_stale(command_line(pid)):
                    linux.kill(pid)
        if any(LEFT_BY_GUARD in found for found in self.left()):  # of a killed one: the next login clears it away
            platform = HostsPlatform(hosts=("h1:1", "h2:1"))
            platform.check()
            platform.close()

    def close(self) -> None:
        """Remove the network."""
        network, self._network = self._network, None
        if network is not None:
            network.remove()

    def _host(self, address: str) -> Host:
        assert self._network is not None, "a case uses it"
        return next(host for host in self._network.hosts.values() if address in (host.address, host.name))


def _made_to_stay() -> Network:
    """A network whose own folder does not go with the case."""
    of_case, tempfile.tempdir = tempfile.tempdir, "/tmp"
    try:
        return Network(("h1", "h2"))
    finally:
        tempfile.tempdir = of_case


def _is_stale(line: str) -> bool:
    """Return whether a process is an sshd's for a client: whose end it learns of hours after a cable was pulled."""
    return line.startswith("sshd: root")


PLATFORMS: dict[str, type[Here]] = {"local": Here, "isolated": ApartFromFiles, "hosts": OnHosts}


@functools.cache
def platform_named(name: str) -> Here:
    """The platform with that name, one in each process."""
    return PLATFORMS[name]()


def close_all() -> None:
    """Remove what platforms keep from case to case."""
    platform = platform_named("hosts")
    if isinstance(platform, OnHosts):
        platform.close()


@functools.cache
def available() -> list[str]:
    """Names of the platforms that there can be here."""
    can = {"isolated": has_namespaces, "hosts": can_have_networks}
    return [name for name in PLATFORMS if name not in can or can[name]()]


def child_of(parent: int, *words: str) -> int:
    """The child of a process that has one of these words in its command line. Raises StopIteration."""
    children = [pid for pid, process in linux.snapshot().items() if process.parent == parent]
    return next(pid for pid in children if any(word in f"{command_line(pid)} " for word in words))
