"""The container of one worker: its creation, the files that are put into it, and the files that are read from it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from muster.agent.places import is_symbolic
from muster.agent.project import CACHE_BYTES
from muster.errors import LaunchRefused
from muster.job import WorkerSpec
from muster.platforms.agents import LARGEST_NEWS, agent_config
from muster.platforms.containers.engine import Engine
from muster.platforms.containers.gpus import device_requests
from muster.platforms.containers.images import file, folder
from muster.platforms.containers.podman import create_by_podman
from muster.platforms.containers.refusals import asking

AGENT = Path(__file__).resolve().parents[2] / "agent"
HOME = "/muster"  # folder of the agent and its files in a container
CONFIG, NEWS, CACHE = f"{HOME}/config", f"{HOME}/news", f"{HOME}/cache"
LARGEST_LOG = 1 << 30  # bytes that are read from a container at most
TRIES, TRY_SECONDS = 5, 0.1  # to read a file
AGENT_MEMORY = 64 << 20  # bytes that a container gets for the agent, on top of the worker's memory
PIDS = 16384  # processes and threads of a container at most
STOP_SECONDS = 10  # from somebody's stop to a kill, as usual; Podman would give none where it is asked as Docker is
SYSTEM_FOLDERS = {
    "/",
    "/bin",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
}
VARIABLES = {
    "id": "HOSTNAME",
    "address": "MUSTER_ADDRESS",
    "session": "MUSTER_SESSION_ADDRESS",
    "own": "MUSTER_CONTAINER",
}


@dataclass(frozen=True)
class ContainerSetting:
    """The settings that the containers of one submission share.

    Attributes:
        image: name or id of their image.
        python: the interpreter that runs the agent.
        network: name of their network.
        mounts: folders of the engine's machine that are mounted at the same path, read-only.
        python_path: folders among these that are on the interpreter's ``PYTHONPATH``.
        has_agent: whether the agent's source is mounted, rather than copied into each container.
        homes: folder of this machine with a folder for each container, which is mounted as its home, as engines take
            long to copy files into a container. Empty where the engine does not see this machine's files.
        labels: labels of all containers.
        owner: user and group id of their processes.
        log_cap: largest size of a worker's log in bytes.
        cache: folder of this machine with files of earlier runs' projects, which is mounted; empty for none.
        binds: what else is mounted, as ``docker run -v`` takes it.
    """

    image: str
    python: str
    network: str
    mounts: Sequence[str]
    python_path: Sequence[str]
    has_agent: bool
    homes: str
    labels: Mapping[str, str]
    owner: tuple[int, int]
    log_cap: int
    cache: str = ""
    binds: Sequence[str] = ()


def container_name(spec: WorkerSpec) -> str:
    """Return the name of a worker's container, which is also its handle."""
    name = f"muster-{spec.run_id}-{spec.name}" + (f".{spec.generation}" if spec.generation else "")
    return re.sub(r"[^a-zA-Z0-9_.-]", "_", name)


def create(engine: Engine, spec: WorkerSpec, setting: ContainerSetting, devices: Sequence[str] = ()) -> str:
    """Create a worker's container with the files of its agent, without starting it, and return its name.

    Raises:
        LaunchRefused: the engine refuses.
        EngineGone: the engine does not answer.
    """
    client = engine.client
    name = container_name(spec)
    home = lay_out(spec, setting)
    by_podman = bool(devices) and engine.product == "Podman"
    with asking(engine, f"{spec.name} could not be created", spec.name):
        config = client.create_container_config(
            setting.image,
            entrypoint=[setting.python],
            command=["-I", "-S", f"{HOME}/agent/__main__.py", "worker", CONFIG],
            hostname=spec.name,
            user=f"{setting.owner[0]}:{setting.owner[1]}",
            labels={**setting.labels, **_labels(spec)},
            environment=_environment(setting),
            stop_timeout=STOP_SECONDS,
            host_config=_limits(engine, spec, setting, () if by_podman else devices, home),
            networking_config=client.create_networking_config({setting.network: client.create_endpoint_config()}),
        )
        if by_podman:
            create_by_podman(client, name, config, devices)
        else:
            client.create_container_from_config(config, name)
        if not home:
            client.put_archive(name, "/", archive(spec, setting))
    return name


def lay_out(spec: WorkerSpec, setting: ContainerSetting) -> str:
    """Write the files of a worker's home into a folder of this machine, and return that; empty where they are copied.

    Raises:
        LaunchRefused: the files cannot be written.
    """
    if not setting.homes or _folders(spec, setting):
        return ""
    target = Path(setting.homes) / container_name(spec)
    home = Path(f"{target}{HOME}")
    try:
        with tarfile.open(fileobj=io.BytesIO(archive(spec, setting))) as tar:
            tar.extraction_filter = _as_it_is
            tar.extractall(target, numeric_owner=True)
        # Where agent and cache are mounted: folders that the engine made for that would be root's, and stay.
        for mounted in ("agent", *(["cache"] if setting.cache else [])):
            (home / mounted).mkdir(exist_ok=True)
    except OSError as error:
        raise LaunchRefused(f"{spec.name} could not be created: {error}.", worker=spec.name) from error
    return str(home)


def _as_it_is(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    """A filter of tarfile's that changes nothing; as an argument, Python 3.11.2 of Debian 12 would not take it."""
    return member


def _environment(setting: ContainerSetting) -> dict[str, str]:
    found = {"PYTHONPATH": os.pathsep.join(setting.python_path)} if setting.python_path else {}
    return {**found, "HOME": f"{HOME}/home"} if setting.owner[0] else found


def start(engine: Engine, spec: WorkerSpec) -> None:
    """Start a worker's container. Raises what ``create`` raises."""
    with asking(engine, f"{spec.name} could not be started", spec.name):
        engine.client.start(container_name(spec))


def _limits(
    engine: Engine, spec: WorkerSpec, setting: ContainerSetting, devices: Sequence[str], home: str
) -> dict[str, Any]:
    from docker.types import Mount

    memory = spec.resources.memory_bytes + AGENT_MEMORY
    mounts = [Mount(path, path, type="bind", read_only=True) for path in setting.mounts]
    if home:
        mounts.append(Mount(HOME, home, type="bind"))
    if setting.has_agent:
        mounts.append(Mount(f"{HOME}/agent", str(AGENT), type="bind", read_only=True))
    if setting.cache and home:
        mounts.append(Mount(CACHE, setting.cache, type="bind"))
    limits: dict[str, Any] = engine.client.create_host_config(
        network_mode=setting.network,
        mounts=mounts,
        binds=list(setting.binds),
        init=True,
        nano_cpus=int(spec.resources.cpu * 1e9),
        mem_limit=memory,
        memswap_limit=memory,
        shm_size=memory,
        pids_limit=PIDS,
        security_opt=["no-new-privileges"],
        **device_requests(devices),
    )
    return limits


def _labels(spec: WorkerSpec) -> dict[str, str]:
    return {
        "muster.run": spec.run_id,
        "muster.worker": spec.name,
        "muster.role": spec.role,
        "muster.index": str(spec.index),
        "muster.generation": str(spec.generation),
        "muster.log": str(agent_config(spec, 0, places_of(spec))["log"]),
    }


def archive(spec: WorkerSpec, setting: ContainerSetting) -> bytes:
    """Return a tar of the files of a container's home, among them the config, which only its owner may read."""
    config = {
        **agent_config(spec, setting.log_cap, places_of(spec)),
        "news": NEWS,
        "variables": VARIABLES,
        "counts_gpus": True,
        "has_cgroup": True,
    }
    if setting.cache:
        config["cache"] = {"folder": CACHE, "most": CACHE_BYTES, "known_as": setting.cache}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in _folders(spec, setting):
            tar.addfile(folder(path.lstrip("/"), 0o755, setting.owner))
        tar.addfile(folder(HOME.lstrip("/"), 0o700, setting.owner))
        tar.addfile(folder(f"{HOME}/home".lstrip("/"), 0o700, setting.owner))
        tar.addfile(*file(CONFIG.lstrip("/"), json.dumps(config).encode(), 0o600, setting.owner))
        if not setting.has_agent:
            tar.addfile(folder(f"{HOME}/agent".lstrip("/"), 0o755, setting.owner))
            for source in sorted(AGENT.glob("*.py")):
                tar.addfile(*file(f"{HOME}/agent/{source.name}".lstrip("/"), source.read_bytes(), 0o644, setting.owner))
        end = packed.tell() + 2 * tarfile.BLOCKSIZE
    # Without the padding after the two blocks that end an archive: Podman may stop reading before it, and then fails.
    return packed.getvalue()[:end]


def places_of(spec: WorkerSpec) -> dict[str, str]:
    """Return the places, by name, of a worker that has no paths of the session's machine; empty for others."""
    if not is_symbolic(str(spec.scratch)):
        return {}
    return {name: f"{HOME}/{name}" for name in ("library", "project", "run", "scratch")}


def _folders(spec: WorkerSpec, setting: ContainerSetting) -> list[str]:
    """Return the folders that a worker needs and may not make by itself, as its user can write to few folders."""
    if is_symbolic(str(spec.scratch)):
        return []
    wanted = {spec.cwd, os.path.dirname(str(spec.log)), os.path.dirname(str(spec.scratch))} - SYSTEM_FOLDERS
    return sorted(path for path in wanted if not any(PurePosixPath(path).is_relative_to(own) for own in setting.mounts))


def news(engine: Engine, name: str) -> bytes:
    """Return what a worker's agent has left for the platform; nothing where it could not."""
    return read_file(engine, name, NEWS) or b""


def log_lines(engine: Engine, name: str, log: str) -> Iterator[str]:
    """Yield the lines of a log in a container, its older part first."""
    for path in (f"{log}.1", log):
        text = (read_file(engine, name, path, LARGEST_LOG) or b"").decode("utf-8", "surrogateescape")
        yield from (line for line in text.removesuffix("\n").split("\n") if text)


def read_file(engine: Engine, name: str, path: str, most: int = LARGEST_NEWS) -> bytes | None:
    """Return the content of a file in a container, which may have ended; None for no file, or one that is too large.

    Raises:
        EngineGone: the engine does not answer.
    """
    for _ in range(TRIES):
        packed = _get(engine, name, path, most)
        if packed is None:
            return None
        with contextlib.suppress(tarfile.ReadError), tarfile.open(fileobj=packed) as tar:
            member = next((member for member in tar if member.isfile()), None)
            content = tar.extractfile(member) if member else None
            return content.read() if content else None
        time.sleep(TRY_SECONDS)  # Podman sends nothing while it cleans up after a container
    return None


def _get(engine: Engine, name: str, path: str, most: int) -> io.BytesIO | None:
    from docker.errors import APIError

    packed = io.BytesIO()
    with asking(engine, f"{path} of {name} could not be read"):
        try:
            stream, _ = engine.client.get_archive(name, path)
            for piece in stream:
                if packed.tell() > most:  # the file may be of any size
                    return None
                packed.write(piece)
        except APIError:
            return None
    packed.seek(0)
    return packed
