"""The seam between Muster and whatever runs its workers."""

from __future__ import annotations

import contextlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from muster.errors import PlatformError
from muster.job import Resources, Worker, WorkerSpec

BACKOFF = 1.3  # times as long until the next poll, where the last one has found nothing new


class Storage(str, Enum):
    """The files that a session and the workers of a platform share."""

    ALL = "all"  # the temporary folder, too: they are one machine
    PROJECT = "project"  # the project's folder, and the user's runs in it
    NOTHING = "nothing"


@dataclass(frozen=True)
class Reach:
    """Addresses by which the agents of a platform's workers reach the session.

    Attributes:
        listen: address that the session listens on.
        advertise: address that agents dial.
        relayed: whether the platform carries their connections, because they cannot dial the session. It then gives
            each agent the address of its own end of the relay, and ``listen`` is where the other end comes out.
    """

    listen: str
    advertise: str
    relayed: bool = False


def read_log(path: Path) -> Iterator[str]:
    """The lines of a worker's log, older part first; bytes that are not UTF-8 come as lone surrogates."""
    for part in (path.with_name(path.name + ".1"), path):
        if part.exists():
            with part.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
                yield from (line.rstrip("\n") for line in file)


class PollBackoff:
    """Seconds between two polls: few after a change, and ever more while nothing changes.

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
        return self._seconds


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
    """

    name: str
    poll_seconds: tuple[float, float] = (0.2, 0.5)
    explain_seconds: float = 0.2
    storage: Storage = Storage.ALL
    lease_seconds: float = 15.0

    def check(self) -> None:  # noqa: B027  most systems can host most platforms
        """Raise PlatformUnsupported where this system cannot host the platform."""

    def shortages(self, resources: Resources, workers: int) -> list[str]:
        """Return, in words, what so many workers would have to share that each is to have for itself.

        Raises:
            ResourceError: the platform could never grant what is asked.
        """
        return []

    def warm_up(self) -> None:  # noqa: B027  most platforms have nothing to warm up
        """Start what takes time, without waiting for it, as a submission is near."""

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

        A worker that the platform no longer knows comes back as failed, with that as its reason.
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

    def reach(self) -> Reach:
        """Return the addresses by which this platform's workers reach the session.

        Raises:
            PlatformUnsupported: the address is not known here.
        """
        return Reach("127.0.0.1", "127.0.0.1")
