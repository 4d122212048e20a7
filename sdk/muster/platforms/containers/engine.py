"""The engine that runs containers, Docker or Podman: its socket, and facts about it.

Both offer the same API, for which the ``docker`` package is the client.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.errors import PlatformUnsupported
from muster.platforms import machine
from muster.platforms.containers.addresses import EngineAddress, candidates
from muster.platforms.containers.refusals import START_ENGINE, knock, system_error
from muster.runtime.extras import extra

if TYPE_CHECKING:
    from docker import APIClient

TIMEOUT = 30.0  # seconds that an engine may take to answer
# A container's own files, as engines mount them into it, in what the kernel tells of mounts.
OWN_FILES = re.compile(r"/([0-9a-f]{64})/(?:userdata/)?(?:hostname|hosts|resolv\.conf) /(?:etc|run)/")
NO_NETWORKS = ("host", "none")  # of their names


@dataclass(frozen=True)
class OwnContainer:
    """The container that this session is in.

    Attributes:
        image: its image, as somebody has named it.
        addresses: its address on each of its networks, by name.
    """

    image: str
    addresses: Mapping[str, str]


@dataclass(frozen=True)
class Engine:
    """A container engine that has answered, with facts about it.

    Attributes:
        client: client of its API.
        url: address at which it listens.
        source: how the address was found.
        product: ``Docker`` or ``Podman``.
        version: its version.
        cores, memory: of its machine; memory in bytes.
        is_rootless: whether it runs as an ordinary user.
        is_here: whether it runs on this session's machine, and so sees its files and network.
        around: the container that this session is in, if it is one of this engine's.
    """

    client: APIClient
    url: str
    source: str
    product: str
    version: str
    cores: int
    memory: int
    is_rootless: bool
    is_here: bool
    around: OwnContainer | None = None

    def __str__(self) -> str:
        return f"{self.product} {self.version} ({self.url}, {self.source})"


def connect(asked: str | None = None, environ: Mapping[str, str] = os.environ) -> Engine:
    """Find an engine that answers.

    Args:
        asked: address at which it listens; None to search for it.
        environ: the environment, which may name the address.

    Raises:
        ExtraMissing: the package ``docker`` is not installed.
        PlatformUnsupported: there is none, it cannot be reached from here, or this user may not use it.
    """
    with extra("containers"):
        import docker  # noqa: F401
    found = candidates(asked, environ)
    if not found:
        raise PlatformUnsupported(
            "No Docker and no Podman was found here: there is no socket of either, neither DOCKER_HOST nor "
            "CONTAINER_HOST is set, and neither a context of Docker's nor a connection of Podman's is chosen.",
            advice=START_ENGINE,
        )
    troubles: list[PlatformUnsupported] = []
    for candidate in found:
        try:
            return _ask(candidate, environ)
        except PlatformUnsupported as error:
            troubles.append(error)
    raise troubles[0]


def _ask(address: EngineAddress, environ: Mapping[str, str]) -> Engine:
    from docker import APIClient
    from docker.constants import DEFAULT_DOCKER_API_VERSION
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env, version_lt
    from requests.exceptions import RequestException

    settings = {key: value for key, value in kwargs_from_env(environ).items() if key == "tls"}

    def make(version: str) -> APIClient:
        client = APIClient(address.url, version=version, timeout=TIMEOUT, use_ssh_client=True, **settings)
        client.headers["Connection"] = "close"  # so that no connections are kept open, which nothing would close
        return client

    try:
        peer = knock(address.url)
        client = make(DEFAULT_DOCKER_API_VERSION)
        # The client's own detection asks for the version, which takes Podman half a second.
        answer = client.get(f"{client.base_url}/_ping", timeout=TIMEOUT)
        spoken = answer.headers.get("Api-Version", "")
        if spoken and version_lt(spoken, DEFAULT_DOCKER_API_VERSION):
            client = make(spoken)
        product = "Podman" if "Libpod-API-Version" in answer.headers else "Docker"
        is_forwarded = peer is not None and _is_forwarded(peer[0])
        if peer and product == "Podman" and not is_forwarded:
            info = _info_of_podman(peer, answer.headers)
        else:
            info = client.info()
        around = _own_container(client)
    except (DockerException, RequestException, OSError, ValueError) as error:
        raise _not_reached(address, error) from error
    return Engine(
        client=client,
        url=address.url,
        source=address.source,
        product=product,
        version=str(info.get("ServerVersion", "")),
        cores=int(info.get("NCPU") or 1),
        memory=int(info.get("MemTotal") or 0),
        is_rootless=any("rootless" in option for option in info.get("SecurityOptions") or []),
        is_here=address.url.startswith("unix://")
        and not is_forwarded
        and around is None
        and os.path.exists(info.get("DockerRootDir") or ""),
        around=around,
    )


def _own_container(client: APIClient) -> OwnContainer | None:
    """Return the container that this session is in; None where it is in none that the engine knows."""
    from docker.errors import NotFound

    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    for container in dict.fromkeys(OWN_FILES.findall(mounts)):
        try:
            found = client.inspect_container(container)
        except NotFound:  # a container of another engine
            continue
        networks = (found.get("NetworkSettings") or {}).get("Networks") or {}
        addresses = {name: str(told.get("IPAddress") or "") for name, told in networks.items()}
        return OwnContainer(
            str((found.get("Config") or {}).get("Image") or ""),
            {name: address for name, address in addresses.items() if address and name not in NO_NETWORKS},
        )
    return None


def _is_forwarded(listener: int) -> bool:
    """Return whether the process that made a socket is ssh, which forwards it to another machine.

    With ``ssh -f`` that process has ended: its child goes on. Those of engines and of systemd live as long as they.
    """
    try:
        os.kill(listener, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's
    try:
        return Path(f"/proc/{listener}/comm").read_text().strip() == "ssh"
    except OSError:
        return False


def _info_of_podman(peer: tuple[int, int], headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the info of a Podman on this machine without asking it, which would take a second and more."""
    return {
        "ServerVersion": headers.get("Libpod-API-Version", ""),
        "NCPU": len(machine.cores()),
        "MemTotal": machine.memory_bytes(),
        "SecurityOptions": ["name=rootless"] if peer[1] else [],
        "DockerRootDir": "/",
    }


def _not_reached(address: EngineAddress, error: Exception) -> PlatformUnsupported:
    """Return the error for an engine that does not answer, or that this user may not use."""
    where = f"{address.url} ({address.source})"
    cause = system_error(error)
    if isinstance(cause, PermissionError):
        return PlatformUnsupported(
            f"This user may not use the container engine at {where}: permission denied.",
            advice="ask for membership of the group that owns the socket (usermod -aG docker USER, then log in again), "
            "or use a rootless Podman",
        )
    if isinstance(cause, FileNotFoundError):
        return PlatformUnsupported(f"There is no container engine at {where}: no such socket.", advice=START_ENGINE)
    if isinstance(cause, ConnectionRefusedError):
        return PlatformUnsupported(
            f"The container engine at {where} does not run: nobody listens on its socket.", advice=START_ENGINE
        )
    return PlatformUnsupported(f"The container engine at {where} does not answer: {cause}.", advice=START_ENGINE)
