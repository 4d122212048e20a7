"""Placement of workers: on the first host that has a free slot, and their next generations on the same one.

A pool's own workers are such hosts, too, for the workers of the runs on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from muster.errors import LaunchRefused
from muster.job import Status, WorkerSpec

Key = tuple[str, str]  # a worker: its run and its name


class Placement:
    """The slots of some hosts.

    Args:
        slots: how many each host has.
        status_of: the status of a worker that has been launched; None of one that has not.
        refusal: the error for a worker, by its name, that finds no slot.
    """

    def __init__(
        self,
        slots: Mapping[str, int],
        status_of: Callable[[Key], Status | None],
        refusal: Callable[[str], LaunchRefused],
    ) -> None:
        self._slots = slots
        self._status_of = status_of
        self._refusal = refusal
        self._placed: dict[Key, str] = {}

    def place(self, specs: Sequence[WorkerSpec]) -> list[str]:
        """The hosts of some workers, which are theirs from now on, or none of them. Raises the refusal."""
        keys = [(spec.run_id, spec.name) for spec in specs]
        new = [key for key in keys if key not in self._placed]
        if new:
            wanted = set(keys)
            taken = Counter(
                host for worker, host in self._placed.items() if worker in wanted or not self._has_ended(worker)
            )
            free = [host for host, slots in self._slots.items() for _ in range(slots - taken[host])]
            if len(free) < len(new):
                raise self._refusal(new[len(free)][1])
            self._placed.update(zip(new, free))  # noqa: B905  the first of them
        return [self._placed[key] for key in keys]

    def take_back(self, specs: Sequence[WorkerSpec]) -> None:
        """Take back the slots of those workers that were never launched."""
        for key in [(spec.run_id, spec.name) for spec in specs]:
            if self._status_of(key) is None:
                self._placed.pop(key, None)

    def _has_ended(self, worker: Key) -> bool:
        status = self._status_of(worker)
        return status is not None and status.is_final
