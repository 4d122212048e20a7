"""A static picture of a run, as HTML and as text, which survives being saved, converted, and opened by somebody else.

Notebooks are stripped of ``<style>``, ``<svg>`` and scripts before they are shown to somebody else. What is kept are
tables, inline styles, ``<progress>`` and images with data URLs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from html import escape
from itertools import compress

from muster.dashboard import attempts
from muster.dashboard.charts import charts
from muster.dashboard.repeat import repeat_command
from muster.dashboard.run import RunView
from muster.dashboard.text import GLYPHS, number, rate, size, volume
from muster.dashboard.worker import WorkerView
from muster.records.runs import Run
from muster.text.cleaning import clean
from muster.text.shown import duration

COLUMNS = ("worker", "status", "phase", "address", "progress", "ex/s", "sent", "cpu", "gpu", "memory", "last line")
MAX_ROWS = 64
TEXT_WIDTH = 120  # characters
MAX_LINE = 200  # characters of a worker's last line, which a page with less room cuts further
LEAST_LINE = 160  # pixels, the least width of the column of last lines
MAX_REASON = 2000  # characters
MAX_LOGS = 8  # of workers whose logs are in the picture, failed ones first
LOG_LINES = 30  # from the end of each log
MAX_LOG = 6000  # characters of these lines
HUES = {  # colours of glyphs, legible on white and on black; the words beside them have the colour of the page's text
    "running": "#1a73e8",
    "starting": "#1a73e8",
    "succeeded": "#188038",
    "failed": "#d93025",
    "timedout": "#d93025",
    "lost": "#d93025",
    "stopping": "#b06000",
}
GREY = "#808080"
RULE = "1px solid rgba(128,128,128,.35)"


def mime_bundle(view: RunView, run: Run | None = None, cover: str = "", remedy: str = "") -> dict[str, str]:
    """Return the picture as a MIME bundle, in all forms in which a notebook keeps an output.

    Args:
        view: the state to show.
        run: the recorded run, whose logs are shown once it has ended.
        cover: CSS class of the enclosing element, over which a live view is put while the run is under way.
        remedy: HTML that says how to see a run under way live here.
    """
    return {"text/html": to_html(view, run, cover, remedy), "text/plain": to_text(view)}


def to_text(view: RunView) -> str:
    """Return the picture as text, as a terminal of ``TEXT_WIDTH`` characters shows it."""
    from rich.console import Console

    from muster.dashboard.screen import heading, workers_table

    console = Console(width=TEXT_WIDTH, color_system=None, force_jupyter=False)
    with console.capture() as capture:
        for part in heading(view, TEXT_WIDTH, notes=None, stage=_stage(view)):
            console.print(part)
        if view.workers:
            console.print(*workers_table(view, MAX_ROWS, TEXT_WIDTH), sep="\n")
        if view.ended is None and view.run_id:
            console.print(
                f"To see its state now: muster show {view.run_id}", soft_wrap=True, markup=False, highlight=False
            )
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def to_html(view: RunView, run: Run | None = None, cover: str = "", remedy: str = "") -> str:
    """Return the picture as HTML: the cause of a failure, progress, curves, a table of the workers, and their logs."""
    parts = [_title(view), _live(view, remedy), _cause(view), _attempts(view), _notes(view)]
    parts += [_progress(view), charts(view), _table(view)]
    if view.ended is not None and run is not None:
        parts += [_logs(view, run), _command(view)]
    style = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45"
    return f'<div class="{cover}" style="{style}">{"".join(parts)}</div>'


def _live(view: RunView, remedy: str) -> str:
    """Return a remark that says when the picture of a run under way was taken, true whenever it is read."""
    if view.ended is not None:
        return ""
    if not view.run_id:
        return ""
    taken = time.strftime("%Y-%m-%d at %H:%M:%S %Z", time.localtime(view.clock()))
    run = escape(view.run_id)
    return (
        f'<div style="color:{GREY}">As it was on {taken}, while it ran. To see its state now: '
        f'<code>muster show {run}</code> in a terminal, or <code>muster.open_run("{run}")</code> in a cell; '
        f"both are live while it runs. <code>muster stop {run}</code> ends it. {remedy}</div>"
    )


def _logs(view: RunView, run: Run) -> str:
    """Return the end of each worker's log, folded under a title with the worker's name."""
    known = set(run.worker_names)
    names = [worker.name for worker in view.in_order() if worker.name in known]
    ends = {name: run.log_end(name, LOG_LINES + 1) for name in names[:MAX_LOGS]}
    logs = [_log(run, name, lines) for name, lines in ends.items() if any(lines)]
    others = len(names) - MAX_LOGS
    if logs and others > 0:
        logs += [f'<div style="color:{GREY}">{others} more: <code>muster logs {escape(run.run_id)} WORKER</code></div>']
    return "".join(logs)


def _log(run: Run, name: str, lines: list[str]) -> str:
    """Return the last of a log's lines, folded; the title counts them if the log has more."""
    shown = lines[-LOG_LINES:]
    while len(shown) > 1 and sum(map(len, shown)) > MAX_LOG:
        del shown[0]
    text = "\n".join(shown)[-MAX_LOG:]
    if len(shown) == len(lines):
        return _folded(f"log of {name}", text)
    count = f"{len(shown)} lines" if len(shown) > 1 else "line"
    return _folded(f"log of {name}: its last {count}; all of it: muster logs {run.run_id} {name}", text)


def _command(view: RunView) -> str:
    """Return the commands that repeat the run, write a page about it, and print its logs, folded."""
    again = repeat_command(view.job)
    lines = [f"again: {again}"] if again else []
    if view.run_id:
        lines += [f"in one page, with the ends of the logs: muster show {view.run_id} --html run.html"]
        lines += [f"whole logs: muster logs {view.run_id}"]
    return _folded("commands", "\n".join(lines))


def _folded(title: str, text: str) -> str:
    return (
        f'<details style="margin-top:4px"><summary>{escape(title)}</summary>'
        f'<pre style="white-space:pre-wrap;max-height:320px;overflow:auto">{escape(clean(text))}</pre></details>'
    )


def _stage(view: RunView) -> str:
    """Return the run's status; while it is under way, its stage with the time, as it may be read long afterwards."""
    if view.ended is not None:
        return view.status
    stage = "had not started" if view.started is None else f"was {view.doing}"
    return f"{stage} at {time.strftime('%H:%M:%S', time.localtime(view.clock()))}"


def _title(view: RunView) -> str:
    took = duration(view.elapsed) if view.started is not None else ""
    facts = [view.strategy, _stage(view), took, view.run_id]
    glyph = _glyph(view.status if view.ended is not None else "")
    return (
        f'<div style="font-size:14px;overflow-wrap:anywhere">{glyph}&nbsp;<strong>{escape(view.name or "run")}</strong>'
        f" &nbsp; {escape(' · '.join(filter(None, facts)))}</div>"
    )


def _cause(view: RunView) -> str:
    if not view.reason:
        return ""
    colour = HUES["failed"] if view.status == "failed" else GREY
    lines = [f'<strong style="white-space:pre-wrap">{escape(view.cause[:MAX_REASON])}</strong>']
    if view.advice:
        lines.append(f"Try: {escape(view.advice)}")
    if view.exception:
        lines.append(f"<details><summary>traceback</summary><pre>{escape(view.exception)}</pre></details>")
    return f'<div style="margin:8px 0;padding:4px 10px;border-left:3px solid {colour}">{"<br>".join(lines)}</div>'


def _attempts(view: RunView) -> str:
    """Return the table of attempts; empty where there was but one."""
    rows = attempts.table(view.attempts, view.started or 0.0)
    if not rows:
        return ""
    titles, *rows = rows
    style = "text-align:left;vertical-align:top;padding:2px 10px 2px 0"
    lines = ["".join(f'<th style="{style}">{title}</th>' for title in titles)]
    lines += ["".join(f'<td style="{style};border-top:{RULE}">{escape(cell)}</td>' for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table style="border-collapse:collapse;margin:6px 0">{body}</table>'


def _notes(view: RunView) -> str:
    return "".join(f'<div style="white-space:pre-wrap">{escape(note)}</div>' for note in view.other_remarks)


def _progress(view: RunView) -> str:
    slowest = view.slowest
    where = view.position
    if view.metrics_from and slowest and view.slowest_worker and slowest.is_well_behind(view.metrics_from[1]):
        # The metrics come from another rank, which is well ahead.
        where = [
            f"slowest: {view.slowest_worker.name}, {slowest.position}",
            f"{view.metrics_from[0]}: {view.metrics_from[1].position}",
        ]
    facts = [
        *where,
        view.share_reporting,
        *(f"{name} {number(value)}" for name, value in view.metrics.items()),
        f"{rate(view.rate)} examples/s" if view.rate is not None else "",
        f"scaling efficiency {100 * view.efficiency:.0f} %" if view.efficiency is not None else "",
    ]
    bar = "" if view.fraction is None else f"{_bar(view.fraction, 200)} "
    text = escape(" · ".join(filter(None, facts)))
    return f'<div style="margin:6px 0;white-space:normal">{bar}{text}</div>' if bar or text else ""


def _table(view: RunView) -> str:
    if not view.workers:
        return ""
    shown = view.in_order()[:MAX_ROWS]
    cells = [_cells(view, worker) for worker in shown]
    filled = [any(column) for column in zip(*cells, strict=True)]
    head = "text-align:left;padding:2px 10px 2px 0;white-space:nowrap"
    titles = [f'<th style="{head}">{title}</th>' for title in compress(COLUMNS, filled)]
    least = LEAST_LINE if filled[-1] else 0
    rows = "".join(_row(compress(row, filled), least) for row in cells)
    hidden = len(view.workers) - len(shown)
    more = f"<div>… and {hidden} more, {escape(view.census)} in all</div>" if hidden else ""
    # Columns as wide as their cells: by default notebooks make all alike, and long cells run into the next column.
    style = "border-collapse:collapse;margin-top:6px;width:100%;table-layout:auto"
    table = f'<table style="{style}"><tr>{"".join(titles)}</tr>{rows}</table>'
    return f'<div style="overflow-x:auto">{table}</div>{more}'


def _row(cells: Iterable[str], least: int) -> str:
    """Return a row of the table.

    The last cell is cut to the room left, but to no less than ``least`` pixels; with 0 it is not cut.
    """
    style = f"text-align:left;padding:2px 10px 2px 0;border-top:{RULE};white-space:nowrap"
    *others, last = cells
    columns = "".join(f'<td style="{style}">{cell}</td>' for cell in others)
    cut = f";max-width:0;min-width:{least}px;overflow:hidden;text-overflow:ellipsis" if least else ""
    rest = f"{style};width:100%{cut}"
    return f'<tr>{columns}<td style="{rest}">{last}</td></tr>'


def _cells(view: RunView, worker: WorkerView) -> list[str]:
    ranks = f" {worker.rank_names}" if worker.ranks else ""
    part = worker.fraction
    return [
        escape(worker.name + ranks),
        f"{_glyph(worker.status)} {escape(worker.status)}",
        escape(view.phase_of(worker)),
        escape(worker.address),
        ("" if part is None else f"{_bar(part, 60)} ") + escape(worker.slowest.position),
        rate(worker.rate),
        volume(worker.sent),
        "" if worker.cpu is None else f"{worker.cpu:.1f}",
        escape(worker.gpu_use),
        size(worker.memory, view.limit_of(worker)),
        escape(_cut(view.news_of(worker))),
    ]


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"


def _glyph(status: str) -> str:
    return f'<span style="color:{HUES.get(status, GREY)}">{GLYPHS.get(status, "○")}</span>'


def _bar(part: float, width: int) -> str:
    return f'<progress value="{part:.3f}" max="1" style="width:{width}px"></progress>'
