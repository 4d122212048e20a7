"""The seam between Muster and whatever runs its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from muster.job import Worker, WorkerSpec


class Platform(ABC):
    """Where workers run.

    All calls are synchronous, may take seconds, and may come from any one thread at a time. Whatever goes wrong
    underneath is raised as :class:`~muster.errors.PlatformError`.
    """

    name: str

    def check(self) -> None:  # noqa: B027  most systems can host most platforms
        """Raise PlatformUnsupported where this system cannot host the platform."""

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
