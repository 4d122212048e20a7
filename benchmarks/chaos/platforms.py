"""Platforms of the cases: this machine, also attacked, by ``muster serve`` or with files hidden; hosts; containers.

Faults are the same on all platforms. They differ in how a victim's process is found, and in what may be left behind.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from muster.agent import linux
from muster.platforms.hosts.platform import HostsPlatform
from muster.pools import listener

from benchmarks.chaos.faults import Case
from benchmarks.hostile_clients import ON_SERVICE, ON_SESSION, Attack, attacking_from_outside
from benchmarks.serve_ready import Service, serving
from tests.platforms.containers_podman import Podman, why_not
from tests.platforms.hosts_network import Host, Network, can_have_networks
from tests.platforms.isolated import Isolated, has_namespaces
from tests.support import command_line, eventually

SHARED = Path("/srv")  # all hosts and containers have this folder in common; it stands for a network file system
Made = TypeVar("Made")
GUARD_OF_HOST = "sys.stdin.buffer.raw"  # in the command line of the process that a login starts, and of its forks
LEFT_BY_GUARD = "/muster-host-"
HOMES_OF_PACKAGES = ("KERAS_HOME", "MPLCONFIGDIR")  # else imports of these packages leave files in the user's home
CUT_OFF_SECONDS = 30.0  # in which everything on a host that is cut off ends
SILENT_SECONDS = 1  # silence after which the session probes whether the other machine still answers


class Here:
    """This machine, whose workers share the files of this process."""

    @contextlib.contextmanager
    def used(self, case: Case) -> Iterator[dict[str, Any]]:
        """Prepare the platform for a case, and yield the arguments that ``run_cluster`` needs for it."""
        yield {}

    def make_folder(self, base: Path) -> Path:
        """Make the folder in which the ranks meet, and return it. The caller removes it only if it lies in ``base``."""
        (base / "meet").mkdir()
        return base / "meet"

    def pid(self, told: int, address: str) -> int:
        """Return the id, as this process sees it, of the process that an agent at this address reports as ``told``."""
        return told

    def guard(self, address: str) -> int:
        """Return the process id of the guard of the workers at this address. Raises StopIteration if there is none."""
        return child_of(os.getpid(), "agent/__main__.py guard")

    def login(self, address: str) -> int:
        """Return the id of the ssh process that is logged in to the host with this address.

        Raises StopIteration if there is none, as on this platform.
        """
        raise StopIteration

    def pull_cable(self, address: str) -> None:
        """Cut the host with this address off silently. Raises StopIteration on this platform, which has no hosts."""
        raise StopIteration

    def container(self, address: str) -> int:
        """Return the first process of the container with this address. Raises StopIteration if there is none."""
        raise StopIteration

    def repair(self) -> None:
        """Undo a case's changes to the platform, once the run has ended."""

    def left(self) -> list[str]:
        """Return names of what is left of a run other than processes and scratch folders on this machine."""
        return []

    def close(self) -> None:
        """Remove what the platform keeps between cases."""


class ApartFromFiles(Here):
    """This machine, whose workers see neither the session's scratch folder nor the run's."""

    def __init__(self) -> None:
        self._platform: Isolated | None = None

    @contextlib.contextmanager
    def used(self, case: Case) -> Iterator[dict[str, Any]]:
        """Make a platform whose workers see no files of the session, for one case."""
        self._platform = Isolated()
        try:
            yield {"platform": self._platform, "project": "none"}
        finally:
            self._platform.close()

    def repair(self) -> None:
        """End the processes that belong to the platform, not to the run."""
        if self._platform is not None:
            self._platform.close()


class Attacked(Here):
    """This machine, whose session is attacked all the time by clients that know nothing but its port."""

    @contextlib.contextmanager
    def used(self, case: Case) -> Iterator[dict[str, Any]]:
        """Attack the port of the case's session, each time with another one of the attacks."""
        port = free_port()
        with attacking_from_outside(port, chosen(ON_SESSION, case)):
            yield {"session_address": f"127.0.0.1:{port}"}


class Served(Attacked):
    """This machine, whose workers a ``muster serve`` launches, while both are attacked, it and the session."""

    def __init__(self) -> None:
        self._served = contextlib.ExitStack()
        self._service: Service | None = None

    @contextlib.contextmanager
    def used(self, case: Case) -> Iterator[dict[str, Any]]:
        """A service for one case, and hostile clients at its port and at that of the session."""
        with self._served:
            self._service = self._served.enter_context(serving(Path(os.environ["MUSTER_HOME"])))
            self._served.enter_context(attacking_from_outside(self._service.port, chosen(ON_SERVICE, case)))
            with super().used(case) as options:
                yield {**options, "platform": "workbench", "project": "none"}

    def guard(self, address: str) -> int:
        """The guard of the service's workers."""
        return child_of(self._service.pid if self._service else 0, "agent/__main__.py guard")

    def repair(self) -> None:
        """End the service, which is not the run's."""
        self._served.close()


class ApartFromThisMachine(Here):
    """Machines with a folder in common with this one. Cases share them, until one leaves something on them."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def make_folder(self, base: Path) -> Path:
        """Make a folder that the machines share with this one, and return it."""
        self._folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=SHARED))
        return self._folder

    def tidy(self) -> None:
        """Remove the folder of a case, and the machines if the case has left something on them."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self.left():
            self.close()


class OnHosts(ApartFromThisMachine):
    """Two hosts with an sshd each, in a network of their own, that the session logs in to.

    Cases share one network, until one leaves something on it; the next case then gets a new one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._network: Network | None = None
        self._cut_off: list[Host] = []

    @contextlib.contextmanager
    def used(self, case: Case) -> Iterator[dict[str, Any]]:
        """Prepare the hosts, with as many slots as the case has workers."""
        network = self._network = self._network or _made_to_stay(lambda: Network(("h1", "h2")))
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
            self.tidy()

    def pid(self, told: int, address: str) -> int:
        """Return the id on this machine of a process whose id on its host is ``told``. Raises ProcessLookupError."""
        return id_here(told, self._host(address).pids())

    def guard(self, address: str) -> int:
        """Return the id of the process that a login has started, whose forks are the agents. Raises StopIteration."""
        found = {pid for pid in self._host(address).pids() if GUARD_OF_HOST in command_line(pid)}
        processes = linux.snapshot()
        return next(pid for pid in found if pid in processes and processes[pid].parent not in found)

    def login(self, address: str) -> int:
        """Return the id of this process's ssh to the host. Raises StopIteration if there is none."""
        return child_of(os.getpid(), f" {self._host(address).name} ")

    def pull_cable(self, address: str) -> None:
        """Take down the host's port on the switch."""
        self._cut_off.append(self._host(address))
        self._cut_off[-1].cut()

    def left(self) -> list[str]:
        """Return names of the processes, files and ports that are left on the hosts."""
        hosts = self._network.hosts.values() if self._network else ()
        return [f"{host.name}: {found}" for host in hosts for found in host.left_behind()]

    def repair(self) -> None:
        """Plug in all cables, once everything on a host without one has ended by itself, its login included."""
        while self._cut_off:
            host = self._cut_off.pop()
            with contextlib.suppress(AssertionError):  # what is left is found later
                eventually(lambda: not host.left_behind(), "nothing is left", CUT_OFF_SECONDS)  # noqa: B023
            host.plug_in()
        if any(LEFT_BY_GUARD in found for found in self.left()):  # the next login removes what a killed guard has left
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


class InContainers(ApartFromThisMachine):
    """Containers of a Podman of its own, around this Python."""

    def __init__(self) -> None:
        super().__init__()
        self._podman: Podman | None = None

    @contextlib.contextmanager
    def used(self, case: Case) -> Iterator[dict[str, Any]]:
        """Start Podman, unless it runs."""
        podman = self._podman = self._podman or _made_to_stay(lambda: Podman(volumes=(SHARED,)))
        try:
            yield {"platform": "containers", "engine": podman.url, "project": "none"}
        finally:
            self.tidy()

    def pid(self, told: int, address: str) -> int:
        """Return the id here of a process whose id in its container is ``told``. Raises ProcessLookupError."""
        space = os.readlink(f"/proc/{self.container(address)}/ns/pid")
        return id_here(told, [pid for pid in linux.all_pids() if _space_of(pid) == space])

    def guard(self, address: str) -> int:
        """Return the id of the guard that outlives the session. Raises StopIteration if there is none."""
        return child_of(os.getpid(), "muster.platforms.containers.guard")

    def container(self, address: str) -> int:
        """Return the id of a container's first process. Raises StopIteration if there is none."""
        shown = "{{.State.Pid}}{{range .NetworkSettings.Networks}} {{.IPAddress}}{{end}}"
        names = self._podman.containers() if self._podman else []
        told = self._podman.run("inspect", "--format", shown, *names).splitlines() if self._podman and names else []
        return next(int(line.split()[0]) for line in told if address in line.split()[1:])

    def left(self) -> list[str]:
        """Return names of the containers, networks, volumes and homes that are left."""
        return [*self._podman.left_behind()] if self._podman else []

    def close(self) -> None:
        """Remove Podman with all that it has."""
        podman, self._podman = self._podman, None
        if podman is not None:
            podman.remove()


def _space_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # it has ended
        return ""


def id_here(told: int, pids: Sequence[int]) -> int:
    """Return that of these process ids whose process is ``told`` in its own namespace. Raises ProcessLookupError."""
    for pid in pids:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            if status.split("NSpid:")[1].split("\n")[0].split()[-1] == str(told):
                return pid
    raise ProcessLookupError(told)


def _made_to_stay(make: Callable[[], Made]) -> Made:
    """Return what ``make`` makes, with its folder not in that of the case, so that it outlives it."""
    of_case, tempfile.tempdir = tempfile.tempdir, "/tmp"
    try:
        return make()
    finally:
        tempfile.tempdir = of_case


PLATFORMS: dict[str, type[Here]] = {
    "local": Here, "attacked": Attacked, "served": Served, "isolated": ApartFromFiles, "hosts": OnHosts,
    "containers": InContainers,
}  # fmt: skip


@functools.cache
def platform_named(name: str) -> Here:
    """Return the platform with this name; there is one of each in a process."""
    return PLATFORMS[name]()


def close_all() -> None:
    """Remove what platforms keep between cases."""
    for name in PLATFORMS:
        platform_named(name).close()


@functools.cache
def available() -> list[str]:
    """Return the names of the platforms that this machine allows."""
    can: dict[str, Callable[[], bool]] = {
        "isolated": has_namespaces,
        "hosts": can_have_networks,
        "containers": lambda: not why_not(),
    }
    return [name for name in PLATFORMS if name not in can or can[name]()]


def free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def chosen(attacks: Sequence[Attack], case: Case) -> Attack:
    """Return the attack that is made beside a case; the first is none."""
    return attacks[1 + case.number % (len(attacks) - 1)]


def child_of(parent: int, *words: str) -> int:
    """Return the id of a process's child that has one of these words in its command line. Raises StopIteration."""
    children = [pid for pid, process in linux.snapshot().items() if process.parent == parent]
    return next(pid for pid in children if any(word in f"{command_line(pid)} " for word in words))
