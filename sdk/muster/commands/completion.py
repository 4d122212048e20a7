"""Shell completion of the ``muster`` command: files, recorded runs, and their workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from muster.errors import RunNotFound
from muster.records import control, folders, lookup
from muster.records.record import LAUNCHER_LOG
from muster.records.runs import Run

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def prepare() -> None:
    """Register a completion class for bash that handles ``--strategy=pr``, which bash splits into three words."""
    from click.shell_completion import BashComplete, add_completion_class

    class Bash(BashComplete):
        def get_completion_args(self) -> tuple[list[str], str]:
            words, incomplete = super().get_completion_args()
            if incomplete == "=":
                incomplete = ""
            elif words and words[-1] == "=":
                words.pop()
            return [word for word in words if word != "="], incomplete

    add_completion_class(Bash)


def files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell itself complete a file or folder."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def run_ids(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a recorded run, newest first, or ``last``."""
    return [name for name in ("last", *folders.run_ids()) if name.startswith(incomplete)]


def living_run_ids(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a run that is under way, newest first, or ``last`` if the last run is one of them."""
    known = [Run(folders.muster_home() / "runs" / run_id) for run_id in folders.run_ids()]
    living = [run.run_id for run in known if control.control_file(run.run_dir).exists() and run.status == "running"]
    is_last = bool(living) and living[0] == known[0].run_id
    return [name for name in (*(["last"] if is_last else []), *living) if name.startswith(incomplete)]


def workers(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete a worker of the run that was named before, or ``launcher`` if the run has a launcher's log."""
    try:
        run = lookup.open_run(ctx.params.get("run") or "last")
    except RunNotFound:
        return []
    names = [*run.worker_names, *([LAUNCHER_LOG] if run.log_files(LAUNCHER_LOG) else [])]
    return [name for name in names if name.startswith(incomplete)]
