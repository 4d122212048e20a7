"""Shell completion of the ``muster`` command: files where a script is asked for, and recorded runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from muster.errors import RunNotFound
from muster.records import runs

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and folders, which the shell itself completes."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def run_ids(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of the recorded runs, newest first, and ``last``."""
    return [name for name in ("last", *runs.run_ids()) if name.startswith(incomplete)]


def workers(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Workers of the run that stands before this word, and ``driver`` where it has a log."""
    try:
        run = runs.open_run(ctx.params.get("run") or "last")
    except RunNotFound:
        return []
    names = [*run.workers, *([runs.DRIVER] if run.log_files(runs.DRIVER) else [])]
    return [name for name in names if name.startswith(incomplete)]
