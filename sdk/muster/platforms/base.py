"""The seam between Muster and whatever runs its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

from muster.job import Resources, Worker, WorkerSpec

SLOWER = 1.3  # times as long until the next look, where the last one has found nothing new


def read_log(path: Path) -> Iterator[str]:
    """The lines of a worker's log, older part first; bytes that are not UTF-8 come as lone surrogates."""
    for part in (path.with_name(path.name + ".1"), path):
        if part.exists():
            with part.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
                yield from (line.rstrip("\n") for line in file)


class Looks:
    """When to look at workers again: soon after a change, and ever more slowly while nothing changes.

    Args:
        platform: the platform, which says how often it likes to be asked.
    """

    def __init__(self, platform: Platform) -> None:
        self._least, self._most = platform.look_seconds
        self._seconds = self._least
        self._last: Sequence[Worker] | None = None

    def seconds(self, found: Sequence[Worker] | None) -> float:
        """How long to wait for the next look, given what the last one has found (None: it failed)."""
        self._seconds = self._least if found != self._last else min(SLOWER * self._seconds, self._most)
        self._last = found
        return self._seconds


class Platform(ABC):
    """Where workers run.

    All calls are synchronous, may take seconds, and may come from any one thread at a time. Whatever goes wrong
    underneath is raised as :class:`~muster.errors.PlatformError`.
    """

    name: str
    look_seconds: tuple[float, float] = (0.2, 0.5)  # between two looks at its workers: after a change, and at most
    explain_seconds: float = 0.2  # how long it may take to learn why a worker's agent has hung up
    shares_temp: bool = True  # whether workers see the session's temporary folder, or only the folders of runs

    def check(self) -> None:  # noqa: B027  most systems can host most platforms
        """Raise PlatformUnsupported where this system cannot host the platform."""

    def shortages(self, resources: Resources, workers: int) -> list[str]:
        """What so many workers would have to share that each is to have for itself, in words.

        Raises:
            ResourceError: the platform could never grant what is asked.
        """
        return []

    def warm_up(self) -> None:  # noqa: B027  most platforms have nothing to warm up
        """A launch is near: start what takes time, without waiting for it."""

    @abstractmethod
    def launch(self, specs: Sequence[WorkerSpec]) -> list[Worker]:
        """Launch one worker per spec, in the same order, and return without waiting until they run.

        All or nothing: where one is refused, those already started are stopped again.

        Raises:
            LaunchRefused: a worker was refused. Trying again helps only where the error says so.
            ResourceError: the platform could never grant what was asked.
            PlatformUnsupported: this system cannot host the platform.
        """

    @abstractmethod
    def poll(self, workers: Sequence[Worker]) -> list[Worker]:
        """The current state of all the given workers, in the same order, by one request.

        A worker that the platform no longer knows comes back as failed, with that as its reason.
        """

    @abstractmethod
    def stop(self, workers: Sequence[Worker]) -> None:
        """Ask for the given workers to end. A request, not a wait; asking twice is fine."""

    @abstractmethod
    def list(self) -> list[Worker]:
        """All workers that this session launched through this platform, ended ones included, oldest first."""

    @abstractmethod
    def logs(self, worker: Worker) -> Iterator[str]:
        """The lines that a worker has printed so far, also of one that has ended."""

    def close(self) -> None:  # noqa: B027  (there may be nothing to let go of)
        """End all workers of this platform object, wait until they are gone, and let go of everything. Idempotent."""

    def usable_address(self) -> str:
        """Address that this platform's workers can reach the session at."""
        return "127.0.0.1"
