"""GPUs for containers: which of them each worker gets, and how an engine is asked for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from muster.agent.claims import Claim, claim
from muster.errors import LaunchRefused
from muster.job import WorkerSpec
from muster.platforms import machine

if TYPE_CHECKING:
    from docker import APIClient

LIBPOD = "v4.0.0/libpod"  # the first version of Podman's own API that is known to take GPUs
CPU_PERIOD = 100_000  # microseconds in which a container may use its share of the cores


class GpuClaims:
    """The GPUs that one platform object has given to workers, each to one of them.

    Where the engine runs on this machine, they are claimed among all its users. Elsewhere only the engine knows them:
    they go by their numbers, and only the workers of this object are kept apart.
    """

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}

    def claim(self, handle: str, spec: WorkerSpec, is_here: bool) -> list[str]:
        """Return the ids of a worker's GPUs, which are its own until they are released.

        Raises:
            LaunchRefused: too few are free.
        """
        count = spec.resources.gpu
        taken = (claim(machine.gpus(), count) if is_here else self._numbered(count)) if count else Claim()
        if taken is None:
            raise LaunchRefused(
                f"{spec.name} could not be given {count} GPUs: other clusters have taken them.",
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


def device_requests(devices: Sequence[str]) -> dict[str, Any]:
    """Return the option by which Docker is asked for GPUs; no option for none."""
    from docker.types import DeviceRequest

    return {"device_requests": [DeviceRequest(device_ids=list(devices), capabilities=[["gpu"]])]} if devices else {}


def create_by_podman(client: APIClient, name: str, config: dict[str, Any], devices: Sequence[str]) -> None:
    """Create a container with GPUs by Podman's own API.

    Where it is asked as Docker is, Podman ignores device requests, and takes the CDI name of a GPU for a path.

    Args:
        client: client of the engine.
        name: name of the container.
        config: the container as Docker would be asked for it.
        devices: ids of the GPUs, by which the CDI specification of the engine's machine knows them.

    Raises:
        docker.errors.APIError: Podman refuses.
    """
    from docker.errors import create_api_error_from_http_exception
    from requests.exceptions import HTTPError

    asked = {"name": name, **_as_podman_takes_it(config), "devices": [{"path": f"nvidia.com/gpu={d}"} for d in devices]}
    answer = client.post(f"{client.base_url}/{LIBPOD}/containers/create", json=asked, timeout=client.timeout)
    try:
        answer.raise_for_status()
    except HTTPError as error:
        create_api_error_from_http_exception(error)


def _as_podman_takes_it(config: dict[str, Any]) -> dict[str, Any]:
    """Translate what Docker's API takes to what Podman's own takes."""
    limits = config["HostConfig"]
    return {
        "image": config["Image"],
        "entrypoint": config["Entrypoint"],
        "command": config["Cmd"],
        "hostname": config["Hostname"],
        "user": config["User"],
        "labels": config["Labels"],
        "env": dict(variable.split("=", 1) for variable in config["Env"] or ()),
        "mounts": [
            {
                "type": mount["Type"],
                "source": mount["Source"],
                "destination": mount["Target"],
                "options": ["rbind", "ro" if mount.get("ReadOnly") else "rw"],
            }
            for mount in limits["Mounts"]
        ],
        "init": limits["Init"],
        "no_new_privileges": "no-new-privileges" in limits["SecurityOpt"],
        "shm_size": limits["ShmSize"],
        "netns": {"nsmode": "bridge"},
        "networks": {network: {} for network in config["NetworkingConfig"]["EndpointsConfig"]},
        "resource_limits": {
            "cpu": {"period": CPU_PERIOD, "quota": int(limits["NanoCpus"] * CPU_PERIOD / 1e9)},
            "memory": {"limit": limits["Memory"], "swap": limits["MemorySwap"]},
            "pids": {"limit": limits["PidsLimit"]},
        },
    }
