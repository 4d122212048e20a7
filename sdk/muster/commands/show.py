"""``muster show``, ``attach`` and ``explain``: a run as it is or was, and why it failed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.commands import as_json, completion, naming
from muster.commands.run import as_options
from muster.commands.wrapping import print_rich, say
from muster.dashboard import is_terminal
from muster.errors import RunNotFound
from muster.records import lookup
from muster.records.runs import Run
from muster.runtime.echo import without_echo
from muster.text.arguments import ArgumentText

if TYPE_CHECKING:
    from muster.events import Event

LEFT = 130  # the exit status where Ctrl-C has ended the view of a run, and not the run


@click.command()
@click.argument("run", default="last", shell_complete=completion.run_ids)
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@as_json.with_errors(as_options)
def explain(run: str, json_wanted: bool) -> None:
    """Say what failed first in RUN, why, and what to try.

    It is shown with its traceback, or the end of its log. RUN is an id, the beginning of one, or "last", which is the
    default.
    """
    if json_wanted:
        as_json.echo(as_json.explanation(lookup.open_run(run), as_options))
        return
    say(lookup.open_run(run).explain(as_options))


@click.command()
@click.argument("run", default="last", shell_complete=completion.run_ids)
@click.option(
    "--html", type=click.Path(dir_okay=False, writable=True, path_type=Path), metavar="FILE",
    help="Write one page instead, which needs nothing else, with the ends of the logs in it.",
)  # fmt: skip
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@as_json.with_errors(as_options)
def show(run: str, html: Path | None, json_wanted: bool) -> None:
    """Show RUN as it ended, or live while it runs.

    It is shown live in a terminal only; elsewhere, as in a notebook's cell, once as it is now. RUN is an id, the
    beginning of one, or "last", which is the default.

    \b
    Examples:
      muster show
      muster show last --html run.html
    """
    if html is not None and _is_run(html):
        raise click.UsageError(
            f"--html takes the file to write, and {html} is a run. Try: muster show {html} --html run.html"
        )
    opened = lookup.open_run(run)
    if json_wanted:
        as_json.echo(as_json.outcome(opened, as_options))
    elif html is not None:
        from muster.dashboard.html_page import html_page

        write_page(html, html_page(opened))
    elif opened.status == "running" and is_terminal(sys.stdout):
        _show_live(opened)
    else:
        _show_end(opened)


def _is_run(file: Path) -> bool:
    """Return whether a path that was given for a file is the name of a run instead."""
    try:
        return not file.suffix and bool(lookup.open_run(str(file)))
    except RunNotFound:
        return str(file) == "last"


@click.command()
@click.argument("run", required=False, shell_complete=completion.run_ids)
def attach(run: str | None) -> None:
    """Show RUN live until it has ended, and end as it does.

    Ctrl-C ends the view, and not the run; the exit status is then 130, and otherwise that of `muster run`. RUN is an
    id, the beginning of one, or "last". The default is the newest detached run that is under way, or else the last run.
    """
    opened = naming.opened(run, "logs") if run else lookup.living_detached_run() or lookup.open_run()
    if run in (None, "last"):
        say(lookup.attached_to(opened), err=True)
    if opened.status == "running":
        _show_live(opened)
    else:
        _show_end(opened)
    opened.wait()


def _show_live(run: Run) -> None:
    from muster.dashboard import choose
    from muster.dashboard.follow import follow
    from muster.events.data import RunEnded

    dashboard = choose()

    def tell(event: Event) -> None:
        if isinstance(event.data, RunEnded) and event.data.advice_parts:
            advice = as_options(ArgumentText.from_json(event.data.advice_parts))
            event = replace(event, data=replace(event.data, advice=advice))
        dashboard(event)

    try:
        with without_echo():
            follow(run, tell)
    except KeyboardInterrupt:
        dashboard.close()
        if run.status != "running":
            raise
        click.echo(f"The run goes on. To end it: muster stop {run.run_id}", err=True)
        sys.exit(LEFT)
    finally:
        dashboard.close()


def _show_end(run: Run) -> None:
    from muster.dashboard.fold import fold
    from muster.dashboard.follow import usage_now
    from muster.dashboard.replay import replay
    from muster.dashboard.screen import Screen

    view = replay(run)
    for event in usage_now(run):
        fold(view, event)
    view.advice = as_options(run.advice)
    print_rich(Screen(view, is_whole=True))


def write_page(file: Path, page: str) -> None:
    """Write an HTML page to a file, and say so; refuse to overwrite a file that is no such page."""
    try:
        if file.exists() and not file.read_text(encoding="utf-8", errors="replace").startswith(
            page.partition("<title>")[0]
        ):
            raise click.UsageError(f"{file} is there already, and is no page of a run.")
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror}.") from error
    click.echo(f"Written to {file}", err=True)
