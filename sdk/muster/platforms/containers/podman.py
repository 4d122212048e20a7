"""Creation of containers with GPUs by Podman's own API.

Where it is asked as Docker is, Podman ignores device requests, and takes the CDI name of a GPU for a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docker import APIClient

LIBPOD = "v4.0.0/libpod"  # the first version of Podman's own API that is known to take GPUs
CPU_PERIOD = 100_000  # microseconds in which a container may use its share of the cores


def create_by_podman(client: APIClient, name: str, config: dict[str, Any], devices: Sequence[str]) -> None:
    """Create a container with GPUs by Podman's own API.

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
        "stop_timeout": config["StopTimeout"],
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
