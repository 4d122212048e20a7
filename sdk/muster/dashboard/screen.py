"""Layout of a run in a terminal, drawn with rich: heading lines, and a table of the workers below them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from muster.dashboard import attempts
from muster.dashboard.run import RunView
from muster.dashboard.text import COLOURS, GLYPHS, number, rate, size, sparkline, volume
from muster.dashboard.worker import WorkerView
from muster.text.shown import duration

MAX_CAUSE_LINES = 6
NOTES = 2  # the number of notes shown, the newest ones
ATTEMPTS = 3  # the number of attempts shown, likewise
CURVE_WIDTH = 12  # characters
SHORTEST_BAR, LONGEST_BAR = 8, 40  # of the whole run, in characters
HEADINGS = FULL, WITHOUT_ATTEMPTS, WITHOUT_NOTES, WITHOUT_METRICS, STATUS_ALONE = range(5)  # each is shorter
LEAST_ROWS = 3  # of workers: metrics are left out to make room for these
BEFORE_TRAINING = ("launching", "connecting", "starting")
NARROW = 60  # characters: a narrower terminal has no room for a progress bar for each worker
NARROWER = 40  # characters: a narrower terminal has no room for ranks
NARROW_ATTEMPTS = ("attempt", "lost", "ended by")  # columns of attempts where there is no room for all of them
LEAST_REASON = 30  # characters of what ended an attempt beside all other columns
GAP = 2  # characters between columns
SHORTEST_LINE = 9  # characters of a worker's last line; a narrower column is left out


class Screen:
    """The picture of a view: cause of the failure, progress of the run, and as many workers as fit.

    With ``is_whole`` it is as high as it has to be, with all notes. Unless ``is_last``, there is an empty line for the
    cursor below the picture: a terminal shows ``^C`` there, which at the end of a full line would shift the picture.
    ``lock`` guards the view against changes by other threads.

    Attributes:
        widths: the width in cells of each line that was painted last.
        lines_below: the number of lines to leave free below the last picture.
    """

    def __init__(
        self,
        view: RunView,
        *,
        is_last: bool = True,
        is_whole: bool = False,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.view = view
        self.is_last = is_last
        self.is_whole = is_whole
        self.widths: list[int] = []
        self.lines_below = 0
        self._lock = lock or nullcontext()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            lines = console.render_lines(Group(*self._parts(console, options)), options, pad=False)
        lines = [_stripped(line) for line in lines]
        self.widths = [Segment.get_line_length(line) for line in lines]
        for line in lines:
            yield from line
            yield Segment.line()

    def _parts(self, console: Console, options: ConsoleOptions) -> list[RenderableType]:
        top, rows = self._heading(console, options)
        if not self.lines_below:  # else a row too many would scroll the status out of the last picture
            rows = max(rows, 1)
        table = workers_table(self.view, rows, options.max_width) if self.view.workers and rows > 0 else []
        return [*top, *table, *([] if self.is_last else [Text("")])]

    def _heading(self, console: Console, options: ConsoleOptions) -> tuple[list[RenderableType], int]:
        """Return the longest heading that leaves enough rows for the workers, and the number of these rows."""
        if self.is_whole:
            return heading(self.view, options.max_width, notes=None), len(self.view.workers)
        room = (options.height or console.height) - 3 - self.lines_below  # the column titles, "and N more", the cursor
        for level in HEADINGS:
            top = heading(self.view, options.max_width, level)
            rows = room - len(console.render_lines(Group(*top), options, pad=False))
            if rows >= self._rows_wanted(level):
                break
        return top, rows

    def _rows_wanted(self, level: int) -> int:
        """Return the number of workers that must be visible below a heading of this level.

        Until the training begins, notes need to leave room for one worker only; later they give way to all workers, as
        they say nothing new.
        """
        if level >= WITHOUT_NOTES:
            return min(len(self.view.workers), LEAST_ROWS)
        return min(len(self.view.workers), 1) if self.view.phase in BEFORE_TRAINING else len(self.view.workers)


def _stripped(line: list[Segment]) -> list[Segment]:
    """Return a line without its trailing blanks, which a narrower terminal would wrap as well."""
    line = list(line)
    while line and not line[-1].text.rstrip():
        line.pop()
    if line:
        line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
    return line


def heading(
    view: RunView, width: int, level: int = FULL, notes: int | None = NOTES, stage: str = ""
) -> list[RenderableType]:
    """Return the lines above the workers, for one of the levels in ``HEADINGS``.

    ``notes`` is how many of the newest notes there are, each on two lines at most; None for all of them, uncut.
    ``stage`` replaces the view's own words for the state of the run.
    """
    style = COLOURS.get(view.status, "")
    title = Text.assemble(
        (f"{GLYPHS.get(view.status, '●')} {view.name or 'run'}", f"bold {style}"),
        (f"  {view.strategy}" if view.strategy and level < STATUS_ALONE else ""),
        (f"  {stage or (view.doing if view.status == 'running' else view.status)}", style),
        (f"  {duration(view.elapsed)}", "bold"),
        (f"  attempt {view.attempts[-1].number}" if len(view.attempts) > 1 and level < STATUS_ALONE else ""),
    )
    census = Text(view.census, style="bright_black")
    if title.cell_len + 2 + census.cell_len <= width:
        title = Text.assemble(title, "  ", census)
        census = Text()
    if level == STATUS_ALONE:
        return [title, *cause(view, width)]
    lines: list[RenderableType] = [title, *([census] if census else []), *cause(view, width)]
    bar = overall(view, width)
    if bar is not None:
        lines.append(bar)
    if view.curves and level < WITHOUT_METRICS:
        lines.append(metrics_columns(view))
    table = attempts_table(view, width, is_whole=notes is None) if level < WITHOUT_ATTEMPTS else []
    lines += table
    if level < WITHOUT_NOTES:
        remarks = view.other_remarks if table else view.remarks
        shown = [Text(note, style="yellow") for note in remarks]
        lines += shown if notes is None else [_cut_to(note, 2 * width) for note in shown[-notes:]]
    return [*lines, Text("")]


def cause(view: RunView, width: int) -> list[RenderableType]:
    """Return the cause of the failure and what to try, each cut before it crowds out everything else."""
    lines = []
    if view.reason:
        lines.append(Text(view.cause, style=f"bold {COLOURS.get(view.status, '')}"))
    if view.advice:
        lines.append(Text(f"Try: {view.advice}"))
    return [_cut_to(line, width * MAX_CAUSE_LINES // 2) for line in lines]


def _cut_to(text: Text, characters: int) -> Text:
    text.truncate(characters, overflow="ellipsis")
    return text


def overall(view: RunView, width: int) -> RenderableType | None:
    """Return a progress bar of the rank that is furthest behind, as the others will wait for it; None before training.

    While the project is sent to the workers, the bar shows the part that has arrived. A narrow terminal has a shorter
    bar, and then fewer words: the rate goes first. The words say how many ranks have reported progress unless all have.
    """
    if view.fraction is None:
        return None
    part, *position = view.position
    speed = f"{rate(view.rate)} examples/s" if view.rate is not None else ""
    left = f"{duration(view.time_left)} left" if view.time_left is not None else ""
    told = view.share_reporting
    choices = [
        (part, *position, told, speed, left), (part, *position, told, left), (part, told, left), (part, told), (part,)
    ]  # fmt: skip
    texts = ["  ".join(filter(None, words)) for words in choices]
    text = next((text for text in texts if len(text) + 2 + SHORTEST_BAR <= width), texts[-1])
    grid = Table.grid(padding=(0, 2))
    grid.add_row(_bar(view.fraction, max(SHORTEST_BAR, min(LONGEST_BAR, width - len(text) - 2))), _line(text))
    return grid


def _bar(fraction: float, width: int) -> Text:
    """Return a line that is thick for the part done and thin for the rest: legible on light, on dark and in grey."""
    full, half = divmod(int(2 * width * fraction), 2)
    style = COLOURS["succeeded" if fraction >= 1 else "running"]
    return Text.assemble(("━" * full + "╸" * half, style), ("─" * (width - full - half), "bright_black"), no_wrap=True)


def attempts_table(view: RunView, width: int, *, is_whole: bool) -> list[RenderableType]:
    """Return the table of attempts; nothing where there was but one.

    Unless ``is_whole`` it has the newest ones, each on one line.
    """
    rows = attempts.table(view.attempts, view.started or 0.0)
    if not rows:
        return []
    titles, *rows = rows
    rows = rows if is_whole else rows[-ATTEMPTS:]
    widths = [max(cell_len(row[index]) for row in [titles, *rows]) + GAP for index in range(len(titles))]
    has_room = sum(widths[:-1]) + LEAST_REASON <= width
    *others, last = [index for index, title in enumerate(titles) if has_room or title in NARROW_ATTEMPTS]
    left = max(width - sum(widths[index] for index in others), SHORTEST_LINE)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    table.header_style = "bright_black"
    for index in (*others, last):
        table.add_column(titles[index], no_wrap=index != last, overflow="fold" if index == last else "ellipsis")
    for row in rows:
        ended_by = Text(row[last])
        if not is_whole:
            _cut_to(ended_by, left)
        table.add_row(*(Text(row[index]) for index in others), ended_by)
    return [table]


def metrics_columns(view: RunView) -> RenderableType:
    """Return the newest value of every metric and a sparkline of its course, on as many lines as needed."""
    items = []
    for name, curve in view.curves.items():
        if curve.last is not None:
            values = [point.value for point in curve.points]
            course = f" {sparkline(values, CURVE_WIDTH)}" if len(values) > 1 else ""
            items.append(
                Text.assemble((f"{name} ", "bright_black"), (number(curve.last.value), "bold"), (course, "cyan"))
            )
    return Columns(items, padding=(0, 3))


class Column(NamedTuple):
    """A column of the table of workers.

    It is shown in terminals of at least ``from_width`` and less than ``below_width`` characters, if ``where`` holds for
    any of the workers shown.
    """

    title: str
    cell: Callable[[RunView, WorkerView], RenderableType]
    from_width: int = 0
    below_width: float = float("inf")
    min_width: int | None = None
    ratio: int | None = None
    where: Callable[[WorkerView], object] | None = None


def _status(view: RunView, worker: WorkerView) -> Text:
    return Text(f"{GLYPHS.get(worker.status, ' ')} {worker.status}", style=COLOURS.get(worker.status, ""))


def _phase(view: RunView, worker: WorkerView) -> Text:
    return Text(view.phase_of(worker), style="bright_black" if worker.phase == "done" else "")


def _line(text: str, style: str = "") -> Text:
    """Return text that is cut rather than wrapped."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _position(view: RunView, worker: WorkerView) -> RenderableType:
    return _line(worker.slowest.position)


def _progress(view: RunView, worker: WorkerView) -> RenderableType:
    text = _position(view, worker)
    if worker.fraction is None:
        return text
    grid = Table.grid(padding=(0, 1))
    grid.add_row(_bar(worker.fraction, 10), text)
    return grid


def _last_line(view: RunView, worker: WorkerView) -> Text:
    return Text(
        view.news_of(worker), style=COLOURS["failed"] if worker.has_failed and worker.reason else "bright_black"
    )


def _name(view: RunView, worker: WorkerView) -> Text:
    return Text.assemble(worker.name, (f" {worker.rank_names}" if worker.ranks else "", "bright_black"))


COLUMNS = (
    Column("worker", _name, from_width=NARROWER),
    Column("worker", lambda view, worker: Text(worker.name), below_width=NARROWER),
    Column("status", _status, from_width=NARROWER, min_width=11),
    Column("status", _status, below_width=NARROWER),
    Column("address", lambda view, worker: Text(worker.address), from_width=110, where=lambda worker: worker.address),
    Column("phase", _phase, from_width=90),
    Column("progress", _position, below_width=NARROW, where=lambda worker: worker.reported),
    Column("progress", _progress, from_width=NARROW, min_width=10, where=lambda worker: worker.reported),
    Column("ex/s", lambda view, worker: Text(rate(worker.rate)), from_width=100, where=lambda worker: worker.rate),
    Column("sent", lambda view, worker: Text(volume(worker.sent)), from_width=110, where=lambda worker: worker.sent),
    Column(
        "cpu", lambda view, worker: Text("" if worker.cpu is None else f"{worker.cpu:.1f}"),
        from_width=100, where=lambda worker: worker.cpu is not None,
    ),
    Column("gpu", lambda view, worker: Text(worker.gpu_use), from_width=100, where=lambda worker: worker.gpus),
    Column(
        "memory", lambda view, worker: Text(size(worker.memory, view.limit_of(worker))),
        from_width=80, where=lambda worker: worker.memory is not None,
    ),
    Column("last line", _last_line, min_width=SHORTEST_LINE, ratio=1),
)  # fmt: skip


def _width(column: Column, cells: list[RenderableType]) -> int:
    """Return the width of a column, with the gap behind it."""
    texts = [] if column.ratio else [cell.cell_len for cell in cells if isinstance(cell, Text)]
    return max([len(column.title), column.min_width or 0, *texts]) + GAP


def workers_table(view: RunView, rows: int, width: int) -> list[RenderableType]:
    """Return a table with a row for each worker that fits, failed ones first, and a line that counts the others."""
    ordered = view.in_order()
    shown, hidden = ordered[:rows], ordered[rows:]
    columns = [
        column
        for column in COLUMNS
        if column.from_width <= width < column.below_width and (column.where is None or any(map(column.where, shown)))
    ]
    cells = [[column.cell(view, worker) for worker in shown] for column in columns]
    widths = [_width(column, cells[number]) for number, column in enumerate(columns)]
    while width < NARROW and len(columns) > 2 and sum(widths[: len(columns)]) - GAP > width:
        columns.pop()
    table = Table(box=None, expand=columns[-1].ratio is not None, padding=(0, GAP, 0, 0), pad_edge=False)
    table.header_style = "bright_black"
    for column in columns:
        table.add_column(column.title, no_wrap=True, ratio=column.ratio, min_width=column.min_width)
    for row in zip(*cells[: len(columns)], strict=True):
        table.add_row(*row)
    if not hidden:
        return [table]
    return [table, Text(f"… and {len(hidden)} more", style="bright_black")]
