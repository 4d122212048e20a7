"""``muster runs``: the recorded runs, and the end of old ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from muster.commands import as_json
from muster.commands.options import Number, WholeNumber
from muster.commands.wrapping import columns, print_rich, say
from muster.dashboard.text import COLOURS, GLYPHS
from muster.records import folders, lookup
from muster.records.runs import Run
from muster.records.sessions import is_out_of_sight
from muster.records.under_way import is_queued
from muster.text.cleaning import clean
from muster.text.shown import duration

if TYPE_CHECKING:
    from rich.table import Table


SHOWN_RUNS = 30
KEPT_RUNS = 20


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option(
    "-n",
    "--limit",
    type=WholeNumber(min=1),
    metavar="N",
    help=f"List the newest N.  [default: {SHOWN_RUNS}; as JSON all]",
)
@click.option("--name", metavar="NAME", help="List those of this name; * stands for anything.")
@click.option(
    "--status", type=click.Choice(lookup.STATUSES), multiple=True, help="List those of this status; repeatable."
)
@click.option("--prune", is_flag=True, help="Delete old runs; those that run are left alone.")
@click.option(
    "--keep", type=WholeNumber(min=0), metavar="N", help=f"With --prune: leave the newest N.  [default: {KEPT_RUNS}]"
)
@click.option("--older-than", type=Number(min=0), metavar="DAYS", help="With --prune: and all that are newer.")
def runs(
    json_wanted: bool, limit: int | None, name: str | None, status: tuple[str, ...],
    prune: bool, keep: int | None, older_than: float | None,
) -> None:  # fmt: skip
    """List the recorded runs, newest first.

    In a terminal they are shown as a table; elsewhere as one line each, with the time when the run started. Every id
    begins with that time, too.

    \b
    Examples:
      muster runs
      muster runs --limit 5 --status failed --status lost
      muster runs --name 'mnist*' --json
      muster runs --prune --keep 5 --older-than 7
    """
    if prune:
        if limit or name or status:
            raise click.UsageError("--prune deletes by age: see --keep and --older-than.")
        keep = KEPT_RUNS if keep is None else keep
        deleted = lookup.prune(keep, older_than)
        if json_wanted:
            as_json.echo(deleted)
        else:
            click.echo("\n".join([*deleted, _pruning(len(deleted), keep, older_than)]))
        return
    if keep is not None or older_than is not None:
        raise click.UsageError("--keep and --older-than say what --prune leaves, and --prune is not given.")
    listed = lookup.list_runs(name=name, status=status or None)
    if json_wanted:
        as_json.echo([as_json.summary(run) for run in listed[:limit]])
        return
    limit = limit or SHOWN_RUNS
    if listed and sys.stdout.isatty():
        table = _table(listed[:limit], columns())
        if table is not None:
            print_rich(table)
        else:
            click.echo("\n".join(map(_block, listed[:limit])))
    else:
        for run in listed[:limit]:
            started = datetime.fromtimestamp(run.started_at).strftime("%Y-%m-%d %H:%M:%S")
            line = f"{_status(run):<11}  {started}  {_took(run):>8}  {run.strategy:<16}  {_named(run)}  {_beside(run)}"
            click.echo(clean(line).rstrip())
    if len(listed) > limit:
        click.echo(f"… and {len(listed) - limit} older")
    if not listed and (name is not None or status):
        say("No recorded run is like that; `muster runs` lists all.", err=True)
    elif not listed:
        say(f"No run has been recorded in {folders.muster_home() / 'runs'} yet.", err=True)


def _pruning(deleted: int, keep: int, older_than: float | None) -> str:
    """Return, in words, what has been deleted and what has been kept."""
    kept = len(folders.run_ids())
    newer = f", all of the last {older_than:g} days (--older-than)" if older_than is not None else ""
    return (
        f"{deleted} run{'s' * (deleted != 1)} deleted, {kept} left.\n"
        f"Never deleted: the newest {keep} (--keep){newer}, those under way, and those lost less than a day ago."
    )


def _table(listed: Sequence[Run], width: int) -> Table | None:
    """Return the runs as a table, or None where even one column besides the ids does not fit.

    It has as many columns as leave ids whole, since users copy or type an id next.
    """
    from rich.table import Table
    from rich.text import Text

    shown = {
        "status": [Text(_status(run), style=COLOURS.get(run.status, "")) for run in listed],
        "took": [Text(_took(run)) for run in listed],
        "strategy": [Text(clean(run.strategy)) for run in listed],
    }
    room = width - max(len(run.run_id) for run in listed)
    while shown and room < sum(2 + max(len(title), *map(len, cells)) for title, cells in shown.items()):
        shown.popitem()
    if not shown:
        return None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    for title in shown:
        table.add_column(title, no_wrap=True, justify="right" if title == "took" else "left")
    table.add_column("run")
    for run, *cells in zip(listed, *shown.values(), strict=True):
        table.add_row(*cells, Text(f"{_named(run)} {_beside(run)}".rstrip()))
    return table


def _block(run: Run) -> str:
    """Return a run as two lines, of which the first has only its id, so that a narrow terminal shows that as a word."""
    rest = [_status(run), _took(run), clean(run.strategy), _beside(run)]
    return f"{_named(run)}\n  {'  '.join(filter(None, rest))}"


def _named(run: Run) -> str:
    """Return a run's id, followed by its name if that is not in ASCII, as ids are."""
    return run.run_id if run.name.isascii() else f"{run.run_id} ({clean(run.name)})"


def _status(run: Run) -> str:
    return f"{GLYPHS.get(run.status, ' ')} {run.status}"


def _took(run: Run) -> str:
    """Return how long the run took, or has taken so far; for a lost run, a lower bound."""
    return f"{'≥ ' if run.status == 'lost' else ''}{duration(run.seconds)}"


def _beside(run: Run) -> str:
    """Return, in words, of a run under way whether it is queued, where it lives, and until when."""
    if run.status != "running":
        return ""
    until = run.detached_until
    host = clean(str(run.session.get("host", ""))) if is_out_of_sight(run.session) else ""
    is_local = run.platform in ("", "local")
    where = f"on {clean(run.platform)}" if not is_local else f"on {host}" if host else "here"
    lives = "ends with its session" if until is None else "detached"
    lives += f" on {host}" if host and not is_local else ""
    ends = lives if until is None else f"{lives} until {datetime.fromtimestamp(until):%a %d %b %Y %H:%M}"
    parts = ["queued", where, ends] if is_queued(run.events()) else [where, ends]
    return f"({', '.join(parts)})"
