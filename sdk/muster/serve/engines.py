"""Sessions of clients and their workers on a platform: which callers may launch, list and stop them, and how many.

A *session* is identified by its client's engine id. It belongs to the API key that first launched a worker in it, and
ends on request or with the service. Its workers have a credential that is valid for this session only.
"""

from __future__ import annotations

import hmac
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from muster.agent.removal import remove_folder
from muster.job import Process, Resources, Worker, WorkerSpec
from muster.platforms.base import Platform
from muster.records.scratch import make_scratch
from muster.serve.models import Order
from muster.serve.record import ServiceRecord
from muster.serve.site import ServiceSite
from muster.workbench.workers import IPYTHON_RUNNER, describe

KEPT = 1000  # ended workers that are still listed


class RequestRefused(Exception):
    """The caller may not make this request, or it cannot be met."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Caller:
    """The sender of a request: a client with the API key of that number, or a worker of its session ``engine_id``."""

    key: int
    engine_id: str | None = None


@dataclass(frozen=True)
class Session:
    """One client's session: the number of its API key, the address it called from, and its workers' credential."""

    engine_id: str
    key: int
    address: str
    credential: str = field(repr=False)


@dataclass(frozen=True)
class Launched:
    """One worker: its id in the service, its state on the platform, its session, and the path of its log."""

    id: str
    worker: Worker
    session: Session
    log: Path

    @property
    def is_over(self) -> bool:
        """True if the worker has ended."""
        return self.worker.status.is_final

    def describe(self) -> dict[str, Any]:
        """Return the worker's description for clients."""
        return {**describe(self.worker), "id": self.id, "reason": self.worker.reason, "log": str(self.log)}


@dataclass(frozen=True)
class ServeLimits:
    """The largest numbers of workers at the same time: in all, and in one session."""

    workers: int
    session_workers: int


class Engines:
    """All sessions of a service. Calls may come from one thread at a time, except for ``authenticate``.

    Args:
        platform: the platform of the workers.
        project: the folder that they run in.
        record: the service's record, with the workers' ids, code and logs.
        site: the service's addresses.
        keys: the API keys.
        limits: the limits on workers.
    """

    def __init__(
        self,
        platform: Platform,
        project: Path,
        record: ServiceRecord,
        site: ServiceSite,
        keys: Sequence[str],
        limits: ServeLimits,
    ) -> None:
        self._platform = platform
        self._project = project
        self._record = record
        self._site = site
        self._keys = [*keys]
        self._limits = limits
        self._scratch = make_scratch()
        self._sessions: dict[str, Session] = {}
        self._launched: dict[str, Launched] = {}

    def authenticate(self, credential: str) -> Caller | None:
        """Return the caller with this credential, comparing in constant time; None where there is none."""
        engine_id, is_workers, _ = credential.partition(".")
        session = self._sessions.get(engine_id) if is_workers else None
        if session is not None:
            return Caller(session.key, engine_id) if _same(credential, session.credential) else None
        matches = [number for number, key in enumerate(self._keys) if _same(credential, key)]
        return Caller(matches[0]) if matches else None

    def launch(self, caller: Caller, order: Order, address: str) -> dict[str, Any]:
        """Launch one worker.

        Args:
            caller: the sender of the request.
            order: the worker to launch.
            address: the caller's address.

        Raises:
            RequestRefused: the session is not the caller's, there is nothing to run, or there are too many workers.
            MusterError: the platform cannot launch it.
        """
        known = self._session(caller, order.master_id)
        session = known or Session(
            order.master_id, caller.key, address, f"{order.master_id}.{secrets.token_urlsafe(32)}"
        )
        self._refresh()
        self._check_limits(session)
        worker_id = secrets.token_hex(8)
        try:
            spec = self._spec(order, worker_id, session)
            (worker,) = self._platform.launch([spec], worker_id)
            try:
                self._record.add(worker)
            except OSError:
                self._platform.stop([worker.id])
                raise
        except Exception:
            self._record.forget(worker_id)
            raise
        self._sessions[session.engine_id] = session
        self._launched[worker_id] = launched = Launched(worker_id, worker, session, spec.log)
        return launched.describe()

    def workers(self, caller: Caller, engine_id: str) -> list[dict[str, Any]]:
        """Return all workers of a session, oldest first. Raises RequestRefused where it is not the caller's."""
        session = self._session(caller, engine_id)
        self._refresh()
        return [launched.describe() for launched in self._launched.values() if launched.session is session]

    def stop(self, caller: Caller, worker_id: str) -> dict[str, Any]:
        """Ask a worker to end, and return it. Raises RequestRefused where the caller has none of that id."""
        launched = self._launched.get(worker_id)
        if launched is None or not _may_use(caller, launched.session):
            raise RequestRefused(HTTPStatus.NOT_FOUND, f"There is no worker {worker_id}.")
        self._platform.stop([launched.worker.id])
        (worker,) = self._platform.poll([launched.worker.id])
        return replace(launched, worker=worker).describe()

    def end(self, caller: Caller, engine_id: str) -> None:
        """Stop a session's workers and void their credential. Raises RequestRefused where it is not the caller's."""
        session = self._session(caller, engine_id)
        if session is not None:
            self._platform.stop(
                [launched.worker.id for launched in self._launched.values() if launched.session is session]
            )
            del self._sessions[engine_id]  # last, so that ending it can be repeated where they could not be stopped

    def close(self) -> None:
        """End all workers and wait until they are gone."""
        try:
            self._platform.close()
        finally:
            remove_folder(self._scratch)

    def _session(self, caller: Caller, engine_id: str) -> Session | None:
        """Return the session, None if nothing was launched in it. Raises RequestRefused if it is not the caller's."""
        session = self._sessions.get(engine_id)
        if session is None and caller.engine_id is None:
            return None
        if session is None or not _may_use(caller, session):
            raise RequestRefused(HTTPStatus.FORBIDDEN, f"The session {engine_id} is not the caller's.")
        return session

    def _refresh(self) -> None:
        """Update the states of the workers, and forget the oldest of those that have ended."""
        alive = [launched for launched in self._launched.values() if not launched.is_over]
        polled = self._platform.poll([launched.worker.id for launched in alive])
        for launched, worker in zip(alive, polled, strict=True):
            self._launched[launched.id] = replace(launched, worker=worker)
        over = [launched.id for launched in self._launched.values() if launched.is_over]
        for worker_id in over[:-KEPT]:
            del self._launched[worker_id]
            self._record.forget(worker_id)
        in_use = {launched.session.engine_id for launched in self._launched.values()}
        self._sessions = {key: session for key, session in self._sessions.items() if key in in_use}

    def _check_limits(self, session: Session) -> None:
        alive = [launched.session for launched in self._launched.values() if not launched.is_over]
        for count, limit, where in (
            (alive.count(session), self._limits.session_workers, "session"),
            (len(alive), self._limits.workers, "service"),
        ):
            if count >= limit:
                raise RequestRefused(
                    HTTPStatus.TOO_MANY_REQUESTS, f"No more workers: this {where} has {count}, the most it may."
                )

    def _spec(self, order: Order, worker_id: str, session: Session) -> WorkerSpec:
        resources = Resources(order.cpu, order.memory, order.nvidia_gpu)
        resources.check()
        cwd = str(self._project)
        program = self._script(order.script) if order.script else self._code(order.code, worker_id)
        identity = {
            **self._site.environment(session.engine_id),
            "CDSW_API_KEY": session.credential,
            "CDSW_ENGINE_ID": worker_id,
            "CDSW_MASTER_ID": session.engine_id,
            "CDSW_MASTER_IP": session.address,
        }
        return WorkerSpec(
            name=worker_id,
            role="worker",
            index=0,
            run_id=self._record.id,
            resources=resources,
            log=self._record.log(worker_id),
            scratch=self._scratch / worker_id,
            cwd=cwd,
            env={name: str(value) for name, value in order.env.items()},
            process=Process((sys.executable, "-u", str(IPYTHON_RUNNER), str(program)), env=identity, cwd=cwd),
        )

    def _script(self, script: str) -> Path:
        try:
            path = (self._project / script).resolve()
            is_there = path.is_relative_to(self._project) and path.is_file()
        except (OSError, RuntimeError, ValueError):  # a path that is too long, has a loop of links, or a null character
            is_there = False
        if not is_there:
            raise RequestRefused(HTTPStatus.CONFLICT, f"There is no script {script!r} in the project {self._project}.")
        return path

    def _code(self, code: str, worker_id: str) -> Path:
        if not code.strip():
            raise RequestRefused(HTTPStatus.CONFLICT, "There is nothing to run: neither script nor code.")
        return self._record.keep_code(worker_id, code)


def _may_use(caller: Caller, session: Session) -> bool:
    return caller.key == session.key and caller.engine_id in (None, session.engine_id)


def _same(credential: str, expected: str) -> bool:
    return hmac.compare_digest(credential.encode(), expected.encode())
