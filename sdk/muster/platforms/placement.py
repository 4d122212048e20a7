"""Placement of workers: each on the host of its last generation, or on the first that is up and has a free slot.

For runs on a pool, the hosts are the pool's own workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from muster.errors import LaunchRefused
from muster.job import Status, WorkerSpec

Key = tuple[str, str, int]  # a worker's run id, name and generation


def key_of(spec: WorkerSpec) -> Key:
    """Return the key of a worker's slot."""
    return spec.run_id, spec.name, spec.generation


class Placement:
    """The slots of some hosts.

    Args:
        slots: number of slots by host.
        status_of: returns the status of a worker; None where it has not been launched.
        refusal: returns the error for a worker without a slot, given its name.
        is_up: returns whether a host can take workers at once; those that cannot come last.
    """

    def __init__(
        self,
        slots: Mapping[str, int],
        status_of: Callable[[Key], Status | None],
        refusal: Callable[[str], LaunchRefused],
        is_up: Callable[[str], bool] = lambda host: True,
    ) -> None:
        self._slots = slots
        self._status_of = status_of
        self._refusal = refusal
        self._is_up = is_up
        self._placed: dict[Key, str] = {}

    def place(self, specs: Sequence[WorkerSpec]) -> list[str]:
        """Give each of these workers a slot, all or none, and return their hosts. Raises the refusal."""
        keys = [key_of(spec) for spec in specs]
        new = [key for key in keys if key not in self._placed]
        if new:
            self._placed.update(self._hosts_for(new))
        return [self._placed[key] for key in keys]

    def _hosts_for(self, new: Sequence[Key]) -> dict[Key, str]:
        """Return a host for each worker: that of its last generation where a slot is free there, else another.

        A replaced generation gives up its slot even where its host does not answer, and so it may still run.
        """
        newest = {_worker(key): key for key in self._placed}  # generations are placed in order
        replaced = set(map(_worker, new))
        taken = Counter(
            self._placed[key] for worker, key in newest.items() if worker not in replaced and not self._has_ended(key)
        )
        hosts = sorted(self._slots, key=self._is_up, reverse=True)  # stable: in their order otherwise
        free = Counter({host: self._slots[host] - taken[host] for host in hosts})
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
        """Free the slots of those among these workers that were never launched."""
        for key in map(key_of, specs):
            if self._status_of(key) is None:
                self._placed.pop(key, None)

    def _has_ended(self, key: Key) -> bool:
        status = self._status_of(key)
        return status is not None and status.is_final


def _worker(key: Key) -> tuple[str, str]:
    return key[:2]
