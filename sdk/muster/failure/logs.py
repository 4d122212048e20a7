"""Ends of workers' logs: the last lines of an attempt, and the report of a crash."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from muster.text.reading import open_regular

ATTEMPT = re.compile(r"^--- attempt \d+ ---\n", re.MULTILINE)  # where a later one begins in a log


def mark_attempt(logs: Path, number: int) -> None:
    """Say in all logs that an attempt begins, as far as the disk has room: what was printed before is not its own."""
    for log in logs.rglob("*.log"):
        with contextlib.suppress(OSError), log.open("a+b") as file:
            file.seek(max(0, file.seek(0, 2) - 1))
            torn = b"" if file.read() in (b"", b"\n") else b"\n"
            file.write(torn + f"--- attempt {number} ---\n".encode())


def tail(log: Path, lines: int = 20, size: int = 16384) -> str:
    """The end of a log, of the last attempt alone, leniently decoded; empty where there is none."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, file.seek(0, 2) - size))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    *_, last = ATTEMPT.split(text)  # what an earlier one has printed says nothing of how this one ended
    return "\n".join(last.splitlines()[-lines:])


def crash_report(log: Path, lines: int = 20) -> str:
    """The beginning of what faulthandler has written at the end of a log, with the thread that crashed first."""
    _, heading, report = tail(log, 2000, 65536).rpartition("Fatal Python error: ")
    threads = re.split(r"\n(?=(?:Current thread|Thread) 0x)", report)
    crashed = [thread for thread in threads[1:] if thread.startswith("Current thread")]
    if not heading or not crashed:
        return ""
    stack = re.sub(r'\n  File "[^"]*/runner\.py".*|\n  File "<frozen runpy>".*', "", crashed[0]).strip().splitlines()
    return "\n".join([heading + threads[0].strip(), *stack[:lines]])
