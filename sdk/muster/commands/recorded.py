"""``muster runs``, ``show``, ``logs`` and ``explain``: looking at recorded runs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.commands import as_json, completion, naming
from muster.commands.options import Number, WholeNumber
from muster.commands.run import as_options
from muster.commands.wrapping import columns, say
from muster.dashboard import is_terminal
from muster.dashboard.text import COLOURS, GLYPHS
from muster.errors import RunNotFound
from muster.records import folders, lookup
from muster.records.record import LAUNCHER_LOG
from muster.records.runs import Run
from muster.records.sessions import is_out_of_sight
from muster.records.under_way import is_queued
from muster.runtime.echo import without_echo
from muster.runtime.outlet import takes_escapes
from muster.text.arguments import ArgumentText
from muster.text.cleaning import clean
from muster.text.reading import LONGEST_LINE, Appended, open_regular
from muster.text.shown import duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from muster.events import Event

BYTES_AT_ONCE = 1 << 22  # of a log
LINES_AT_ONCE = 1000  # as each print takes its time
POLL_SECONDS = 0.2
SHOWN_RUNS = 30
KEPT_RUNS = 20
LEFT = 130  # the exit status where Ctrl-C has ended the view of a run, and not the run


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
    from muster.dashboard.follow import usage_now
    from muster.dashboard.model import fold
    from muster.dashboard.replay import replay
    from muster.dashboard.screen import Screen

    view = replay(run)
    for event in usage_now(run):
        fold(view, event)
    view.advice = as_options(run.advice)
    print_rich(Screen(view, is_whole=True))


def print_rich(shown: RenderableType, *, width: int | None = None) -> None:
    """Print an object of Rich. Raises OSError where nobody reads the output any more, unlike Rich's own print."""
    from rich.console import Console

    console = Console(width=width, color_system="auto" if takes_escapes(sys.stdout) else None)
    with console.capture() as capture:
        console.print(shown)
    lines = capture.get().split("\n")
    click.echo("\n".join(lines if console.is_terminal else map(str.rstrip, lines)), nl=False)


@click.command()
@click.argument("run", default="last", shell_complete=completion.run_ids)
@click.argument("worker", required=False, shell_complete=completion.workers)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("-n", "--tail", type=WholeNumber(min=0), help="Begin with the last N lines of each.")
def logs(run: str, worker: str | None, follow: bool, tail: int | None) -> None:
    """Print what the workers of RUN, or one of them, have printed.

    RUN is an id, the beginning of one, or "last", which is the default. WORKER is a name such as worker-1, a rank such
    as rank-1, the number of either, or "launcher" for what horovodrun or mpiexec said itself. Anything that would steer
    the terminal is left out, and of a progress bar a terminal gets only what it showed last; the files have it all.

    \b
    Examples:
      muster logs last
      muster logs last worker-1 --follow
    """
    opened = naming.opened(run, "logs")
    tails: dict[str, Tail] = {}
    is_empty = True
    while True:
        ended = opened.status != "running"  # asked before reading, so that nothing written before the end is missed
        for name in [worker] if worker else [*opened.workers, LAUNCHER_LOG]:
            news: Iterable[list[bytes]] = ()
            is_new = name not in tails
            if is_new:
                news = chain.from_iterable(Tail(older).pieces(at_end=True) for older in opened.log_files(name)[:-1])
                tails[name] = Tail(opened.log_path(name))
            news = chain(news, tails[name].pieces(at_end=ended or not follow))
            if is_new and tail is not None:
                news = [[*deque(chain.from_iterable(news), tail)]]
            for lines in news:
                _print_lines(lines, None if worker else name)
                is_empty = is_empty and not lines
        if ended or not follow:
            if is_empty and tail != 0:
                who = opened.log_path(worker).stem if worker else "This run"
                click.echo(f"{who} has printed nothing{'' if ended else ' so far'}.", err=True)
            return
        time.sleep(POLL_SECONDS)


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


def _print_lines(lines: list[bytes], name: str | None) -> None:
    begin = f"{name} | " if name else ""
    for start in range(0, len(lines), LINES_AT_ONCE):
        text = b"\n".join(lines[start : start + LINES_AT_ONCE]).decode("utf-8", errors="replace")
        if not text.replace("\n", "").isprintable():  # one by one they take ten times as long
            text = "\n".join(part for line in text.split("\n") for part in _shown(line))
        click.echo(begin + text.replace("\n", f"\n{begin}"))


def _shown(line: str) -> list[str]:
    """Return a line made safe, as a terminal leaves it: a progress bar overwrites its line. For a pipe, each state."""
    states = line.rstrip("\r").split("\r")
    return [clean(state) for state in (states[-1:] if sys.stdout.isatty() else states)]


class Tail:
    """Reads the lines that are appended to a log, which may be larger than the memory, and be one line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._appended = Appended(path, at_once=BYTES_AT_ONCE)
        self._unfinished = b""

    def pieces(self, *, at_end: bool = False) -> Iterator[list[bytes]]:
        """Yield the lines completed since the last call, some at a time, but of no more than the log has by now.

        If ``at_end``, also a last line without a newline. Lines of more than ``LONGEST_LINE`` come in parts.
        """
        with contextlib.suppress(FileNotFoundError):
            with open_regular(self._path) as file:
                size = os.fstat(file.fileno()).st_size
            for _ in range(size // BYTES_AT_ONCE + 1):
                read = self._appended.read()
                if not read:
                    break
                news = read.translate(None, b"\0")  # never shown, and all that there is in a hole
                lines = (self._unfinished + news).split(b"\n")
                self._unfinished = lines.pop()
                if len(self._unfinished) > LONGEST_LINE:
                    lines.append(self._unfinished)
                    self._unfinished = b""
                yield lines
        if at_end and self._unfinished:
            yield [self._unfinished]
            self._unfinished = b""
