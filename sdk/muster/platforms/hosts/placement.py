"""Placement of workers: on the first host that has a free slot, and their next generations on the same one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster.errors import LaunchRefused, ResourceError
from muster.job import WorkerSpec
from muster.text.arguments import Argument, ArgumentText

Key = tuple[str, str]  # a worker: its run and its name


class Placement:
    """The slots of some hosts.

    Args:
        slots: how many each host has.
        has_ended: says whether a worker has been launched and has ended.
    """

    def __init__(self, slots: Mapping[str, int], has_ended: Callable[[Key], bool]) -> None:
        self._slots = slots
        self._has_ended = has_ended
        self._placed: dict[Key, str] = {}

    def host_of(self, spec: WorkerSpec) -> str:
        """The host of a worker. Raises LaunchRefused where none has a slot for it."""
        key = (spec.run_id, spec.name)
        if key not in self._placed:
            taken = [host for worker, host in self._placed.items() if not self._has_ended(worker)]
            free = [host for host, slots in self._slots.items() if taken.count(host) < slots]
            if not free:
                raise LaunchRefused(
                    f"There is no slot for {spec.name}: all {sum(self._slots.values())} of the hosts are taken.",
                    worker=spec.name,
                    advice=ArgumentText("more slots: host:slots in ", Argument("hosts", "")),
                )
            self._placed[key] = free[0]
        return self._placed[key]

    def free(self, spec: WorkerSpec) -> None:
        """Take back the slot of a worker that was not launched."""
        self._placed.pop((spec.run_id, spec.name), None)

    def shares(self, workers: int) -> dict[str, int]:
        """Return how many of these workers each host gets. Raises ResourceError where there are too few slots."""
        slots = sum(self._slots.values())
        if workers > slots:
            raise ResourceError(
                f"{workers} workers are asked for, and the hosts have {slots} slot{'s' if slots != 1 else ''}.",
                advice=ArgumentText("more slots: host:slots in ", Argument("hosts", "")),
            )
        found, left = {}, workers
        for host, here in self._slots.items():
            found[host] = min(here, left)
            left -= found[host]
        return {host: count for host, count in found.items() if count}
