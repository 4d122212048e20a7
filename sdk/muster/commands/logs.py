"""``muster logs``: what the workers of a run have printed, also while they print it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.commands import completion, naming
from muster.commands.options import WholeNumber
from muster.records.record import LAUNCHER_LOG
from muster.text.cleaning import clean
from muster.text.reading import LONGEST_LINE, Appended, open_regular

if TYPE_CHECKING:
    pass

BYTES_AT_ONCE = 1 << 22  # of a log
LINES_AT_ONCE = 1000  # as each print takes its time
POLL_SECONDS = 0.2


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
        for name in [worker] if worker else [*opened.worker_names, LAUNCHER_LOG]:
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


def _print_lines(lines: list[bytes], name: str | None) -> None:
    begin = f"{name} | " if name else ""
    for start in range(0, len(lines), LINES_AT_ONCE):
        text = b"\n".join(lines[start : start + LINES_AT_ONCE]).decode("utf-8", errors="replace")
        if not text.replace("\n", "").isprintable():  # one by one they take ten times as long
            text = "\n".join(part for line in text.split("\n") for part in _as_left(line))
        click.echo(begin + text.replace("\n", f"\n{begin}"))


def _as_left(line: str) -> list[str]:
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
