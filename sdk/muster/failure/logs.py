"""Ends of workers' logs: the last lines of an attempt, and the report of a crash."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from muster.text.reading import open_regular

ATTEMPT = re.compile(r"^--- attempt \d+ ---\n", re.MULTILINE)  # the line at the beginning of a later attempt
CRASH = "Fatal Python error: "  # the beginning of faulthandler's report
MOST_CALLS = 20  # of it that are shown
THREAD_THAT_CRASHED = "Current thread 0x"
OURS = re.compile(r'  File "(?:<frozen runpy>|[^"]*/(?:runpy\.py|lib(?:rary)?/runner\.py|lib(?:rary)?/muster/[^"]*))"')
OF_LIBRARIES = re.compile(r'  (?!File )|  File "(?:<|[^"]*/(?:lib(?:64)?/python[\d.]+|site-packages)/)')


def mark_attempt(logs: Path, number: int) -> None:
    """Add a line to all logs, as far as the disk has room, that separates a new attempt's output from earlier ones."""
    for log in logs.rglob("*.log"):
        with contextlib.suppress(OSError), log.open("a+b") as file:
            file.seek(max(0, file.seek(0, 2) - 1))
            torn = b"" if file.read() in (b"", b"\n") else b"\n"
            file.write(torn + f"--- attempt {number} ---\n".encode())


def tail(log: Path, lines: int = 20, size: int = 16384) -> str:
    """Return the end of a log, of the last attempt only; empty if there is no log. Invalid UTF-8 is replaced."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, file.seek(0, 2) - size))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    *_, last = ATTEMPT.split(text)  # output of earlier attempts says nothing about the end of this one
    return "\n".join(last.splitlines()[-lines:])


def crash_report(log: Path) -> str:
    """Return the beginning of faulthandler's report at the end of a log: its heading, and the thread that crashed.

    Where that has no Python calls, as threads of compiled code have none, the main thread is shown: it comes last.
    """
    _, heading, report = tail(log, 2000, 65536).rpartition(CRASH)
    reason, *threads = re.split(r"\n(?=(?:Current thread|Thread) 0x)", report)
    if not heading or not threads:
        return ""
    crashed = next((thread for thread in threads if thread.startswith(THREAD_THAT_CRASHED)), threads[-1])
    stack, *_ = re.split(r"\n(?!  )", crashed, maxsplit=1)  # what follows are no calls but names of extension modules
    shown = [line for line in stack.splitlines() if not OURS.match(line)]
    return "\n".join([heading + reason.strip(), *shown[:MOST_CALLS]])


def is_of_script(call: str) -> bool:
    """Return whether a call in faulthandler's report is in a file of the user's, not of a library or of Muster."""
    return not OURS.match(call) and not OF_LIBRARIES.match(call)
