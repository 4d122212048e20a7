"""Sessions: descriptions of processes, by which others can tell whether they still run; and the runs of this one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Any

from muster.runtime.forks import in_forked_children

WAKE = "fg in its terminal, or kill -CONT {}"  # a suspended process

_begun: set[str] = set()  # ids of the runs that this process has begun
in_forked_children(_begun.clear)  # a child has begun none


def this_session() -> dict[str, Any]:
    """Return the description of this process in ``run_requested``, by which others can tell whether it still runs."""
    where = {"boot": _boot_id(), "pids": _pid_namespace(), "host": socket.gethostname()}
    return {"pid": os.getpid(), "started": start_time(os.getpid()), **where}


def note_begun(run_id: str) -> None:
    """Note that this process has begun a run, detached or not."""
    _begun.add(run_id)


def has_begun(run_id: str) -> bool:
    """Return whether this process has begun a run."""
    return run_id in _begun


def is_alive(session: Any) -> bool:
    """Return whether the process that ``this_session`` described still runs; its pid may have been reused."""
    if not isinstance(session, dict) or session.get("boot") != _boot_id():
        return False
    pid = session.get("pid")
    started = start_time(pid) if isinstance(pid, int) else None
    return started is not None and started == session.get("started")


def suspended(session: Any) -> int | None:
    """Return the pid of the process that ``this_session`` described if it is suspended, as by Ctrl-Z; else None."""
    if not is_alive(session):
        return None
    pid: int = session["pid"]
    return pid if _stat(pid)[:1] in (["T"], ["t"]) else None


def words_for_suspended(pid: int) -> str:
    """Return words that say that a run's session is suspended."""
    return f"its session, process {pid}, is suspended (by Ctrl-Z, or SIGSTOP)"


def wake(session: Any) -> None:
    """Resume the process that ``this_session`` described, if it is suspended or just about to be."""
    if is_alive(session):
        with contextlib.suppress(OSError):
            os.kill(session["pid"], signal.SIGCONT)


def is_out_of_sight(session: Any) -> bool:
    """Return whether a process, if it still runs, is in another pid namespace or on another machine.

    Machines may share a folder. A machine that has rebooted since still has its name.
    """
    if not isinstance(session, dict):
        return False
    if session.get("boot") == _boot_id():
        own = _pid_namespace()
        return bool(session.get("pids", own) != own)
    here = socket.gethostname()
    return bool(session.get("host", here) != here)


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is no such process, or it is a zombie."""
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the third one, the state, on; none if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return stat.rpartition(")")[2].split()  # the second field, the name, may contain spaces and parentheses


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
