"""The JSON that commands print about recorded runs with ``--json``. Keys may be added, but none are removed."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from muster.errors import MusterError
from muster.events import metrics_to_json
from muster.events.data import Note
from muster.records.first_step import first_step
from muster.records.record import LOST_REASON
from muster.records.runs import Run

Command = TypeVar("Command", bound=Callable[..., Any])
Write = Callable[[str], str]  # returns a text with the arguments that it names as options

PRINTED = "muster.json_printed"  # key in a command's context, set once its document has been printed
OUTCOME = ("timings", "metrics", "exit_codes", "error", "reason", "advice", "worker")
WORKER = ("name", "status", "address", "reason", "exit_code", "signal")
PROGRESS = ("step", "steps", "epoch", "epochs")


def dump(data: Any) -> str:
    """Return data as strict JSON, indented for people to read."""
    return json.dumps(data, indent=2, default=str, allow_nan=False)


def with_errors(write: Write) -> Callable[[Command], Command]:
    """Return a decorator for a command with ``--json``: an error is printed as JSON, too, unless a document was."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return command(*args, **kwargs)
            except MusterError as error:
                if kwargs["json_wanted"] and not click.get_current_context().meta.get(PRINTED):
                    click.echo(dump(refusal(error, write)))
                raise

        return cast(Command, run)

    return decorate


def echo(data: Any) -> None:
    """Print the single JSON document of a command."""
    click.get_current_context().meta[PRINTED] = True
    click.echo(dump(data))


def refusal(error: MusterError, write: Write) -> dict[str, Any]:
    """Return an error that belongs to no recorded run, with its texts passed through ``write``."""
    return {
        "status": "refused",
        "error": type(error).__name__,
        "reason": write(error.message),
        "advice": error.advice and write(error.advice),
        "worker": error.worker,
        "details": error.details,
    }


def summary(run: Run) -> dict[str, Any]:
    """Return a run as an entry in a list of runs."""
    facts = {"id": run.run_id, "name": run.name, "status": run.status, "strategy": run.strategy}
    where = {"platform": run.platform or None, "host": run.session.get("host")}
    times = {"started_at": run.started_at, "seconds": run.seconds, "detached_until": run.detached_until}
    return {**facts, **where, **times, "path": str(run.run_dir)}


def outcome(run: Run, write: Write) -> dict[str, Any]:
    """Return the outcome of a run, or what is known of one that still runs, with advice passed through ``write``."""
    from muster.dashboard import attempts
    from muster.dashboard.replay import replay

    view = replay(run)
    result = run.result or ({"reason": LOST_REASON} if run.status == "lost" else {})
    return {
        **summary(run),
        **{name: result.get(name) for name in OUTCOME},
        "advice": write(run.advice) or None,
        "metrics": metrics_to_json(result["metrics"]) if "metrics" in result else None,
        "notes": [event.data.text for event in run.events() if isinstance(event.data, Note)],
        "attempts": [attempts.as_data(attempt) for attempt in view.attempts],
        "workers": [
            {
                **{name: getattr(worker, name) for name in WORKER},
                **{name: getattr(worker.slowest, name) for name in PROGRESS},
            }
            for worker in view.workers.values()
        ],
    }


def explanation(run: Run, write: Write) -> dict[str, Any]:
    """Return what failed first in a run and why, or what its first step had to wait for.

    Advice and explanation are passed through ``write``.
    """
    facts = outcome(run, write)
    del facts["workers"]
    details = (run.result or {}).get("details")
    return {
        **facts,
        "details": details,
        "first_step": first_step(run.events()) or None,
        "explanation": run.explain(write),
    }
