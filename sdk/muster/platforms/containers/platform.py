"""The platform ``containers``: workers in containers of Docker or Podman."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.agent.owners import owner
from muster.errors import PlatformError, PlatformUnsupported, ResourceError
from muster.job import Resources, Status, Worker, WorkerSpec, at_most
from muster.options.fields import option
from muster.platforms import machine
from muster.platforms.agents import default_log_cap
from muster.platforms.base import Cleaned, Platform, Reach, Storage, cores_in_words, memory_in_words, oldest_first
from muster.platforms.containers import states
from muster.platforms.containers import worker as containers
from muster.platforms.containers.cache import empty_cache, make_cache
from muster.platforms.containers.engine import Engine, connect
from muster.platforms.containers.gpus import GpuClaims
from muster.platforms.containers.guard import (
    OWNER,
    ContainerGuard,
    containers_with,
    make_homes,
    new_label,
    remove_everything,
    remove_left_behind,
    remove_orphaned_homes,
)
from muster.platforms.containers.images import (
    has_image,
    own_folders,
    pull,
    python_path,
    remove_tiny_images,
    tiny_image,
)
from muster.platforms.containers.network import Network, make_network, plan_network, session_address
from muster.platforms.containers.refusals import asking
from muster.platforms.containers.volumes import binds
from muster.platforms.parallel import at_once
from muster.text.arguments import Argument, ArgumentText

AT_ONCE = 8  # requests to the engine at the same time
STOP_SECONDS = 4.0  # time that an agent may take to end its processes and itself
AGAIN_SECONDS = 1.0  # after which it is asked again: a container ignores signals in the moment in which it starts
GONE = "The engine knows no container of that name; somebody has removed it."


@dataclass(eq=False, repr=False)
class ContainersPlatform(Platform):
    """Runs each worker in a container of its own, by Docker or Podman.

    Args:
        image: image of the containers; it needs Python 3.6 or later. None for the session's own Python and packages,
            mounted read-only, where the engine sees the session's files.
        engine: address of the engine, such as ``unix:///run/podman/podman.sock``; None for the one that Docker's and
            Podman's own tools would use.
        network: name of the containers' network; None for that of the session's own container, if it is in one of the
            engine's, and else for a new one for each platform object.
        volumes: folders of the engine's machine, or volumes by name, that all containers mount, each as
            ``docker run -v`` takes it, such as ``/data:/data:ro``.
        cache: whether the files of projects are kept on this machine for later runs, where the engine is on it.
        log_cap: largest size of a worker's log in bytes.
    """

    image: str | None = option(None, "Image of the workers' containers", default="this Python, mounted", metavar="NAME")
    engine: str | None = option(
        None, "Address of the Docker or Podman engine", default="found as docker does", metavar="URL"
    )
    network: str | None = option(None, "Network of the containers", default="one of their own", metavar="NAME")
    volumes: tuple[str, ...] = option((), "Folders to mount, in quotes", metavar="SOURCE:TARGET[:ro]")
    cache: bool = option(True, "Keep a project's files, so that the next run sends only what has changed")
    log_cap: int | None = option(
        None, "Largest size of a worker's log in bytes", default="64 MiB", metavar="BYTES", minimum=1
    )
    name = "containers"
    explain_seconds = 1.0
    storage = Storage.NOTHING

    def __post_init__(self) -> None:
        self.volumes = (self.volumes,) if isinstance(self.volumes, str) else tuple(self.volumes)
        self._connected: Engine | None = None
        self._network: Network | None = None
        self._has_network = False
        self._homes = ""
        self._guard: ContainerGuard | None = None
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}
        self._submitted: dict[str, list[str]] = {}
        self._told_to_stop: dict[str, float] = {}
        self._told_again: set[str] = set()
        self._waiting: dict[str, str] = {}  # progress of pulling the image, by worker that waits for it
        self._gpus = GpuClaims()
        self._starting = threading.Lock()
        self._is_closed = False
        self.python = "python3" if self.image else ""
        self._label = new_label()

    # -- before a launch ----------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Return, in words, the engine that runs the containers, and their image."""
        mounted = f", with {', '.join(self.volumes)}" if self.volumes else ""
        return f"{self.name} of {self._engine()}, image {self.image or 'made of this Python'}{mounted}"

    def check(self) -> None:
        """Raise PlatformUnsupported where no engine answers, or no image is given and it cannot see this Python.

        Raises JobError for a volume that cannot be mounted, and PlatformError for a network that will not do.
        """
        engine = self._engine()
        binds(self.volumes, engine.is_here)
        if not self.image and not engine.is_here:
            example = f", such as {engine.around.image}, of which this session's container is" if engine.around else ""
            raise PlatformUnsupported(
                f"{engine} does not see this machine's files, and so cannot run workers with this Python.",
                advice=ArgumentText(
                    Argument("image", ""), f" the name of an image with Python, and what the script imports{example}"
                ),
            )
        self._planned_network()

    def reach(self) -> Reach:
        """Return the address of the gateway of the containers' network, or else of this machine."""
        network = self._planned_network()
        address = session_address(self._engine(), network)
        return Reach(address, address, is_coming=address == network.gateway)

    def clean(self) -> Cleaned:
        """Remove the tiny images that no container uses, and the cache of projects' files."""
        images, files = remove_tiny_images(self._engine()), empty_cache()
        return Cleaned([*images.removed, *files.removed], [*images.left, *files.left])

    def shortages(self, wanted: Sequence[Resources]) -> list[str]:
        """Return the shortages of cores and memory on the engine's machine, in words."""
        engine = self._engine()
        for resources in dict.fromkeys(wanted):
            _check_resources(engine, {"each worker": resources})
        _check_gpus(engine, wanted)
        found = []
        if sum(resources.cpu for resources in wanted) > engine.cores:
            found.append(f"{cores_in_words(wanted)} on the {engine.cores} of the engine's machine.")
        if engine.memory and sum(resources.memory_bytes for resources in wanted) > engine.memory:
            found.append(
                f"{memory_in_words(wanted)} of the {engine.memory / 1e9:.1f} GB of the engine's machine: "
                "if the workers use all of theirs, the system ends some."
            )
        return found

    def _engine(self) -> Engine:
        with self._lock:
            if self._connected is None:
                self._connected = connect(self.engine)
            return self._connected

    def _planned_network(self) -> Network:
        if self._network is None:
            self._network = plan_network(self._engine(), self.network, self._label.rpartition(".")[2])
        return self._network

    # -- workers ------------------------------------------------------------------------------------------------------

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Start one container per spec. All exist when this returns, unless their image has to be pulled first.

        In that case the workers are queued, and fail if the image cannot be pulled.
        """
        if run_key in self._submitted:
            return self._submitted[run_key]
        self._is_closed = False
        engine = self._engine()
        _check_resources(engine, {spec.name: spec.resources for spec in specs})
        _check_gpus(engine, [spec.resources for spec in specs])
        handles = [containers.container_name(spec) for spec in specs]
        if self.image and not has_image(engine, self.image):
            self._queue(specs)
            threading.Thread(target=self._pull_and_start, args=(engine, specs), daemon=True, name="muster-pull").start()
        else:
            with self._starting:
                self._start(engine, specs)
        self._submitted[run_key] = handles
        return handles

    def _queue(self, specs: Sequence[WorkerSpec]) -> None:
        for spec in specs:
            handle = containers.container_name(spec)
            self._workers[handle] = Worker(handle, spec.name, created_at=time.time())
            self._waiting[handle] = ""

    def _pull_and_start(self, engine: Engine, specs: Sequence[WorkerSpec]) -> None:
        """Pull the image, and start the containers that wait for it unless they have been stopped meanwhile."""
        handles = [containers.container_name(spec) for spec in specs]
        failed: dict[str, Any] = {}
        try:
            pull(engine, self.image or "", lambda text: self._waiting.update(dict.fromkeys(handles, text)))
            with self._starting:
                if not self._is_over(handles):
                    self._start(engine, specs)
        except PlatformError as error:
            failed = {"reason": error.message, "advice": error.advice}
        except Exception as error:  # nothing else would report it from this thread
            failed = {"reason": f"{type(error).__name__}: {error}"}
        for handle in handles:
            if failed:
                self._workers[handle] = self._workers[handle].moved(Status.FAILED, finished_at=time.time(), **failed)
            self._waiting.pop(handle, None)

    def _is_over(self, handles: Sequence[str]) -> bool:
        return self._is_closed or any(handle in self._told_to_stop for handle in handles)

    def _start(self, engine: Engine, specs: Sequence[WorkerSpec]) -> None:
        """Create and start containers, all or none. Raises PlatformError."""
        if self._guard is None:
            with asking(engine, "The containers could not be listed"):
                remove_left_behind(engine.client)
            remove_orphaned_homes()
            self._guard = ContainerGuard(engine.url, self._label)
        setting = self._setting(engine)
        made: list[str] = []
        handles = [containers.container_name(spec) for spec in specs]
        try:
            given = [
                self._gpus.claim(handle, spec, engine.is_here) for handle, spec in zip(handles, specs, strict=True)
            ]

            def launch(spec: WorkerSpec, gpus: Sequence[str]) -> None:
                made.append(containers.create(engine, spec, setting, gpus))
                containers.start(engine, spec)  # at once, while the others are still being created

            at_once(lambda pair: launch(*pair), [*zip(specs, given, strict=True)], AT_ONCE)
        except BaseException:
            for name in made:
                with contextlib.suppress(PlatformError):
                    _end(engine, name)
            self._gpus.release(handles)
            raise
        now = time.time()
        for spec in specs:
            handle = containers.container_name(spec)
            self._workers[handle] = Worker(handle, spec.name, Status.STARTING, created_at=now, placed_at=now)

    def _setting(self, engine: Engine) -> containers.ContainerSetting:
        network = self._planned_network()
        if network.is_own and not self._has_network:
            make_network(engine, network, {OWNER: self._label})
            self._has_network = True
        if engine.is_here and not self._homes:
            with contextlib.suppress(OSError):  # the files are then copied into the containers
                self._homes = make_homes(self._label)
        image = self.image or tiny_image(engine)
        return containers.ContainerSetting(
            image=image,
            python="python3" if self.image else sys.executable,
            network=network.name,
            mounts=() if self.image else own_folders(),
            python_path=() if self.image else python_path(),
            has_agent=engine.is_here and not self.image,
            homes=self._homes,
            labels={OWNER: self._label},
            owner=(0, 0) if engine.is_rootless else (os.getuid(), os.getgid()),
            log_cap=self.log_cap or default_log_cap(),
            cache=make_cache() if self.cache and self._homes else "",
            binds=binds(self.volumes, engine.is_here),
        )

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Return the workers as the engine lists them, and those that have ended as their agents reported it."""
        known = [self._workers.get(handle) or Worker(handle, handle) for handle in handles]
        if all(worker.status.is_final for worker in known):
            return known
        engine = self._engine()
        with asking(engine, "The containers could not be listed"):
            listed = containers_with(engine.client, "muster.worker")
        entries = {str(name).lstrip("/"): entry for entry in listed for name in entry.get("Names") or []}
        found = [self._current(engine, worker, entries.get(worker.id)) for worker in known]
        self._gpus.release(worker.id for worker in found if worker.status.is_final)
        self._workers.update((worker.id, worker) for worker in found if worker.id in self._workers)
        return found

    def _current(self, engine: Engine, worker: Worker, entry: Mapping[str, Any] | None) -> Worker:
        """Return a worker in its current state, given its container as the engine lists it, if it does."""
        if worker.status.is_final:
            return worker
        if worker.id in self._waiting:
            if self._is_over([worker.id]):
                return worker.moved(Status.STOPPED, finished_at=time.time())
            return replace(worker, reason=self._waiting[worker.id] or None)
        if entry is None:
            status = Status.STOPPED if worker.id in self._told_to_stop else Status.FAILED
            return worker.moved(status, reason=GONE if status is Status.FAILED else None, finished_at=time.time())
        labels = entry.get("Labels") or {}
        worker = replace(worker, name=labels.get("muster.worker", worker.name))
        state = entry.get("State", "")
        if state == "running" and worker.running_at is None:
            worker = states.running(engine, worker)
        if state == "paused" or worker.reason:
            worker = replace(
                worker, reason=states.PAUSED.format(engine.product.lower(), worker.id) if state == "paused" else None
            )
        if state in ("exited", "dead", "stopped"):
            return states.ended(engine, worker, self.image, worker.id in self._told_to_stop)
        if worker.id not in self._told_to_stop:
            return worker
        self._insist(engine, worker.id, time.monotonic() - self._told_to_stop[worker.id])
        return worker.moved(Status.STOPPING)

    def _insist(self, engine: Engine, handle: str, seconds: float) -> None:
        """Ask a container again that was told to stop that long ago, and kill it in the end."""
        with contextlib.suppress(PlatformError):
            if seconds > STOP_SECONDS:
                _signal(engine, handle, "SIGKILL")
            elif seconds > AGAIN_SECONDS and handle not in self._told_again:
                self._told_again.add(handle)
                _signal(engine, handle, "SIGTERM")

    def stop(self, handles: Sequence[str]) -> None:
        """Ask the agents to end with SIGTERM; later polls ask once more, and kill those that take some seconds."""
        engine = self._engine()

        def stop(handle: str) -> None:
            known = self._workers.get(handle)
            if known is not None and known.status.is_final:
                return
            if handle not in self._told_to_stop:
                self._told_to_stop[handle] = time.monotonic()
                _signal(engine, handle, "SIGTERM")

        at_once(stop, handles, AT_ONCE)

    def list(self) -> list[Worker]:
        """Return all workers that this object has launched, oldest first."""
        return oldest_first(self.poll([*self._workers]))

    def logs(self, handle: str) -> Iterator[str]:
        """Yield the lines of a worker's log, from its container; none once that is removed."""
        engine = self._engine()
        described = states.inspect(engine, handle)
        log = ((described or {}).get("Config", {}).get("Labels") or {}).get("muster.log")
        return containers.log_lines(engine, handle, log) if log else iter(())

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all workers, and remove the containers, volumes and network that this object has made.

        Raises:
            PlatformError: the engine fails to; the guard keeps trying.
        """
        if not self._label.startswith(owner() + ".") or self._connected is None:  # a forked child's copy
            return
        engine = self._connected
        self._is_closed = True
        try:
            with self._starting, asking(engine, "The containers could not be removed"):
                at_once(lambda name: _end(engine, name), [*self._workers], AT_ONCE)
                remove_everything(engine.client, self._label)
        except BaseException:  # Ctrl-C while the containers end, too
            self._leave_to_guard()
            raise
        self._has_network = False
        self._homes = ""
        self._gpus.release_all()
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()
        for name, worker in self._workers.items():
            self._workers[name] = worker.moved(Status.STOPPED, finished_at=time.time())

    def _leave_to_guard(self) -> None:
        """Have the guard remove what could not be removed; the GPUs of its containers are released when it has."""
        guard, self._guard = self._guard, None
        gpus, self._gpus = self._gpus, GpuClaims()
        if guard is None:
            gpus.release_all()
        else:
            guard.clean_up(gpus.release_all)
        # What is launched from now on is not that guard's to remove.
        self._label, self._network, self._has_network, self._homes = new_label(), None, False, ""


def _check_resources(engine: Engine, wanted: Mapping[str, Resources]) -> None:
    """Raise ResourceError for a worker that asks for more than the engine's machine has."""
    here = "this machine" if engine.is_here else "the engine's machine"
    for name, resources in wanted.items():
        worker = name if name.rpartition("-")[2].isdecimal() else None
        if resources.cpu > engine.cores:
            raise ResourceError(
                f"{name} asks for {resources.cpu:g} cores; {here} has {engine.cores}.",
                worker=worker,
                advice=at_most("cpu", resources.cpu, engine.cores, worker),
            )
        if engine.memory and resources.memory_bytes > engine.memory:
            raise ResourceError(
                f"{name} asks for {resources.memory:g} GB of memory; {here} has {engine.memory / 1e9:.1f}.",
                worker=worker,
                advice=at_most("memory", resources.memory, engine.memory / 1e9, worker),
            )


def _check_gpus(engine: Engine, wanted: Iterable[Resources]) -> None:
    """Raise ResourceError where the workers ask for more GPUs than there are, if the engine is on this machine."""
    gpus = sum(resources.gpu for resources in wanted)
    if gpus and engine.is_here:
        machine.check_gpus(gpus, machine.gpus())


def _signal(engine: Engine, name: str, signame: str) -> None:
    """Send a signal to a container if it still runs."""
    from docker.errors import APIError

    with asking(engine, f"{name} could not be stopped"), contextlib.suppress(APIError):  # it has ended, or is gone
        engine.client.kill(name, signame)


def _end(engine: Engine, name: str) -> None:
    """Kill a container and remove it with its volumes, if it exists."""
    from docker.errors import NotFound

    _signal(engine, name, "SIGKILL")  # a removal alone would wait, for seconds with some engines
    with asking(engine, f"{name} could not be removed"), contextlib.suppress(NotFound):
        engine.client.remove_container(name, force=True, v=True)
