"""The interface that every platform implements."""

from __future__ import annotations

import contextlib
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from muster.errors import PlatformError, PlatformUnsupported
from muster.job import Resources, Status, Worker, WorkerSpec
from muster.text.frozen import frozen

BACKOFF = 1.3  # factor by which the time between polls grows after a poll that has found no change
UNKNOWN = "This platform does not know the worker."
POLLED_PER_SECOND = 2000  # workers: each takes microseconds to check, and agents report their ends by themselves


class Storage(str, Enum):
    """The files that the session shares with a platform's workers."""

    ALL = "all"  # all files, the temporary folder included: they run on one machine
    PROJECT = "project"  # the project's folder, and the user's runs in it
    NOTHING = "nothing"


class Cleaned(NamedTuple):
    """The outcome of ``Platform.clean``, in words: what was removed, and what could not be removed and why."""

    removed: Sequence[str] = ()
    left: Sequence[str] = ()


@frozen
class Reach:
    """Addresses by which the agents of a platform's workers reach the session.

    Attributes:
        listen: address that the session listens on.
        advertise: address that agents dial.
        relayed: whether agents cannot dial the session directly. ``Platform.open_relay`` then returns a relay, which
            carries their connections to the session and knows the address that each of them dials instead.
        is_coming: whether this machine may get the address ``listen`` only when the workers are launched, with their
            network.
    """

    listen: str
    advertise: str
    relayed: bool = False
    is_coming: bool = False


class Relay(ABC):
    """A relay of the connections of a pool's agents to a session that they cannot dial, such as ``ssh -R``.

    It only carries bytes and need not be trusted: agents speak TLS with the session through it, and know the session's
    certificate. An agent whose connection breaks dials the same address again until its lease has passed, so that a
    relay may be repaired meanwhile.
    """

    @abstractmethod
    def addresses_for(self, specs: Sequence[WorkerSpec]) -> list[tuple[str, int]]:
        """Return the host and port that each worker's agent dials, called just before these workers are submitted.

        Raises:
            PlatformError: one of the workers would run where the session cannot be reached.
        """

    def connected(self, worker: str) -> None:  # noqa: B027  most relays need not know
        """Note that a worker's agent has reached the session, by any route. Called on any thread; never blocks."""

    @abstractmethod
    def close(self) -> None:
        """Close the relay, once its workers are gone. Idempotent."""


def cores_in_words(wanted: Sequence[Resources]) -> str:
    """Return, in words, the cores that workers ask for.

    >>> cores_in_words([Resources(2)] * 3), cores_in_words([Resources(4), Resources(1), Resources(1)])
    ('3 workers x 2 cores', '1 worker x 4 + 2 workers x 1 core')
    """
    counts = [*Counter(resources.cpu for resources in wanted).items()]
    parts = [f"{count} worker{'s' if count != 1 else ''} x {cpu:g}" for cpu, count in counts]
    return f"{' + '.join(parts)} core{'s' if counts[-1][0] != 1 else ''}"


def memory_in_words(wanted: Sequence[Resources]) -> str:
    """Return, in words, the memory that workers ask for.

    >>> memory_in_words([Resources(memory=4), Resources(), Resources()])
    '1 x 4 + 2 x 2 GB'
    """
    counts = Counter(resources.memory for resources in wanted).items()
    return f"{' + '.join(f'{count} x {memory:g}' for memory, count in counts)} GB"


def gpus_in_words(count: int) -> str:
    """Return a number of GPUs in words: ``1 GPU``, ``2 GPUs``."""
    return f"{count} GPU{'s' if count != 1 else ''}"


def read_log(path: Path) -> Iterator[str]:
    """Yield the lines of a worker's log, its older part first; bytes that are not UTF-8 become lone surrogates."""
    for part in (path.with_name(path.name + ".1"), path):
        if part.exists():
            with part.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
                yield from (line.rstrip("\n") for line in file)


def oldest_first(workers: Iterable[Worker]) -> list[Worker]:
    """Return workers in the order in which they were created."""
    return sorted(workers, key=lambda worker: worker.created_at or 0.0)


def unknown_worker(handle: str) -> Worker:
    """Return the worker with a handle that its platform does not know: it counts as failed."""
    return Worker(handle, handle, Status.FAILED, reason=UNKNOWN)


class PollBackoff:
    """The seconds between two polls: few after a change, more while nothing changes or where there are many workers.

    Args:
        platform: the platform, whose ``poll_seconds`` are the limits.
    """

    def __init__(self, platform: Platform) -> None:
        self._least, self._most = platform.poll_seconds
        self._seconds = self._least
        self._last: Sequence[Worker] | None = None

    def seconds(self, found: Sequence[Worker] | None) -> float:
        """Return the seconds to wait before the next poll, given what the last one returned (None: it failed)."""
        self._seconds = self._least if found != self._last else min(BACKOFF * self._seconds, self._most)
        self._last = found
        return max(self._seconds, len(found or ()) / POLLED_PER_SECOND)


class Platform(ABC):
    """A place where workers run.

    A worker is known by its *handle*: a string with which every process of the same user can poll and stop it, through
    a platform object of that process, as long as the platform knows the worker.

    All calls are synchronous, may take seconds, and may come from any thread, but one at a time. Errors of the backend
    are raised as :class:`~muster.errors.PlatformError`.

    Attributes:
        name: its name, as in ``platform=``.
        poll_seconds: seconds between two polls: after a change, and at most.
        explain_seconds: how long it may take to learn why a worker's agent has closed its connection.
        storage: the files that workers share with the session.
        lease_seconds: how long an agent that has lost the session waits for it before it ends its worker.
        python: path or name of the interpreter that runs scripts on the workers, unless the user names another; empty
            where it is the session's own. An interpreter on the workers cannot be examined before a launch.
        keeps_templates: whether it keeps, from one run to the next, a process that has imported what scripts import.
        launches_there: whether launchers run on the first worker even where agents dial the session: the session's
            machine may be on networks that the workers are not on, and launchers might choose one of those.
        machines_fail_alone: whether workers stay where the machine of another one fails.
    """

    name: str
    poll_seconds: tuple[float, float] = (0.2, 0.5)
    explain_seconds: float = 0.2
    storage: Storage = Storage.ALL
    lease_seconds: float = 15.0
    python: str = ""
    launches_there: bool = False
    keeps_templates: bool = False
    machines_fail_alone: bool = True

    def describe(self) -> str:
        """Return, in words, where the workers run: the platform's name, and other facts that a plan shows."""
        return self.name

    def check(self) -> None:  # noqa: B027  most platforms can be used from any system
        """Raise PlatformUnsupported where this system cannot use the platform."""

    def check_sshd(self) -> None:  # noqa: B027  on most platforms only a worker itself knows
        """Raise PlatformUnsupported where it is known before a launch that no worker could run sshd."""

    def try_command(self, argv: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Run a short command on the machines of future workers, where that is possible before a launch.

        Returns:
            Its exit status and its output, by the name of the machine; empty where commands can only run in workers.
        """
        return {}

    def clean(self) -> Cleaned:
        """Remove what ended runs keep for later ones, such as cached projects; what running ones use may stay.

        Raises:
            PlatformError: the platform cannot be asked for it.
        """
        return Cleaned()

    def shortages(self, wanted: Sequence[Resources]) -> list[str]:
        """Return, in words, the resources of which the workers together ask for more than there is.

        Args:
            wanted: the resources that each worker asks for, in launch order.

        Raises:
            ResourceError: the platform could never grant what is asked for.
            PlatformError: it refuses such workers, or does not answer.
        """
        return []

    def is_warming(self) -> bool:
        """Return whether a template for the next run will soon be ready, so that waiting for it saves time."""
        return False

    def warm_up(self) -> None:  # noqa: B027  most platforms have nothing to warm up
        """Start to prepare the next submission, without waiting until that is done."""

    @abstractmethod
    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Launch one worker per spec without waiting for them, and return their handles, in the same order.

        All or nothing: where one is refused, those already submitted are stopped again.

        Args:
            specs: the workers.
            run_key: names this submission. A second call with the same key submits nothing and returns the same
                handles, so that a call whose answer was lost can be repeated.

        Raises:
            LaunchRefused: a worker was refused. Trying again helps only where the error says so.
            ResourceError: the platform could never grant what was asked for.
            PlatformUnsupported: this system cannot use the platform.
        """

    def missing_rights(self) -> list[str]:
        """Return, in words, the rights that a run needs and this user lacks, as far as the platform tells.

        Raises:
            PlatformError: the platform cannot be asked.
        """
        return []

    def limits(self) -> list[str]:
        """Return, in words, the limits that hold for all workers there, such as quotas, and which cannot be read.

        Raises:
            PlatformError: the platform cannot be asked.
        """
        return []

    def submission_text(self, specs: Sequence[WorkerSpec]) -> str:
        """Return what submitting these workers would send to the backend, in its own format and without secrets.

        Returns:
            A batch script, manifests, or the like; empty where the platform has nothing of the kind.

        Raises:
            PlatformError: the text cannot be made.
        """
        return ""

    def launch(self, specs: Sequence[WorkerSpec], run_key: str = "") -> list[Worker]:
        """Submit workers and poll them once; stop them again where the poll fails.

        Args:
            specs, run_key: as ``submit`` takes them; without a key the submission gets a random one.

        Returns:
            Their states.

        Raises:
            PlatformError: as ``submit`` and ``poll``.
        """
        handles = self.submit(specs, run_key or secrets.token_hex(8))
        try:
            return self.poll(handles)
        except BaseException:
            with contextlib.suppress(PlatformError):  # the first error is the one to raise
                self.stop(handles)
            raise

    @abstractmethod
    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Return the current state of the workers with these handles, in the same order, by one request.

        The ``reason`` of a worker that has not started yet may say what it waits for, in words and in the platform's
        own: it is shown live, and in the error where a time limit passes. That of one that runs may say why it can be
        silent, as that it is paused: it is shown if its agent does not answer. That of a worker that has ended comes
        with what ended it (``cause``) and what to try (``advice``), where these are known. A worker that the platform
        no longer knows is returned as failed, with that as its reason.
        """

    @abstractmethod
    def stop(self, handles: Sequence[str]) -> None:
        """Ask the workers with these handles to end, without waiting until they have. Idempotent."""

    @abstractmethod
    def list(self) -> list[Worker]:
        """Return all workers that this session launched through this platform, also ended ones, oldest first."""

    @abstractmethod
    def logs(self, handle: str) -> Iterator[str]:
        """Yield the lines that a worker has printed so far, even once it has ended; none where they are not here."""

    def close(self) -> None:  # noqa: B027  (there may be nothing to release)
        """End all workers of this platform object, wait until they are gone, and release its resources. Idempotent."""

    def open_relay(self, host: str, port: int) -> Relay:
        """Return a relay of agents' connections to the session; called where ``reach`` is ``relayed``.

        Each pool has its own relay, from before its first submission until its workers are gone. It is made, used and
        closed on the thread that makes all of the pool's calls and outlives them. So a process that is started here may
        ask the kernel for a signal at the death of its parent, and cannot outlive the session.

        Args:
            host, port: address that the session listens on.

        Raises:
            PlatformError: the relay cannot be made.
        """
        raise NotImplementedError(f"the platform {self.name} relays no connections")

    def reach(self) -> Reach:
        """Return the addresses by which this platform's workers reach the session.

        Raises:
            PlatformUnsupported: the session's address is not known.
        """
        return Reach("127.0.0.1", "127.0.0.1")

    def reach_of_pool(self) -> Reach:
        """Return how the agents of runs on a pool reach the session; they start later than the pool's own agents.

        Raises:
            PlatformUnsupported: only the pool's own agents can reach it.
        """
        reach = self.reach()
        if reach.relayed:
            raise PlatformUnsupported(
                f"Workers on {self.name} cannot dial this session, and there are no pools of such workers.",
                advice="run_cluster, which launches its workers anew; or make the pool where workers reach the session",
            )
        return reach
