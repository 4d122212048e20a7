"""Processes that runs belong to, described so that other processes can tell whether they still run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def this_session() -> dict[str, Any]:
    """Return what ``run_requested`` records of this process, so that others can tell whether it still runs."""
    return {"pid": os.getpid(), "started": start_time(os.getpid()), "boot": _boot_id(), "pids": _pid_namespace()}


def is_alive(session: Any) -> bool:
    """Return whether the process that ``this_session`` described still runs. Its pid alone may be another's by now."""
    if not isinstance(session, dict) or session.get("boot") != _boot_id():
        return False
    pid = session.get("pid")
    started = start_time(pid) if isinstance(pid, int) else None
    return started is not None and started == session.get("started")


def is_out_of_sight(session: Any) -> bool:
    """Return whether a process, if it still runs, does so on this machine where its pid cannot be seen from here."""
    own = _pid_namespace()
    return isinstance(session, dict) and session.get("boot") == _boot_id() and session.get("pids", own) != own


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None where there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # from field 3 on: field 2, the name, may hold spaces and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
