"""GPUs for containers: which of them each worker gets, and how an engine is asked for them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from muster.agent.claims import Claim, claim
from muster.errors import LaunchRefused
from muster.job import WorkerSpec
from muster.platforms import machine
from muster.platforms.base import gpus_in_words
from muster.runtime.forks import in_forked_children


class GpuClaims:
    """The GPUs that one platform object has given to workers, each to one of them.

    Where the engine runs on this machine, they are claimed among all its users. Elsewhere only the engine knows them:
    they go by their numbers, and only the workers of this object are kept apart.
    """

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        _all.add(self)

    def claim(self, handle: str, spec: WorkerSpec, is_here: bool) -> list[str]:
        """Return the ids of a worker's GPUs, which are its own until they are released.

        Raises:
            LaunchRefused: too few are free.
        """
        count = spec.resources.gpu
        taken = (claim(machine.gpus(), count) if is_here else self._numbered(count)) if count else Claim()
        if taken is None:
            raise LaunchRefused(
                f"{spec.name} could not be given {gpus_in_words(count)}: too few are free; "
                "other clusters may have them.",
                worker=spec.name,
                advice="end them, or ask for less",
            )
        self._claims[handle] = taken
        return taken.devices

    def release(self, handles: Iterable[str]) -> None:
        """Release the GPUs of workers that have ended."""
        for handle in handles:
            taken = self._claims.pop(handle, None)
            if taken is not None:
                taken.close()

    def release_all(self) -> None:
        """Release the GPUs of all workers."""
        self.release([*self._claims])

    def _numbered(self, count: int) -> Claim:
        given = {device for taken in self._claims.values() for device in taken.devices}
        free = (str(number) for number in itertools.count() if str(number) not in given)
        numbered = Claim()
        numbered.devices = list(itertools.islice(free, count))
        return numbered


_all: weakref.WeakSet[GpuClaims] = weakref.WeakSet()


def _release_in_child() -> None:
    """Release a forked child's part in all claims, or it would keep the GPUs that the session has released."""
    for claims in list(_all):
        claims.release_all()


in_forked_children(_release_in_child)


def device_requests(devices: Sequence[str]) -> dict[str, Any]:
    """Return the option by which Docker is asked for GPUs; no option for none."""
    from docker.types import DeviceRequest

    return {"device_requests": [DeviceRequest(device_ids=list(devices), capabilities=[["gpu"]])]} if devices else {}
