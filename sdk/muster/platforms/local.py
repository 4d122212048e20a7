"""The platform of the session's own machine: workers are processes, each with its own loopback address.

A guard process (:mod:`muster.agent.guard`) forks the agents and outlives the session, so that no process or file is
left behind, whatever happens to the notebook.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from muster.agent import leftovers, linux
from muster.agent.places import is_symbolic, resolve
from muster.agent.ports import random_loopback_address
from muster.agent.removal import remove_folder
from muster.errors import LaunchRefused, PlatformError, PlatformUnsupported, ResourceError
from muster.job import Resources, Status, Worker, WorkerSpec, at_most
from muster.options.fields import option
from muster.platforms import guards, machine
from muster.platforms.agents import agent_config, default_log_cap
from muster.platforms.base import Platform, Storage, cores_in_words, memory_in_words, oldest_first, read_log
from muster.platforms.guard_process import GuardGone, GuardProcess
from muster.records.scratch import make_scratch, scratch_of_this_session

LONGEST_SOCKET_PATH = 107  # bytes, of any Unix socket


@dataclass(eq=False, repr=False)
class LocalPlatform(Platform):
    """Runs workers on this machine, which must run Linux.

    Each GPU is given to one worker only, and each core to one cluster, whose workers share it. Where there are not
    enough cores for that, clusters share them, too, and only their numbers of threads are limited.

    Args:
        log_cap: largest size of a worker's log in bytes; as much of its older part is kept in ``<log>.1``. None for
            ``MUSTER_LOG_CAP`` of the environment, or else 64 MiB.
    """

    log_cap: int | None = option(
        None, "Largest size of a worker's log in bytes", default="64 MiB", metavar="BYTES", minimum=1
    )
    name = "local"
    lease_seconds = 0.0

    def __post_init__(self) -> None:
        self._log_cap = self.log_cap or default_log_cap()
        self._guard: GuardProcess | None = None
        self._starting = threading.Lock()
        self._sshd: machine.SshServer | None = None
        self._workers: dict[str, Worker] = {}
        self._specs: dict[str, WorkerSpec] = {}
        self._places_folder: Path | None = None

    @property
    def has_lost_guard(self) -> bool:
        """True if the guard has been killed, so that nothing can be launched any more before ``close``."""
        return self._guard is not None and not self._guard.is_running

    def describe(self) -> str:
        """Return, in words, where the workers run."""
        return "this machine" if self.name == "local" else self.name

    def check(self) -> None:
        """Raise PlatformUnsupported on other systems than Linux."""
        if not sys.platform.startswith("linux"):
            raise PlatformUnsupported(
                f"Local workers need Linux; this is {sys.platform}.",
                advice="run the notebook on Linux, or in a Linux container or virtual machine",
            )

    def check_sshd(self) -> None:
        """Raise PlatformUnsupported where this machine has no sshd, or sshd would not let this user log in."""
        self._find_sshd()

    def shortages(self, wanted: Sequence[Resources]) -> list[str]:
        """Return a shortage of cores or memory, in words; GPUs are never shared."""
        for resources in dict.fromkeys(wanted):
            _check_resources({"each worker": resources})
        gpus = sum(resources.gpu for resources in wanted)
        machine.check_gpus(gpus, machine.gpus() if gpus else [])
        cores, memory = len(machine.cores()), machine.memory_bytes()
        found = []
        if sum(resources.cpu for resources in wanted) > cores:
            found.append(f"{cores_in_words(wanted)} on this machine's {cores}: they share them, and each is slower.")
        if sum(resources.memory_bytes for resources in wanted) > memory:
            found.append(
                f"{memory_in_words(wanted)} of this machine's {memory / 1e9:.1f} GB: "
                "if the workers use all of theirs, the system ends some."
            )
        return found

    def warm_up(self) -> None:
        """Start the guard, whose imports then run while the launch is prepared."""
        self._start_guard()

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Fork one agent per spec, each with its own loopback address. Takes some hundredths of a second."""
        self.check()
        specs = [self._placed(spec) for spec in specs]
        gpus = machine.gpus() if any(spec.resources.gpu for spec in specs) else []
        _check_resources({spec.name: spec.resources for spec in specs})
        machine.check_gpus(sum(spec.resources.gpu for spec in specs), gpus)
        self.warm_up()
        sshd = self._find_sshd() if any(spec.ssh for spec in specs) else None
        try:
            for spec in specs:
                _make_folders(spec)
            answer = self._ask_for_agents(specs, run_key, gpus, sshd)
        except BaseException:
            try:
                self._stop_unheard(specs)
            finally:
                for spec in specs:
                    remove_folder(spec.scratch)
            raise
        workers = [guards.worker_of(facts) for facts in answer["workers"]]
        self._workers.update((worker.id, worker) for worker in workers)
        self._specs.update((worker.id, spec) for worker, spec in zip(workers, specs, strict=True))
        return [worker.id for worker in workers]

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Return the workers as their guards report them."""
        self._refresh()
        others = guards.poll([handle for handle in handles if handle not in self._workers])
        return [self._workers.get(handle) or others[handle] for handle in handles]

    def stop(self, handles: Sequence[str]) -> None:
        """Ask the agents to end: SIGTERM to their processes, and SIGKILL a second later."""
        own = [handle for handle in handles if handle in self._workers]
        if self._guard is not None and own:
            with contextlib.suppress(GuardGone):
                self._guard.ask("stop", ids=own)
        guards.stop([handle for handle in handles if handle not in self._workers])

    def list(self) -> list[Worker]:
        """Return all workers that this object has launched, oldest first."""
        self._refresh()
        return oldest_first(self._workers.values())

    def logs(self, handle: str) -> Iterator[str]:
        """Yield the lines of a worker's log; bytes that are not UTF-8 become lone surrogates."""
        spec = self._specs.get(handle)
        log = spec.log if spec else guards.log_of(handle)
        return read_log(log) if log else iter(())

    def close(self) -> None:
        """End all workers and the guard, and wait until they are gone, a few seconds at most."""
        guard, self._guard = self._guard, None
        if guard is None or not guard.is_ours:
            return
        with contextlib.suppress(PlatformError):  # the guard may not answer in time
            self._refresh_from(guard)
        if not guard.close():
            self._sweep()
        if self._places_folder is not None:
            remove_folder(self._places_folder)
            self._places_folder = None
        for worker in self._workers.values():
            self._workers[worker.id] = worker.moved(Status.STOPPED, finished_at=time.time())

    def _find_sshd(self) -> machine.SshServer:
        """Return this machine's sshd, which is looked for once only. Raises PlatformUnsupported."""
        self._sshd = self._sshd or machine.ssh_server()
        return self._sshd

    def _ask_for_agents(
        self, specs: Sequence[WorkerSpec], run_key: str, gpus: Sequence[str], sshd: machine.SshServer | None
    ) -> dict[str, Any]:
        guard = self._start_guard()
        addresses = _loopback_addresses(len(specs))
        answer = guard.ask(
            "launch",
            run_key=run_key,
            session=[os.getpid(), linux.start_of(os.getpid())],
            environ=dict(os.environ),
            claims={"cores": machine.cores(), "gpus": gpus},
            sshd=sshd and vars(sshd),
            workers=[self._config(spec, address, guard) for spec, address in zip(specs, addresses, strict=True)],
        )
        if "refused" in answer:
            raise LaunchRefused(
                f"{answer['refused']} could not be started: {answer['why']}.",
                worker=answer["refused"],
                advice="end other programs on this machine, or ask for less",
            )
        return answer

    @property
    def warmth(self) -> dict[str, Any]:
        """The state of the guard's template, the reason for it, and its process id."""
        guard = self._guard
        return guard.ask("warmth") if guard is not None else {"state": "none", "why": "", "pid": 0}

    def is_warming(self) -> bool:
        """Return whether the template is still importing."""
        return bool(self.warmth["state"] == "importing")

    def _stop_unheard(self, specs: Sequence[WorkerSpec]) -> None:
        """Have agents end that may have been forked, although an interrupt or an error came before their handles."""
        guard = self._guard
        if guard is not None:
            with contextlib.suppress(PlatformError, ProcessLookupError):
                guard.ask("stop", ids=[guards.handle_of(_place_of(spec), guard.pid) for spec in specs])

    def _start_guard(self) -> GuardProcess:
        with self._starting:
            self._guard = self._guard or GuardProcess()
            return self._guard

    def _config(self, spec: WorkerSpec, address: str, guard: GuardProcess) -> dict[str, Any]:
        """Return the config of a worker's agent: plain data."""
        handle = guards.handle_of(_place_of(spec), guard.pid)
        return {
            **agent_config(spec, self._log_cap),
            "id": handle,
            "address": address,
            "identity": self._identity(spec, handle),
            "address_variables": ["CDSW_IP_ADDRESS"],
            "may_move": True,
            "hidden": self._hidden(spec),
        }

    def _hidden(self, spec: WorkerSpec) -> tuple[str, ...]:
        """Return the session's folders that are hidden from the worker, where they share no files."""
        if self.storage is not Storage.NOTHING:
            return ()
        run_dir = [str(spec.log.parent.parent)] if spec.places else []
        return tuple({str(spec.scratch.parent), *run_dir, *map(str, scratch_of_this_session())})

    def _placed(self, spec: WorkerSpec) -> WorkerSpec:
        """Return the spec with paths for its symbolic places, where the worker shares no files with the session."""
        if not is_symbolic(str(spec.scratch)):
            return spec
        if self._places_folder is None:
            self._places_folder = make_scratch()
        scratch = self._places_folder / _place_of(spec)
        places = {name: str(scratch / name) for name in ("library", "run", "project")}
        places.update(scratch=str(scratch))
        return replace(spec, scratch=scratch, cwd=resolve(spec.cwd, places), places=places)

    def _identity(self, spec: WorkerSpec, handle: str) -> dict[str, str]:
        """Return the variables that the workbench would set for the worker, for scripts that are written for it."""
        return {
            "CDSW_ENGINE_ID": handle,
            "CDSW_MASTER_ID": os.environ.get("CDSW_ENGINE_ID", spec.run_id),
            "CDSW_MASTER_IP": self.reach().advertise,
            "CDSW_CPU_MILLICORES": str(int(spec.resources.cpu * 1000)),
            "CDSW_MEMORY_MB": str(spec.resources.memory_bytes // 1000000),
            "CDSW_PROJECT": os.environ.get("CDSW_PROJECT", os.path.basename(spec.cwd)),
        }

    def _refresh(self) -> None:
        if self._guard is not None:
            self._refresh_from(self._guard)

    def _refresh_from(self, guard: GuardProcess) -> None:
        # Workers that have ended are left out: where one run follows another, there are more and more of them.
        alive = [worker.id for worker in self._workers.values() if not worker.status.is_final]
        try:
            answer = guard.ask("poll", ids=alive)
        except GuardGone as error:
            # The kernel tells the agents, which end their processes and report that. Killing these processes here would
            # look like a failure of the ranks. ``close`` ends what is left.
            for worker in self._workers.values():
                self._workers[worker.id] = worker.moved(
                    Status.FAILED, reason=f"{error} Its workers are ended.", finished_at=time.time()
                )
            return
        for facts in answer["workers"]:
            if facts["id"] in self._workers:
                self._workers[facts["id"]] = self._workers[facts["id"]].updated(guards.worker_of(facts))

    def _sweep(self) -> None:
        """End the processes and remove the folders of a guard that was killed or did not finish."""
        leftovers.kill_all(partial(linux.marked, "MUSTER_RUN_ID", *{spec.run_id for spec in self._specs.values()}))
        for spec in self._specs.values():
            remove_folder(spec.scratch)


def _check_resources(wanted: Mapping[str, Resources]) -> None:
    """Raise ResourceError for a worker that asks for more than the machine has: workers may share cores and memory."""
    cores, memory = len(machine.cores()), machine.memory_bytes()
    for name, resources in wanted.items():
        worker = name if name.rpartition("-")[2].isdecimal() else None
        if resources.cpu > cores:
            raise ResourceError(
                f"{name} asks for {resources.cpu} cores; this machine has {cores}.",
                worker=worker,
                advice=at_most("cpu", resources.cpu, cores, worker),
            )
        if resources.memory_bytes > memory:
            raise ResourceError(
                f"{name} asks for {resources.memory} GB of memory; this machine has {memory / 1e9:.1f}.",
                worker=worker,
                advice=at_most("memory", resources.memory, memory / 1e9, worker),
            )


def _make_folders(spec: WorkerSpec) -> None:
    if len(os.fsencode(spec.scratch)) + len("/report.sock") > LONGEST_SOCKET_PATH:
        raise LaunchRefused(
            f"The path of the scratch folder {spec.scratch} is too long for sockets.",
            worker=spec.name,
            advice="set TMPDIR to a folder with a shorter path",
        )
    try:
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        spec.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchRefused(f"The folders of {spec.name} cannot be made: {error}.", worker=spec.name) from error


def _loopback_addresses(count: int) -> list[str]:
    """Return distinct random addresses of the loopback interface."""
    found: set[str] = set()
    while len(found) < count:
        found.add(random_loopback_address())
    return [*found]


def _place_of(spec: WorkerSpec) -> str:
    """Return a worker's name on this machine: its run's id, its own name, and its generation unless that is 0."""
    return f"{spec.run_id}.{spec.name}" + (f".{spec.generation}" if spec.generation else "")
