"""The interface of platforms: whatever runs workers."""

from __future__ import annotations

import contextlib
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from muster.errors import PlatformError, PlatformUnsupported
from muster.job import Resources, Worker, WorkerSpec

BACKOFF = 1.3  # times as long until the next poll, where the last one has found nothing new
POLLED_PER_SECOND = 5000  # workers: to look at each costs microseconds, and agents tell by themselves


class Storage(str, Enum):
    """The files that a session and the workers of a platform share."""

    ALL = "all"  # the temporary folder, too: they are one machine
    PROJECT = "project"  # the project's folder, and the user's runs in it
    NOTHING = "nothing"


class Cleaned(NamedTuple):
    """Outcome of ``Platform.clean``: what was removed, and what could not be and why, each in words."""

    removed: Sequence[str] = ()
    left: Sequence[str] = ()


@dataclass(frozen=True)
class Reach:
    """Addresses by which the agents of a platform's workers reach the session.

    Attributes:
        listen: address that the session listens on.
        advertise: address that agents dial.
        relayed: whether agents cannot dial the session. Then ``Platform.open_relay`` makes what carries their
            connections to where the session listens, and says what each of them dials instead.
        is_coming: whether this machine may get the address ``listen`` only with the workers, as with their network.
    """

    listen: str
    advertise: str
    relayed: bool = False
    is_coming: bool = False


class Relay(ABC):
    """Carries the connections of a pool's agents to a session that they cannot dial, such as ``ssh -R`` does.

    It carries bytes, and needs to be trusted with nothing: agents speak TLS with the session through it, and know its
    certificate. An agent whose connection breaks dials the same address again until its lease has passed, so that a
    relay may be repaired meanwhile.
    """

    @abstractmethod
    def addresses_for(self, specs: Sequence[WorkerSpec]) -> list[tuple[str, int]]:
        """Return the host and port that each worker's agent dials, called just before these workers are submitted.

        Raises:
            PlatformError: there is no way to the session from where one of them would run.
        """

    def connected(self, worker: str) -> None:  # noqa: B027  most carry all connections, or know without being told
        """Note that a worker's agent has reached the session, in whichever way. Called on any thread; never waits."""

    @abstractmethod
    def close(self) -> None:
        """End it, once its workers are gone. Idempotent."""


def cores_in_words(wanted: Sequence[Resources]) -> str:
    """Return the cores that workers are to have.

    >>> cores_in_words([Resources(2)] * 3), cores_in_words([Resources(4), Resources(1), Resources(1)])
    ('3 workers x 2 cores', '1 worker x 4 + 2 workers x 1 core')
    """
    counts = [*Counter(resources.cpu for resources in wanted).items()]
    parts = [f"{count} worker{'s' if count != 1 else ''} x {cpu:g}" for cpu, count in counts]
    return f"{' + '.join(parts)} core{'s' if counts[-1][0] != 1 else ''}"


def memory_in_words(wanted: Sequence[Resources]) -> str:
    """Return the memory that workers are to have.

    >>> memory_in_words([Resources(memory=4), Resources(), Resources()])
    '1 x 4 + 2 x 2 GB'
    """
    counts = Counter(resources.memory for resources in wanted).items()
    return f"{' + '.join(f'{count} x {memory:g}' for memory, count in counts)} GB"


def read_log(path: Path) -> Iterator[str]:
    """The lines of a worker's log, older part first; bytes that are not UTF-8 come as lone surrogates."""
    for part in (path.with_name(path.name + ".1"), path):
        if part.exists():
            with part.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
                yield from (line.rstrip("\n") for line in file)


class PollBackoff:
    """Seconds between two polls: few after a change, and ever more while nothing changes, or of very many workers.

    Args:
        platform: the platform, which says how often it likes to be polled.
    """

    def __init__(self, platform: Platform) -> None:
        self._least, self._most = platform.poll_seconds
        self._seconds = self._least
        self._last: Sequence[Worker] | None = None

    def seconds(self, found: Sequence[Worker] | None) -> float:
        """Return the seconds to wait for the next poll, given what the last one has found (None: it failed)."""
        self._seconds = self._least if found != self._last else min(BACKOFF * self._seconds, self._most)
        self._last = found
        return max(self._seconds, len(found or ()) / POLLED_PER_SECOND)


class Platform(ABC):
    """A place where workers run.

    A worker is known by its *handle*: a string by which every process of the same user can poll and stop it, through
    a platform object of its own, as long as the platform knows it.

    All calls are synchronous, may take seconds, and may come from any one thread at a time. Whatever goes wrong
    underneath is raised as :class:`~muster.errors.PlatformError`.

    Attributes:
        name: what it is called.
        poll_seconds: seconds between two polls: after a change, and at most.
        explain_seconds: how long it may take to learn why a worker's agent has hung up.
        storage: the files that workers share with the session.
        lease_seconds: how long an agent that has lost the session waits for it before it ends everything.
        python: path or name of the interpreter on the workers that runs scripts there, unless the user names another;
            empty where it is the session's own. One of the workers' cannot be looked at before a launch.
        keeps_templates: whether it keeps, from one run to the next, a process that has imported what scripts import.
        launches_there: whether launchers run on the first worker, also where agents dial the session: that may have
            other networks than the workers, of which launchers would choose one.
    """

    name: str
    poll_seconds: tuple[float, float] = (0.2, 0.5)
    explain_seconds: float = 0.2
    storage: Storage = Storage.ALL
    lease_seconds: float = 15.0
    python: str = ""
    launches_there: bool = False
    keeps_templates: bool = False

    def describe(self) -> str:
        """Return, in words, where the workers run: its name, and what else a plan should say."""
        return self.name

    def check(self) -> None:  # noqa: B027  most systems can host most platforms
        """Raise PlatformUnsupported where this system cannot host the platform."""

    def check_sshd(self) -> None:  # noqa: B027  mostly only a worker itself knows
        """Raise PlatformUnsupported where it is known beforehand that no worker could run sshd."""

    def try_command(self, argv: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Run a short command where workers will run, if that can be done before they do.

        Returns:
            Its exit status and what it printed, by the name of the machine; nothing where only workers can run one.
        """
        return {}

    def clean(self) -> Cleaned:
        """Remove what ended runs have left for later ones, such as files of projects; what living runs use may stay.

        Raises:
            PlatformError: it cannot be looked for.
        """
        return Cleaned()

    def shortages(self, wanted: Sequence[Resources]) -> list[str]:
        """Return, in words, what workers would have to share that each is to have for itself.

        Args:
            wanted: what each worker is to have, in launch order.

        Raises:
            ResourceError: the platform could never grant what is asked.
        """
        return []

    def is_warming(self) -> bool:
        """Return whether what it keeps for the next run will soon be ready, so that waiting for it saves time."""
        return False

    def warm_up(self) -> None:  # noqa: B027  most platforms have nothing to warm up
        """Begin to load or make what the next submission needs, without waiting for it."""

    @abstractmethod
    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Have one worker launched per spec, and return their handles, in the same order, without waiting.

        All or nothing: where one is refused, those already submitted are stopped again.

        Args:
            specs: the workers.
            run_key: names this submission. The same key again submits nothing, and returns the same handles: a call
                whose answer was lost can be repeated.

        Raises:
            LaunchRefused: a worker was refused. Trying again helps only where the error says so.
            ResourceError: the platform could never grant what was asked.
            PlatformUnsupported: this system cannot host the platform.
        """

    def missing_rights(self) -> list[str]:
        """Return, in words, the rights that a run needs and this user does not have, as far as that can be asked.

        Raises:
            PlatformError: it cannot be asked.
        """
        return []

    def submission_text(self, specs: Sequence[WorkerSpec]) -> str:
        """Return what submitting these workers gives to the backend below, in its own language and without secrets.

        Returns:
            A batch script, manifests, or the like; empty where there is nothing of the kind.

        Raises:
            PlatformError: it cannot be found out.
        """
        return ""

    def launch(self, specs: Sequence[WorkerSpec], run_key: str = "") -> list[Worker]:
        """Submit workers, and return how they are just after; stops them again where that cannot be found out.

        Args:
            specs, run_key: as ``submit`` takes them; without a key the submission gets one of its own.

        Raises:
            PlatformError: as ``submit`` and ``poll``.
        """
        handles = self.submit(specs, run_key or secrets.token_hex(8))
        try:
            return self.poll(handles)
        except BaseException:
            with contextlib.suppress(PlatformError):  # the first error is the one that counts
                self.stop(handles)
            raise

    @abstractmethod
    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """The current state of the workers with these handles, in the same order, by one request.

        A worker that has not started yet may say in ``reason`` what it waits for, in words, with the platform's own
        beside them: this is told live, and in the error where a limit passes. One that has ended may say what ended it
        (``cause``) and what to try (``advice``). One that the platform no longer knows comes back as failed, with that
        as its reason.
        """

    @abstractmethod
    def stop(self, handles: Sequence[str]) -> None:
        """Ask for the workers with these handles to end. A request, not a wait; asking twice is fine."""

    @abstractmethod
    def reattach(self, handles: Sequence[str]) -> list[Worker]:
        """Take over workers that another platform object has submitted: ``list`` and ``close`` now count them, too.

        Returns:
            Their current states, as ``poll`` does.
        """

    @abstractmethod
    def list(self) -> list[Worker]:
        """All workers that this session launched through this platform, ended ones included, oldest first."""

    @abstractmethod
    def logs(self, handle: str) -> Iterator[str]:
        """The lines that a worker has printed so far, also of one that has ended; none where they are not here."""

    def close(self) -> None:  # noqa: B027  (there may be nothing to release)
        """End all workers of this platform object, wait until they are gone, and release everything. Idempotent."""

    def open_relay(self, host: str, port: int) -> Relay:
        """Make what carries agents' connections to this address of the session; called where reach is ``relayed``.

        Each pool has one of its own, from before its first submission until its workers are gone. It is made, asked
        and closed on the thread that makes all of the pool's calls, and that ends after them: a process that is started
        here may ask for a signal at the death of its parent, and so cannot outlive the session.

        Args:
            host, port: where the session listens.

        Raises:
            PlatformError: it cannot be made.
        """
        raise NotImplementedError(f"the platform {self.name} relays no connections")

    def reach(self) -> Reach:
        """Return the addresses by which this platform's workers reach the session.

        Raises:
            PlatformUnsupported: the address is not known here.
        """
        return Reach("127.0.0.1", "127.0.0.1")

    def reach_of_pool(self) -> Reach:
        """Return how the agents of runs on a pool reach the session, which come later than the pool's own.

        Raises:
            PlatformUnsupported: only the pool's own agents reach it.
        """
        reach = self.reach()
        if reach.relayed:
            raise PlatformUnsupported(
                f"Workers on {self.name} cannot dial this session, and there are no pools of such workers.",
                advice="run_cluster, which launches its workers anew; or make the pool where workers reach the session",
            )
        return reach
