"""Placement of workers: on the first host that has a free slot, and their next generations on the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

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

    def place(self, specs: Sequence[WorkerSpec]) -> list[str]:
        """The hosts of some workers, which are theirs from now on. Raises LaunchRefused where one finds no slot."""
        keys = [(spec.run_id, spec.name) for spec in specs]
        if not all(key in self._placed for key in keys):
            taken = Counter(host for worker, host in self._placed.items() if not self._has_ended(worker))
            free = (host for host, slots in self._slots.items() for _ in range(slots - taken[host]))
            for key, spec in zip(keys, specs, strict=True):
                if key not in self._placed:
                    self._placed[key] = self._next(free, spec)
        return [self._placed[key] for key in keys]

    def _next(self, free: Iterator[str], spec: WorkerSpec) -> str:
        host = next(free, None)
        if host is None:
            raise LaunchRefused(
                f"There is no slot for {spec.name}: all {sum(self._slots.values())} of the hosts are taken.",
                worker=spec.name,
                advice=ArgumentText("more slots: host:slots in ", Argument("hosts", "")),
            )
        return host

    def host_of(self, spec: WorkerSpec) -> str:
        """The host of one worker, as ``place`` has it."""
        return self.place([spec])[0]

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
