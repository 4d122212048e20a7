"""Placement of workers: on the host of their last generation, or the first that has a free slot.

A pool's own workers are such hosts, too, for the workers of the runs on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from muster.errors import LaunchRefused
from muster.job import Status, WorkerSpec

Key = tuple[str, str, int]  # a worker: its run, its name and its generation


def key_of(spec: WorkerSpec) -> Key:
    """Return what a worker's slot is held under."""
    return spec.run_id, spec.name, spec.generation


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
        keys = [key_of(spec) for spec in specs]
        new = [key for key in keys if key not in self._placed]
        if new:
            self._placed.update(self._hosts_for(new))
        return [self._placed[key] for key in keys]

    def _hosts_for(self, new: Sequence[Key]) -> dict[Key, str]:
        """Return a host for each worker: that of its last generation where there is a free slot, or another one.

        A generation that is replaced hands its slot on, also where its host is silent, and it may not have ended.
        """
        newest = {_worker(key): key for key in self._placed}  # as a worker's generations come in their order
        replaced = set(map(_worker, new))
        taken = Counter(
            self._placed[key] for worker, key in newest.items() if worker not in replaced and not self._has_ended(key)
        )
        free = Counter({host: slots - taken[host] for host, slots in self._slots.items()})
        if free.total() < len(new):
            raise self._refusal(new[free.total()][1])
        found: dict[Key, str] = {}
        for key in new:
            before = newest.get(_worker(key))
            if before and free[self._placed[before]]:
                found[key] = self._placed[before]
                free[found[key]] -= 1
        return found | dict(zip([key for key in new if key not in found], free.elements()))  # noqa: B905  the first

    def take_back(self, specs: Sequence[WorkerSpec]) -> None:
        """Take back the slots of those workers that were never launched."""
        for key in map(key_of, specs):
            if self._status_of(key) is None:
                self._placed.pop(key, None)

    def _has_ended(self, key: Key) -> bool:
        status = self._status_of(key)
        return status is not None and status.is_final


def _worker(key: Key) -> tuple[str, str]:
    return key[:2]
