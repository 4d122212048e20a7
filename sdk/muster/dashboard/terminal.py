"""The live dashboard of a terminal, painted by rich.

``Screen`` turns a view into what is seen; ``TerminalDashboard`` repaints it from a thread of its own.
"""

from __future__ import annotations

import io
import itertools
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TextIO

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.table import Table
from rich.text import Text

from muster.dashboard.model import RunView, WorkerView, fold
from muster.dashboard.text import COLOURS, GLYPHS, duration, number, rate, size, sparkline, volume
from muster.dashboard.ticker import Ticker
from muster.events import Event, EventKind
from muster.runtime import outlet
from muster.runtime.suspension import is_in_background, when_suspended

SECONDS_TO_LEAVE = 1.0  # that Ctrl-Z waits for a terminal to be given back
IDLE_SECONDS = 1.0  # a frame without news is painted this often, for the sake of the clock
MAX_CAUSE_LINES = 6
NOTES = 2  # the newest, of those there are
CURVE_WIDTH = 12  # characters
SHORTEST_BAR, LONGEST_BAR = 8, 40  # of the whole run, in characters
NARROW = 60  # characters: less has no room for a bar for each worker, nor for what it printed last


class TerminalDashboard:
    """Shows a run live in a terminal, from its first event until it has ended, or ``close``.

    Events only change the view. A thread of its own paints into memory, which takes a lock for a moment, and writes to
    the terminal, which takes as long as the terminal likes: one that stops reading misses frames and holds up nobody.

    Args:
        title: what to call the run; its own name by default.
        stream: the terminal; standard output by default.
        clock: gives the time as the events do, in seconds since the epoch.
    """

    def __init__(
        self, title: str = "", *, stream: TextIO | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.view = RunView(name=title, clock=clock)
        self._stream = stream or sys.stdout
        self._frames = _Frames(self._stream)
        self._lock = threading.Lock()  # guards the view: events come from one thread, frames are painted in others
        self._screen = Screen(self.view, is_last=False, lock=self._lock)
        self._console = Console(file=self._frames, force_terminal=True)
        self._live = self._new_frame()
        self._is_closed = False
        self._painted = (-1, float("-inf"))
        self._size = self._console.size
        self._scrolled_away = 0  # lines of frames, above the top of the terminal
        self._suspending, self._left = threading.Event(), threading.Event()
        self._ticker = Ticker(self._tick, self._finish)
        self._stop_watching = when_suspended(self._leave, self._suspending.clear)

    def __call__(self, event: Event) -> None:
        """Take one event into account, and show it with the next frame."""
        if self._is_closed:
            return
        with self._lock:
            fold(self.view, event)
        self._ticker.start()
        if event.kind == EventKind.RUN_ENDED:
            self.close()

    observe = __call__

    def close(self) -> None:
        """Paint the last frame, say where to read on, and give the terminal back, if it takes that in time."""
        self._is_closed = True
        self._ticker.close()
        self._stop_watching()

    def _new_frame(self) -> Live:
        """Make the live view that paints below everything that is there, and later over itself."""
        return Live(self._screen, console=self._console, auto_refresh=False, redirect_stderr=False)

    def _tick(self) -> None:
        is_suspending = self._suspending.is_set()
        if is_suspending or is_in_background(self._stream):
            self._leave_frame()
        else:
            self._paint()
        self._frames.pass_on()
        if is_suspending:
            self._left.set()  # now that the terminal has it: nothing is written by a process that is stopped

    def _leave(self) -> None:
        """Have the terminal given back for as long as this process is suspended."""
        self._left.clear()
        self._suspending.set()
        self._left.wait(SECONDS_TO_LEAVE)  # also where it takes nothing

    def _leave_frame(self) -> None:
        """Let the frame stand as it is: what is painted next has others' output above it."""
        if self._live.is_started:
            self._frames.pass_on()
            self._live.stop()
            self._frames.forget()
            self._console.show_cursor(True)
            self._screen.widths, self._scrolled_away = [], 0
            self._live = self._new_frame()
            self._painted = (-1, float("-inf"))

    def _paint(self) -> None:
        version, painted_at = self._painted
        now = time.monotonic()
        if not self._live.is_started:
            self._live.start()
        if self.view.version != version or now - painted_at >= IDLE_SECONDS:
            self._painted = (self.view.version, now)
            self._fit()
            self._live.refresh()

    def _fit(self) -> None:
        """Erase what a resized terminal shows of the last frame above the lines that Rich goes up to.

        A narrower one wraps lines. A terminal that cuts them where others wrap them loses as many of those above the
        frame. A lower one scrolls the first lines away, and may bring them back when it is higher again; one that does
        not has the frame at its top, where nothing is above it.
        """
        before, self._size = self._size, self._console.size
        if before == self._size:
            return
        width, rows = self._size
        heights = [max(-(-painted // width), 1) if width < before.width else 1 for painted in self._screen.widths]
        more = sum(heights) - len(heights)
        scrolled_away = sum(end <= sum(heights) - rows for end in itertools.accumulate(heights))
        brought_back = min(self._scrolled_away, max(rows - before.height, 0))
        for _ in range(more + brought_back):
            self._console.control(Control((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)))
        self._scrolled_away += scrolled_away - brought_back

    def _finish(self) -> None:
        self._screen.is_last = True
        self._live.start()  # unless it is
        self._fit()
        self._live.stop()  # paints once more
        if self.view.logs_command:
            self._console.print(Text(f"Logs: {self.view.logs_command}"), soft_wrap=True)
        self._frames.pass_on()


class _Frames(io.StringIO):
    """Buffer of what rich has painted and the terminal has not yet been given; and of what others print meanwhile."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal
        self._taking = threading.Lock()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # rich chooses its characters by it
        return self._terminal.encoding or "utf-8"

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._taking:
            return super().write(text)

    def forget(self) -> None:
        """Leave out what has not been passed on."""
        with self._taking:
            self.seek(0)
            self.truncate()

    def pass_on(self) -> None:
        """Write everything to the terminal, however long that takes."""
        with self._taking:
            text = self.getvalue()
            self.seek(0)
            self.truncate()
        if text:
            outlet.write(self._terminal, text)


class Screen:
    """The picture of a view: cause of the failure, progress of the run, and as many workers as fit.

    Below it the cursor has a line to itself unless ``is_last``: there a terminal shows ``^C``, which at the end of a
    full line would move everything. ``lock`` guards the view, where it changes meanwhile.

    Attributes:
        widths: of its lines when it was painted last, in characters' cells.
    """

    def __init__(
        self,
        view: RunView,
        *,
        is_last: bool = True,
        lock: AbstractContextManager[object] | None = None,
        notes: int = NOTES,
    ) -> None:
        self.view = view
        self.is_last = is_last
        self._notes = notes
        self.widths: list[int] = []
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
        top = Group(*heading(self.view, options.max_width, self._notes))
        used = len(console.render_lines(top, options, pad=False))
        rows = (options.height or console.height) - used - 3  # the column titles, "and N more", the cursor
        table = workers_table(self.view, max(rows, 1), options.max_width) if self.view.workers else []
        return [top, *table, *([] if self.is_last else [Text("")])]


def _stripped(line: list[Segment]) -> list[Segment]:
    """The line without the blanks at its end, which a narrower terminal would wrap as well."""
    line = list(line)
    while line and not line[-1].text.rstrip():
        line.pop()
    if line:
        line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
    return line


def heading(view: RunView, width: int, notes: int = NOTES) -> list[RenderableType]:
    """The lines above the workers, with so many of the newest notes."""
    style = COLOURS.get(view.status, "")
    title = Text.assemble(
        (f"{GLYPHS.get(view.status, '●')} {view.name or 'run'}", f"bold {style}"),
        (f"  {view.strategy}" if view.strategy else ""),
        (f"  {view.doing if view.status == 'running' else view.status}", style),
        (f"  {duration(view.elapsed)}", "bold"),
    )
    census = Text(view.census, style="bright_black")
    if title.cell_len + 2 + census.cell_len <= width:
        title = Text.assemble(title, "  ", census)
        census = Text()
    lines: list[RenderableType] = [title, *([census] if census else []), *cause(view, width)]
    bar = overall(view, width)
    if bar is not None:
        lines.append(bar)
    if view.curves:
        lines.append(metrics_columns(view))
    lines += [_cut_to(Text(note, style="yellow"), 2 * width) for note in list(view.notes)[-notes:]]
    return [*lines, Text("")]


def cause(view: RunView, width: int) -> list[RenderableType]:
    """Return the cause of the failure and what to try; cut where it would crowd out everything else."""
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
    """A bar for the rank that is furthest back, since the others will wait for it; None before training.

    As long as the project is on its way to the workers, the bar is for that. A narrow terminal has a shorter bar, and
    then fewer words: the rate goes first. Who has told so is said where others have not.
    """
    if view.fraction is None:
        return None
    part, *position = view.position
    speed = f"{rate(view.rate)} examples/s" if view.rate is not None else ""
    left = f"{duration(view.time_left)} left" if view.time_left is not None else ""
    told = view.tellers
    choices = [
        (part, *position, told, speed, left), (part, *position, told, left), (part, told, left), (part, told), (part,)
    ]  # fmt: skip
    texts = ["  ".join(filter(None, words)) for words in choices]
    text = next((text for text in texts if len(text) + 2 + SHORTEST_BAR <= width), texts[-1])
    grid = Table.grid(padding=(0, 2))
    grid.add_row(_bar(view.fraction, max(SHORTEST_BAR, min(LONGEST_BAR, width - len(text) - 2))), _line(text))
    return grid


def _bar(fraction: float, width: int) -> Text:
    """A thick line for what is done and a thin one for the rest, so that it reads on light and dark and in grey."""
    full, half = divmod(int(2 * width * fraction), 2)
    style = COLOURS["succeeded" if fraction >= 1 else "running"]
    return Text.assemble(("━" * full + "╸" * half, style), ("─" * (width - full - half), "bright_black"), no_wrap=True)


def metrics_columns(view: RunView) -> RenderableType:
    """The newest value of every metric and the way it took; on several lines where one is too short."""
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
    """A column of the table: what is in it, and what makes it worth its place: so wide a terminal, such workers."""

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
    """Text that is cut rather than wrapped."""
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
    return Text(worker.news, style=COLOURS["failed"] if worker.has_failed and worker.reason else "bright_black")


def _name(view: RunView, worker: WorkerView) -> Text:
    return Text.assemble(worker.name, (f" {worker.rank_names}" if worker.ranks else "", "bright_black"))


COLUMNS = (
    Column("worker", _name),
    Column("status", _status, min_width=11),
    Column("address", lambda view, worker: Text(worker.address), from_width=110, where=lambda worker: worker.address),
    Column("phase", _phase, from_width=90),
    Column("progress", _position, below_width=NARROW, where=lambda worker: worker.told),
    Column("progress", _progress, from_width=NARROW, min_width=10, where=lambda worker: worker.told),
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
    Column("last line", _last_line, from_width=NARROW, min_width=12, ratio=1),
)  # fmt: skip


def workers_table(view: RunView, rows: int, width: int) -> list[RenderableType]:
    """One row for each worker that fits, failed ones first, and a line about the others."""
    ordered = view.in_order()
    shown, hidden = ordered[:rows], ordered[rows:]
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style="bright_black")
    columns = [
        column
        for column in COLUMNS
        if column.from_width <= width < column.below_width and (column.where is None or any(map(column.where, shown)))
    ]
    for column in columns:
        table.add_column(column.title, no_wrap=True, ratio=column.ratio, min_width=column.min_width)
    for worker in shown:
        table.add_row(*(column.cell(view, worker) for column in columns))
    if not hidden:
        return [table]
    return [table, Text(f"… and {len(hidden)} more", style="bright_black")]
