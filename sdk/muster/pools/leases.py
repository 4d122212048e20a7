"""Leases: which generation of a worker may act, and when the next one may. Independent of connections and of the clock.

An agent that loses its session ends everything once its lease has ended. So a session that waits for the same time
knows that it has, without a message: only then, or when its end is known otherwise, may another generation take its
place. If an agent of an earlier generation comes back after that, it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MARGIN = 2.0  # seconds that a session waits longer than an agent, whose processes get a moment to end


class LeaseHeld(Exception):
    """The generation before may still act: its lease has not ended."""


@dataclass
class _Lease:
    generation: int = 0
    is_connected: bool = False
    cut_at: float | None = None  # when its agent lost the connection; None if it is connected, or never was
    has_ended: bool = False


class Leases:
    """The leases of some workers.

    Args:
        seconds: how long an agent acts without its session; 0: it ends at once.
        now: returns the time of a monotonic clock.
    """

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self.seconds = seconds
        self._now = now
        self._leases: dict[str, _Lease] = {}

    def add(self, worker: str) -> None:
        """Add a worker, whose first generation may connect."""
        self._leases[worker] = _Lease()

    def generation(self, worker: str) -> int:
        """Return the generation of a worker that may act."""
        return self._leases[worker].generation

    def refusal(self, worker: str, generation: int) -> str | None:
        """Return why an agent may not connect, perhaps again; None where it may."""
        lease = self._leases[worker]
        if generation < lease.generation:
            return f"generation {lease.generation} of {worker} has taken the place of generation {generation}"
        if generation > lease.generation:
            return f"generation {generation} of {worker} has not begun"
        if lease.has_ended or (lease.cut_at is not None and self.seconds_left(worker) <= 0):
            return f"the lease of {worker} has ended"
        return None

    def connected(self, worker: str) -> None:
        """Record that the worker's agent is connected."""
        lease = self._leases[worker]
        lease.is_connected, lease.cut_at = True, None

    def cut(self, worker: str) -> None:
        """Record that the worker's agent has lost its connection."""
        lease = self._leases[worker]
        lease.is_connected, lease.cut_at = False, self._now()

    def ended(self, worker: str) -> None:
        """Record that nothing of the worker acts any more, according to its agent, its platform or its lease."""
        lease = self._leases[worker]
        lease.is_connected, lease.has_ended = False, True

    def seconds_left(self, worker: str) -> float:
        """Return how long a worker may still act; infinity while it is connected, 0 where it cannot act."""
        lease = self._leases[worker]
        if lease.is_connected:
            return float("inf")
        if lease.has_ended or lease.cut_at is None:  # a worker that never connected has no orders
            return 0.0
        if self.seconds == 0:
            return 0.0
        return max(0.0, lease.cut_at + self.seconds + MARGIN - self._now())

    def renew(self, worker: str) -> int:
        """Begin the worker's next generation, and return it.

        Raises:
            LeaseHeld: the generation before may still act.
        """
        left = self.seconds_left(worker)
        if left > 0:
            raise LeaseHeld(f"generation {self.generation(worker)} of {worker} may act for another {left:.1f} s")
        self._leases[worker] = _Lease(self._leases[worker].generation + 1)
        return self._leases[worker].generation
