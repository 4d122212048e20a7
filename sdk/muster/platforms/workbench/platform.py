"""The platform ``workbench``: workers of Cloudera's workbench."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.agent.removal import remove_folder
from muster.errors import LaunchRefused, PlatformError, PlatformUnsupported
from muster.job import Status, Worker, WorkerSpec
from muster.options.fields import option
from muster.platforms.base import Platform, Reach, Storage, oldest_first, read_log
from muster.platforms.timestamps import timestamp
from muster.platforms.workbench import agent_files
from muster.platforms.workbench.client import WorkbenchClient
from muster.platforms.workbench.launch import WorkbenchLaunch
from muster.text.arguments import Argument, ArgumentText

STOP_SECONDS = 10.0  # after which, once the workbench has failed to stop one, no more are tried
LAG_SECONDS = 10.0  # time that a launched worker may take to appear in the workbench's list
GONE_SECONDS = 20.0  # time that stopped workers may take to end
GONE_LOOK = 0.25  # seconds between two polls while they end
NO_ADDRESS = ("unknown", "", None)  # the workbench's values for an address that it does not know yet
REASONS = {
    Status.FAILED: "The workbench says that it has failed; its log there may say why.",
    Status.TIMEDOUT: "The workbench has ended it, because it ran for too long or its session was idle.",
}
VANISHED = "It has vanished from the workbench's list of workers."
STATUSES = {str(status): status for status in Status}


@dataclass(eq=False, repr=False)
class WorkbenchPlatform(Platform):
    """Workers of Cloudera's workbench, launched from one of its sessions.

    The session and its workers share the project's files, where runs and logs are kept. The agent's source travels
    with each launch, so the workers' image need not have Muster; the agent's config, secrets included, lies in a
    private file until the agent has read it.

    Args:
        client: client of the workbench; None for the workbench's own library where the session has it, else REST.
        lease_seconds: how long a worker that has lost the session keeps running; if it reaches the session again by
            then, it goes on as if nothing had happened. 0: it ends at once.

    Raises:
        PlatformUnsupported: this is not a session of the workbench.
    """

    name = "workbench"
    poll_seconds = (1.0, 10.0)
    explain_seconds = 3.0
    storage = Storage.PROJECT

    client: WorkbenchClient | None = None
    lease_seconds: float = option(
        Platform.lease_seconds,
        "How long workers go on without the session until they end",
        metavar="SECONDS",
        minimum=0,
    )

    def __post_init__(self) -> None:
        self._client = self.client or _find_client()
        self._workers: dict[str, Worker] = {}
        self._others: dict[str, Worker] = {}  # as the last listing showed them
        self._specs: dict[str, WorkerSpec] = {}
        self._submitted: dict[str, list[str]] = {}  # handles by run key
        self._unlisted: dict[str, float] = {}  # launched workers that no listing has shown yet, and since when

    def reach(self) -> Reach:
        """Return the session's address, as the workbench gives it (``CDSW_IP_ADDRESS``)."""
        address = os.environ.get("CDSW_IP_ADDRESS")
        if not address:
            raise PlatformUnsupported(
                "The address that workers reach this session at is not known: CDSW_IP_ADDRESS is not set.",
                advice=ArgumentText(Argument("session_address", "host:port")),
            )
        return Reach(address, address)

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Launch all workers at the same time.

        A launch that the workbench has not answered is not repeated, and counts as failed. If its worker has started
        all the same, it is stopped; if it starts later, it finds no config and ends.
        """
        if run_key in self._submitted:
            return self._submitted[run_key]
        launch = WorkbenchLaunch(self._client, specs)
        undone = ""
        try:
            for spec in specs:
                _prepare(spec)
            launch.run()
        finally:
            launched = [spec for spec in specs if spec.name in launch.started]
            workers = [self._note(spec, launch.started[spec.name]) for spec in launched]
            if len(workers) < len(specs):
                undone = self._undo(launch, workers)
        if launch.failed:
            raise _refusal(launch, undone)
        self._submitted[run_key] = [worker.id for worker in workers]
        return self._submitted[run_key]

    def launch(self, specs: Sequence[WorkerSpec], run_key: str = "") -> list[Worker]:
        """Submit workers, and return their states from the workbench's answers."""
        return [self._workers[handle] for handle in self.submit(specs, run_key or secrets.token_hex(8))]

    def _note(self, spec: WorkerSpec, entry: Mapping[str, Any]) -> Worker:
        worker = _as_listed(Worker(str(entry["id"]), spec.name), entry)
        self._workers[worker.id] = worker
        self._specs[worker.id] = spec
        self._unlisted[worker.id] = time.monotonic()
        return worker

    def _undo(self, launch: WorkbenchLaunch, workers: Sequence[Worker]) -> str:
        """Stop the workers of an incomplete launch, keep the others from starting, and return the outcome in words."""
        late = []
        for spec in launch.specs:
            taken = agent_files.withdraw(spec)
            if spec.name in launch.failed:
                late += [self._note(spec, {"id": each}) for each in taken]
        said = []
        if late:
            names = " and ".join(worker.id for worker in late)
            said.append(f"It had started all the same, as {names}, and was stopped.")
        elif launch.may_have_started:
            said.append("Should it have been launched all the same, it will find nothing to do, and end.")
        if workers:
            said.append(f"The others that had been launched ({len(workers)}) were stopped.")
        try:
            self.stop([worker.id for worker in (*workers, *late)])
        except PlatformError as error:
            said = [f"Not all that had been launched could be stopped: {error.message}"]
        return " ".join(said)

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Return the workers as the workbench lists them, and those that have ended as their agents reported it."""
        known = [self._known(handle) for handle in handles]
        if all(worker.status.is_final for worker in known):
            return known
        return self._as_listed(known, self._client.list())

    def _known(self, handle: str) -> Worker:
        return self._workers.get(handle) or self._others.get(handle) or Worker(handle, handle)

    def stop(self, handles: Sequence[str]) -> None:
        """Ask the workbench to end each worker, also after an error; within a time limit then."""
        deadline = time.monotonic() + STOP_SECONDS
        failures: list[PlatformError] = []
        for handle in handles:
            known = self._known(handle)
            if known.status.is_final and known.reason != VANISHED:  # it may still run all the same
                continue
            if failures and time.monotonic() > deadline:
                break
            try:
                self._client.stop(handle)
            except PlatformError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def logs(self, handle: str) -> Iterator[str]:
        """Yield the lines of a worker's log, from the project's files; none of workers that other objects launched."""
        spec = self._specs.get(handle)
        return read_log(spec.log) if spec else iter(())

    def close(self) -> None:
        """Stop all workers that this object has launched, and wait until the workbench says that they have ended.

        Raises:
            PlatformError: some have not ended in time, or the workbench cannot be asked.
        """
        trouble = ""
        try:
            self.stop([*self._workers])
        except PlatformError as error:  # it only matters if they do not end by themselves
            trouble = f" {error.message}"
        deadline = time.monotonic() + GONE_SECONDS
        while living := [worker for worker in self.poll([*self._workers]) if not worker.status.is_final]:
            if time.monotonic() > deadline:
                left = " and ".join(f"{worker.name} ({worker.id})" for worker in living)
                raise PlatformError(f"{left} did not end within {GONE_SECONDS:g} s of being stopped.{trouble}")
            time.sleep(GONE_LOOK)
        for spec in self._specs.values():
            remove_folder(spec.scratch)  # an agent that was killed leaves it, if it ran on this machine

    def _as_listed(self, workers: Sequence[Worker], listed: Sequence[Mapping[str, Any]]) -> list[Worker]:
        """Return workers as the workbench lists them, and those that have ended as their agents reported it."""
        entries = {entry["id"]: entry for entry in listed}
        return [self._with_entry(worker, entries.get(worker.id)) for worker in workers]

    def _with_entry(self, worker: Worker, entry: Mapping[str, Any] | None) -> Worker:
        if entry is not None:
            self._unlisted.pop(worker.id, None)
        elif time.monotonic() - self._unlisted.get(worker.id, float("-inf")) < LAG_SECONDS:
            return worker
        now = worker.moved(Status.FAILED, reason=VANISHED) if entry is None else _as_listed(worker, entry)
        spec = self._specs.get(worker.id)
        if spec is None:
            return now
        if now.status.is_final and not worker.status.is_final:
            if now.status in (Status.SUCCEEDED, Status.FAILED):
                now = replace(now, **agent_files.outcome(spec))  # the agent knows more than its container's state tells
            agent_files.remove_files(spec)
        self._workers[worker.id] = now
        return now

    def list(self) -> list[Worker]:
        """Return all workers of the session, also those that other objects launched, oldest first."""
        listed = self._client.list()
        own = self._as_listed([*self._workers.values()], listed)
        others = [entry for entry in listed if entry["id"] not in self._workers]
        self._others = {entry["id"]: _as_listed(Worker(entry["id"], entry["id"]), entry) for entry in others}
        return oldest_first([*own, *self._others.values()])


def _find_client() -> WorkbenchClient:
    from muster.platforms.workbench.clients import find_client  # needs packages that only sessions of a workbench need

    return find_client(os.environ)


def _prepare(spec: WorkerSpec) -> None:
    """Make the log's folder and write the agent's config. Raises LaunchRefused."""
    if spec.generation:
        remove_folder(spec.scratch)  # the worker that it replaces has left it, if that ran on this machine
    try:
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        agent_files.write_config(spec)
    except OSError as error:
        raise LaunchRefused(f"The files of {spec.name} cannot be written: {error}.", worker=spec.name) from error


def _refusal(launch: WorkbenchLaunch, undone: str) -> PlatformError:
    """Return the error for a failed launch: of a worker that was refused, or else of one without an answer."""
    name, cause = min(launch.failed.items(), key=lambda item: not isinstance(item[1], LaunchRefused))
    what = "was refused" if isinstance(cause, LaunchRefused) else "could not be launched"
    return LaunchRefused(f"{name} {what}: {cause.message} {undone}".rstrip(), worker=name, advice=cause.advice)


def _as_listed(worker: Worker, entry: Mapping[str, Any]) -> Worker:
    """Return a worker as the workbench describes it now; a status that Muster does not know leaves the old one."""
    status = STATUSES.get(entry.get("status", ""), worker.status)
    changes = {name: timestamp(entry.get(name)) for name in ("created_at", "running_at", "finished_at")}
    if status is not Status.SCHEDULING and worker.placed_at is None:
        said = (timestamp(entry.get(name)) for name in ("starting_at", "running_at", "created_at"))
        changes["placed_at"] = next((at for at in said if at is not None), None)
    address = entry.get("ip_address")
    return worker.moved(
        status,
        **{name: value for name, value in changes.items() if value is not None},
        address=worker.address if address in NO_ADDRESS else address,
        app_url=entry.get("app_url"),
        reason=REASONS.get(status),
    )
