"""The platform ``hosts``: workers on machines that are reached by ssh."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from muster.agent.fields import whole
from muster.agent.host_guard import LOG_PIECE
from muster.agent.project import CACHE_BYTES
from muster.errors import HostUnreachable, JobError, LaunchRefused, MusterError, PlatformError, ResourceError
from muster.job import Resources, Status, Worker, WorkerSpec, at_most
from muster.options.fields import option
from muster.platforms.agents import agent_config, default_log_cap
from muster.platforms.base import (
    Cleaned,
    Platform,
    Reach,
    Relay,
    Storage,
    cores_in_words,
    gpus_in_words,
    memory_in_words,
    oldest_first,
    unknown_worker,
)
from muster.platforms.guard_answers import checked, workers_of
from muster.platforms.hosts.failures import together
from muster.platforms.hosts.hostfile import NAME, parse_hosts
from muster.platforms.hosts.login import Login
from muster.platforms.hosts.logins import Logins
from muster.platforms.hosts.routes import PoolRelay, Routes
from muster.platforms.parallel import for_all
from muster.platforms.placement import Key, Placement, key_of
from muster.text.arguments import Argument, ArgumentText

HANDLE = re.compile(rf"(?P<name>[^@]+)@(?P<host>{NAME}):(?P<pid>\d+)\.(?P<start>\d+)")
CACHE = "~/.cache/muster/projects"  # on each host
AROUND_CACHE = CACHE.rpartition("/")[0]  # removed as well, unless something else is in it
REMOVE_CACHE = (
    f"if cd {CACHE} 2>/dev/null; then du -sk . && cd / && rm -rf {CACHE} && "
    f"{{ rmdir {AROUND_CACHE} 2>/dev/null || :; }}; fi 2>&1"
)
POLL_SECONDS = 0.7  # time that a poll waits for a host's answer
REPAIR_SECONDS = 1.8  # time that a poll waits for a new login: only by that one can tell why workers have ended
SILENT_SECONDS = 4.0  # after which a host that does not answer is told of: its workers may be silent as well
SILENT = "{} does not answer over ssh, either: see whether it is on, and on the network."
MORE_SLOTS = ArgumentText("more slots: host:slots in ", Argument("hosts", ""))

Guard = tuple[str, int, int]  # host, process id and start time


@dataclass(eq=False, repr=False)
class HostsPlatform(Platform):
    """Runs workers on hosts that ``ssh HOST`` logs in to without asking anything, one in each slot.

    The hosts share no files with the session, and need only a ``python3`` (3.6 or later). The agent's source is sent
    through the login, and removed in the end.

    Args:
        hosts: hosts with their slots, or the path of a hostfile; empty for ``MUSTER_HOSTS`` of the environment, in the
            same form.
        tunnel: whether workers reach the session through ssh (``ssh -R``) rather than by dialling it; None to find out
            for each host what works.
        cache: whether hosts keep the files of projects for later runs, in ``~/.cache/muster/projects``.
        lease_seconds: how long a worker that has lost the session keeps running.
    """

    hosts: tuple[str, ...] = option(
        (), "Hosts as host:slots with commas between, or the path of a hostfile", metavar="HOSTS"
    )
    tunnel: bool | None = option(
        None, "Have workers reach this session through ssh, or the cluster's exec", default="where needed"
    )
    cache: bool = option(True, "Keep a project's files, so that the next run sends only what has changed")
    lease_seconds: float = option(
        Platform.lease_seconds,
        "How long workers go on without the session until they end",
        metavar="SECONDS",
        minimum=0,
    )
    name = "hosts"
    poll_seconds = (0.5, 2.0)
    explain_seconds = 1.0
    storage = Storage.NOTHING
    python = "python3"

    def __post_init__(self) -> None:
        self._slots = parse_hosts(self.hosts or os.environ.get("MUSTER_HOSTS", ""))
        self._word = secrets.token_hex(16)
        self._logins = Logins(self.lease_seconds, self._word)
        self._routes = Routes(self._logins, self.tunnel)
        self._relays: list[PoolRelay] = []
        self._workers: dict[str, Worker] = {}
        self._submitted: dict[str, list[str]] = {}
        self._handle_of: dict[Key, str] = {}
        self._placement = Placement(
            self._slots,
            partial(_status_of, self._handle_of, self._workers),
            partial(_refusal, sum(self._slots.values())),
        )
        self._broken: set[str] = set()  # hosts whose login has broken and is not open again yet

    # -- before a launch ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Log in to every host.

        Raises:
            JobError: no hosts are given.
            PlatformError: a host cannot be used, with the reason and what to try.
        """
        if not self._slots:
            raise JobError(
                "No hosts are given.",
                advice=ArgumentText(
                    Argument("hosts", ""), " such as gpu1:2,gpu2:2, or the path of a hostfile; or set MUSTER_HOSTS"
                ),
            )
        self._logins.open(self._slots)
        has_ours = all(self._logins.get(host).facts["python"] for host in self._slots)
        self.python = sys.executable if has_ours else "python3"

    def describe(self) -> str:
        """Return, in words, the hosts, and how each reaches this session."""
        routes = self._routes.describe()
        hosts = ", ".join(f"{host}:{slots}" for host, slots in self._slots.items())
        return f"hosts {hosts}" + (f" ({routes})" if routes else "")

    def reach(self) -> Reach:
        """Return how hosts reach the session, after trying each; ``open_relay`` always tells agents what to dial."""
        self.check()
        return self._routes.reach([*self._slots])

    def open_relay(self, host: str, port: int) -> Relay:
        """Return a relay that tells agents what to dial, and forwards ports of hosts that cannot dial the session."""
        self._relays.append(PoolRelay(self._routes, (host, port), self._placement))
        return self._relays[-1]

    def reach_of_pool(self) -> Reach:
        """Return the same as ``reach``: later agents of a host reach the session as earlier ones do."""
        return self.reach()

    def try_command(self, argv: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Run a short command on every host."""
        done, failed = for_all(lambda host: self._logins.get(host).ask("run", argv=[*argv]), [*self._slots])
        if failed:
            raise together(failed)
        return {host: (answer["status"], answer["output"]) for host, answer in done.items()}

    def clean(self) -> Cleaned:
        """Remove each host's cache of projects."""
        self.check()
        removed, left = [], []
        for host, (status, output) in self.try_command(["sh", "-c", REMOVE_CACHE]).items():
            if status:
                left.append(f"{host}: {CACHE} could not be removed: {output.strip()}")
            elif output.strip():
                removed.append(f"{host}: {CACHE}, {max(0.1, int(output.split()[0]) / 1e3):.1f} MB")
        return Cleaned(removed, left)

    def shortages(self, wanted: Sequence[Resources]) -> list[str]:
        """Return the shortages of cores and memory on each host, in words; each worker has one slot."""
        found: list[str] = []
        left = iter(wanted)
        for host, here in _shares(self._slots, len(wanted)).items():
            login = self._logins.get(host)
            claimed = checked(login.ask("claimed"), {"memory": whole(0)}, host)["memory"]
            found += _shortages_on(login, [*islice(left, here)], claimed)
        return found

    # -- workers ------------------------------------------------------------------------------------------------------

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Have each host's guard fork the agents of the workers that are placed there."""
        if run_key in self._submitted:
            return self._submitted[run_key]
        self.check()
        try:
            by_host: dict[str, list[WorkerSpec]] = {}
            for spec, host in zip(specs, self._placement.place(specs), strict=True):
                by_host.setdefault(host, []).append(spec)
                _make_log_folder(spec)
            for host, here in by_host.items():
                for spec in here:
                    _shortages_on(self._logins.get(host), [spec.resources])
            found = self._launch(by_host, run_key)
        except BaseException:
            self._placement.take_back(specs)
            raise
        for spec, worker in found:
            self._workers[worker.id] = worker
            self._handle_of[key_of(spec)] = worker.id
        handles = {spec.name: worker.id for spec, worker in found}
        self._submitted[run_key] = [handles[spec.name] for spec in specs]
        return self._submitted[run_key]

    def _launch(self, by_host: Mapping[str, Sequence[WorkerSpec]], run_key: str) -> list[tuple[WorkerSpec, Worker]]:
        """Have each host's guard fork its agents, all or none, and return the workers."""
        configs = {
            host: [self._config(spec, self._logins.get(host)) for spec in specs] for host, specs in by_host.items()
        }

        def launch(host: str) -> dict[str, Any]:
            return self._logins.get(host).ask("launch", run_key=run_key, workers=configs[host])

        answers, failed = for_all(launch, [*by_host])
        refused = {host: answer for host, answer in answers.items() if "refused" in answer}
        if failed or refused:
            for host in by_host:
                with contextlib.suppress(MusterError):
                    self._logins.get(host).ask("stop", ids=[config["id"] for config in configs[host]])
        if failed:
            raise together(failed)
        for host, answer in refused.items():
            raise LaunchRefused(
                f"{answer['refused']} could not be started on {host}: {answer.get('why')}.",
                worker=str(answer["refused"]),
                advice="end other programs there, or ask for less",
            )
        found: list[tuple[WorkerSpec, Worker]] = []
        for host, answer in answers.items():
            handles = [config["id"] for config in configs[host]]
            workers = workers_of(answer, handles, host, self._logins.get(host).clock_offset)
            if len(workers) < len(handles):
                raise HostUnreachable(f"The workers' guard on {host} talks nonsense: it has launched others.")
            found += [(spec, workers[handle]) for spec, handle in zip(by_host[host], handles, strict=True)]
        return found

    def _config(self, spec: WorkerSpec, login: Login) -> dict[str, Any]:
        """Return the config of a worker's agent, with its address and the host's cache."""
        cache = {"folder": CACHE, "most": CACHE_BYTES} if self.cache else None
        return {**_config(spec, login), "address": self._address(login.host), "cache": cache}

    def _address(self, host: str) -> str:
        """Return the address at which workers on other hosts reach those on this host."""
        facts = self._logins.get(host).facts
        address, route = str(facts["address"]), str(facts["route"])
        is_reached_by_others = len(self._slots) > 1 and address.startswith("127.")
        return route if route and (is_reached_by_others or ":" in address) else address

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Return the workers as the guards of their hosts report them."""
        self._refresh([handle for handle in handles if handle in self._workers])
        others = self._workers_of_others([handle for handle in handles if handle not in self._workers])
        return [self._workers.get(handle) or others[handle] for handle in handles]

    def stop(self, handles: Sequence[str]) -> None:
        """Ask the agents to end: SIGTERM to their processes, and SIGKILL a second later."""
        living = [
            handle for handle in handles if handle not in self._workers or not self._workers[handle].status.is_final
        ]
        for guard, its_handles in _by_guard(living).items():
            own = any(handle in self._workers for handle in its_handles)
            with contextlib.suppress(*[HostUnreachable] if own else []):  # its guard then ends them itself
                self._ask(guard, "stop", ids=its_handles)

    def list(self) -> list[Worker]:
        """Return all workers that this object has launched, oldest first."""
        self._refresh([*self._workers])
        return oldest_first(self._workers.values())

    def logs(self, handle: str) -> Iterator[str]:
        """Yield the lines of a worker's log, read from its host; none once its guard is gone."""
        data, most = bytearray(), 2 * default_log_cap() + LOG_PIECE  # its older part, and the log itself
        for guard in _by_guard([handle]):
            while len(data) < most and (answer := self._ask(guard, "log", id=handle, offset=len(data))):
                if "payload" not in answer:
                    break
                data += answer["payload"]
        lines = data.decode("utf-8", "surrogateescape").split("\n")
        yield from lines[:-1] if data.endswith(b"\n") or not data else lines

    def close(self) -> None:
        """End all workers and logins, and wait until they are gone, a few seconds at most."""
        for guard in _by_guard(handle for handle, worker in self._workers.items() if not worker.status.is_final):
            login = self._logins.made(guard[0])
            if login is not None and login.is_open and login.guard != guard[1:]:  # of an earlier login
                with contextlib.suppress(MusterError):
                    self._ask(guard, "close", keep=self._word)
        self._logins.close()
        for handle, worker in self._workers.items():
            self._workers[handle] = worker.moved(Status.STOPPED, finished_at=time.time())
        self._routes.forget()

    # -- answers of guards --------------------------------------------------------------------------------------------

    def _ask(self, guard: Guard, request: str, seconds: float | None = None, **fields: Any) -> dict[str, Any] | None:
        """Return a guard's answer; the guard of the host's login passes requests on to others. None if it is gone."""
        login = self._logins.get(guard[0])
        limit = {} if seconds is None else {"seconds": seconds}
        if login.guard == guard[1:]:
            fields.pop("keep", None)
            return login.ask(request, **limit, **fields)
        answer = login.ask("ask_guard", **limit, guard=guard[1:], message={"say": request, **fields})
        if "error" in answer:
            raise PlatformError(f"The workers' guard on {guard[0]} failed: {answer['error']}")
        return None if "gone" in answer else answer

    def _refresh(self, handles: Iterable[str]) -> None:
        """Update the states of workers that this object has launched."""
        living = [handle for handle in handles if not self._workers[handle].status.is_final]
        by_guard = _by_guard(living)
        guards = {str(number): guard for number, guard in enumerate(by_guard)}

        def poll(number: str) -> dict[str, Worker] | None:
            guard = guards[number]
            self._look_after(guard[0])
            answer = self._ask(guard, "poll", POLL_SECONDS, keep=self._word)
            return None if answer is None else self._workers_in(answer, guard, by_guard[guard])

        answers, failed = for_all(poll, [*guards])
        for number, workers in answers.items():
            if workers is None:
                self._fail_all(guards[number], f"The process that guards its workers on {guards[number][0]} has ended.")
            for handle, fresh in (workers or {}).items():
                self._workers[handle] = self._workers[handle].updated(fresh)
        for number, error in failed.items():
            host = guards[number][0]
            login = self._logins.made(host)
            silent = math.inf if login is None else time.monotonic() - login.heard_at
            if silent > self.lease_seconds:
                why = self._logins.troubles.get(host, error)
                self._fail_all(guards[number], why.message, why.advice)
            elif silent > SILENT_SECONDS:
                for handle in by_guard[guards[number]]:
                    self._workers[handle] = replace(self._workers[handle], reason=SILENT.format(host))

    def _workers_in(self, answer: Mapping[str, Any], guard: Guard, handles: Sequence[str]) -> dict[str, Worker]:
        """Return the workers with these handles that a guard's answer tells of, by handle."""
        return workers_of(answer, handles, guard[0], self._logins.get(guard[0]).clock_offset)

    def _look_after(self, host: str) -> None:
        """Have a broken login opened again, and wait a moment for it. Raises HostUnreachable until it is open."""
        if not self._logins.is_open(host):
            seconds = 0.0 if host in self._broken else REPAIR_SECONDS  # once, as a host that is cut off has no answer
            self._broken.add(host)
            self._logins.repair(host, seconds)
            if not self._logins.is_open(host):
                raise HostUnreachable(f"The login to {host} has ended.")
        if host in self._broken:
            self._broken.discard(host)
            for relay in self._relays:
                relay.renew(host)

    def _fail_all(self, guard: Guard, why: str, advice: str | None = None) -> None:
        for handle in _by_guard(self._workers).get(guard, ()):
            known = self._workers[handle]
            self._workers[handle] = known.moved(Status.FAILED, reason=why, advice=advice, finished_at=time.time())

    def _workers_of_others(self, handles: Sequence[str]) -> dict[str, Worker]:
        """Return workers of other platform objects, by handle, as their guards report them."""
        found = {handle: unknown_worker(handle) for handle in handles}
        for guard, its_handles in _by_guard(handles).items():
            answer = self._ask(guard, "poll")
            known = {} if answer is None else self._workers_in(answer, guard, its_handles)
            for handle in its_handles:
                if handle in known:
                    found[handle] = known[handle]
                elif answer is None:
                    reason = f"Its guard on {guard[0]} is gone, and its workers with it."
                    found[handle] = replace(found[handle], name=handle.split("@")[0].split(".")[1], reason=reason)
        return found


def _status_of(handles: Mapping[Key, str], workers: Mapping[str, Worker], key: Key) -> Status | None:
    """Return a worker's status, None before its launch. A function, to keep the platform out of a reference cycle."""
    handle = handles.get(key)
    return None if handle is None else workers[handle].status


def _refusal(slots: int, worker: str) -> LaunchRefused:
    return LaunchRefused(
        f"There is no slot for {worker}: all {slots} of the hosts are taken.", worker=worker, advice=MORE_SLOTS
    )


def _shares(slots: Mapping[str, int], workers: int) -> dict[str, int]:
    """Return how many of these workers each host gets. Raises ResourceError where there are too few slots."""
    count = sum(slots.values())
    if workers > count:
        raise ResourceError(
            f"{workers} workers are asked for, and the hosts have {count} slot{'s' if count != 1 else ''}.",
            advice=MORE_SLOTS,
        )
    found, left = {}, workers
    for host, here in slots.items():
        found[host] = min(here, left)
        left -= found[host]
    return {host: share for host, share in found.items() if share}


def _shortages_on(login: Login, wanted: Sequence[Resources], claimed: int = 0) -> list[str]:
    """Return the shortages on a host, in words. Raises ResourceError for what it could never grant.

    Args:
        claimed: bytes of memory that other workers there have claimed, whoever's they are.
    """
    host, facts = login.host, login.facts
    cores, memory, gpus = facts["cores"], facts["memory"], len(facts["gpus"])
    for resources in dict.fromkeys(wanted):
        for name, asked, there, unit in (
            ("cpu", resources.cpu, cores, "cores"),
            ("memory", resources.memory, memory / 1e9, "GB of memory"),
        ):
            if asked > there:
                said = f"Each worker is to have {asked:g} {unit}; {host} has {there:.4g}."
                raise ResourceError(said, advice=at_most(name, asked, there))
    asked_gpus = sum(resources.gpu for resources in wanted)
    if asked_gpus > gpus:
        ask = f"1 worker on {host} asks" if len(wanted) == 1 else f"{len(wanted)} workers on {host} ask"
        raise ResourceError(f"{ask} for {gpus_in_words(asked_gpus)}; {host} has {gpus} (as nvidia-smi -L lists them).")
    found = []
    if sum(resources.cpu for resources in wanted) > cores:
        found.append(f"{cores_in_words(wanted)} on {host}, which has {cores}: they share them, and each is slower.")
    if sum(resources.memory_bytes for resources in wanted) + claimed > memory:
        others = f", of which other workers have claimed {claimed / 1e9:.1f} GB" if claimed else ""
        found.append(
            f"{memory_in_words(wanted)} on {host}, which has {memory / 1e9:.1f} GB{others}: "
            "if the workers use all of theirs, its system ends some."
        )
    return found


def _config(spec: WorkerSpec, login: Login) -> dict[str, Any]:
    """Return the config of a worker's agent, with its folders on the host."""
    generation = f".{spec.generation}" if spec.generation else ""
    # Workers on the same host do not share folders: each receives its files at the same time as the others.
    own = f"{login.facts['folder']}/{_short(spec.run_id)}/{spec.name}{generation}"
    places = {
        "library": f"{own}/lib",
        "run": f"{own}/run",
        "scratch": f"{own}/scratch",
        "project": f"{own}/project",
    }
    pid, start = login.guard
    return {
        **agent_config(replace(spec, places={**spec.places, **places}), default_log_cap()),
        "id": f"{spec.run_id}.{spec.name}{generation}@{login.host}:{pid}.{start}",
        "scratch": places["scratch"],
        "cwd": places["project"],
        "identity": {},
        "address_variables": [],
        "may_move": False,
        "hidden": [],
    }


def _by_guard(handles: Iterable[str]) -> dict[Guard, list[str]]:
    """Group handles by guard; handles that are not of workers on hosts are left out."""
    found: dict[Guard, list[str]] = {}
    for handle in handles:
        match = HANDLE.fullmatch(handle)
        if match:
            found.setdefault((match["host"], int(match["pid"]), int(match["start"])), []).append(handle)
    return found


def _short(run: str) -> str:
    """Return a run's id, shortened to its start and end where it is long, as paths of sockets have to be short."""
    return run if len(run) <= 24 else f"{run[:15]}{run[-5:]}"


def _make_log_folder(spec: WorkerSpec) -> None:
    """Make the folder in which the session writes the worker's log. Raises LaunchRefused."""
    try:
        spec.log.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchRefused(f"The folders of {spec.name} cannot be made: {error}.", worker=spec.name) from error
