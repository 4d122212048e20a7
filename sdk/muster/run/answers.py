"""The answers of a run under way to other processes of its user, which ask at its control socket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from muster.agent import wire
from muster.agent.fields import items, port, string, text, whole
from muster.errors import JobError
from muster.run.control import Answer
from muster.run.request import AT_ONCE
from muster.run.streams import Stream
from muster.runtime.background import in_thread
from muster.runtime.latch import Latch

if TYPE_CHECKING:  # imported while the platform warms up
    from muster.run.orchestrator import Orchestrator


class RunUnderWay(Protocol):
    """A run, as far as others ask of it; its attributes are those of ``Execution``."""

    run_id: str
    run_dir: Path
    orchestrator: Orchestrator | None
    up: Latch[bool]
    stop_reason: str | None

    def ask_to_stop(self, reason: str) -> None:
        """Ask the run to end."""


class Answers:
    """Answers what ``control.py`` lists, about one run."""

    def __init__(self, run: RunUnderWay) -> None:
        self._run = run

    def by_request(self) -> dict[str, Answer]:
        """Return the functions that answer, by what is asked."""
        return {
            "state": self._state,
            "stop": self._stop,
            "usage": self._usage,
            "stacks": self._stacks,
            "logs": self._log_end,
            "exec": self._open_command,
            "forward": self._open_port,
        }

    async def _state(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        workers = self._run.orchestrator.state.workers if self._run.orchestrator else {}
        state = {name: worker.status.value for name, worker in workers.items()}
        return {"is_up": self._run.up.is_set(), "stop_reason": self._run.stop_reason, "workers": state}

    async def _stop(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self._run.ask_to_stop(AT_ONCE if request.get("now") else "by request")
        return {}

    async def _usage(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        used = self._run.orchestrator.state.usage if self._run.orchestrator else {}
        return {"usage": {name: list(usage) for name, usage in used.items()}}

    async def _stacks(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"stacks": await self._run.orchestrator.stacks() if self._run.orchestrator else {}}

    async def _log_end(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        from muster.records.runs import Run

        return {"lines": await in_thread(Run(self._run.run_dir).log_end, str(request.get("name")))}

    async def _open_command(self, request: Mapping[str, Any]) -> Stream:
        try:
            words = items(string, 1 << 16)(request.get("argv", []))
            size = items(whole(0, 10000), 2)(request.get("size", [0, 0]))
            terminal = text(100)(request.get("terminal", ""))
        except ValueError as error:
            raise JobError(f"The request makes no sense: it must be {error}.") from None
        order = wire.Execute(0, words, {"TERM": terminal} if terminal else {}, None, *size)
        return await self._open_stream(request, order)

    async def _open_port(self, request: Mapping[str, Any]) -> Stream:
        try:
            return await self._open_stream(request, wire.Dial(0, port(request.get("port"))))
        except ValueError as error:
            raise JobError(f"The port must be {error}.") from None

    async def _open_stream(self, request: Mapping[str, Any], order: wire.Execute | wire.Dial) -> Stream:
        if self._run.orchestrator is None:
            raise JobError(f"Run {self._run.run_id} has no workers yet.")
        return await self._run.orchestrator.open_stream(str(request.get("worker")), order)
