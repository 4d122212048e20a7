"""Live views of a run. Dashboards are observers: they receive events, and cannot change the run."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from muster.dashboard.base import Dashboard, NoDashboard, Shown
from muster.errors import JobError
from muster.runtime.outlet import takes_escapes
from muster.runtime.suspension import is_in_background

__all__ = ["Dashboard", "NoDashboard", "Shown", "choose", "is_notebook", "is_terminal"]

VARIABLE = "MUSTER_DASHBOARD"
NOTEBOOK = ("widget", "basic")
ELSEWHERE = ("rich", "plain")
OF_A_CELL = {"TERM": "xterm-color", "GIT_PAGER": "cat"}  # variables that ipykernel sets for a cell's shell commands


def choose(stream: TextIO | None = None, cluster: Shown | None = None) -> Dashboard:
    """Return the dashboard that suits: a widget in a notebook, a live picture in a terminal, else plain lines.

    A process in the background of a terminal, as with ``&``, gets plain lines, too: others write there meanwhile.

    The environment variable ``MUSTER_DASHBOARD`` overrides: ``widget``, ``basic`` (a simpler widget, for notebooks
    that cannot load the other), ``rich``, ``plain`` or ``off``.

    Args:
        stream: the stream to write to outside a notebook; standard output by default.
        cluster: the cluster to show, so that a notebook can stop it and show its logs; None if there is none.

    Raises:
        JobError: ``MUSTER_DASHBOARD`` has another value.
    """
    stream = sys.stdout if stream is None else stream
    wanted = os.environ.get(VARIABLE) or ""
    if wanted not in {"", "off", *NOTEBOOK, *ELSEWHERE}:
        known = "widget, basic, rich, plain or off"
        raise JobError(f"{VARIABLE} is {wanted!r}.", advice=f"set {VARIABLE} to {known}, or unset it")
    if wanted == "off" or (stream is None and not is_notebook()):  # a process without a standard output
        return NoDashboard()
    if cluster is not None and wanted not in ELSEWHERE and is_notebook():
        from muster.dashboard.display import dashboard_of

        return dashboard_of(cluster, wanted)
    if wanted == "rich" or (wanted != "plain" and is_terminal(stream)):
        from muster.dashboard.terminal import TerminalDashboard

        return TerminalDashboard(stream=stream)
    from muster.dashboard.plain import PlainDashboard

    return PlainDashboard(stream)


def is_notebook() -> bool:
    """Return whether this process is a kernel, whose output a notebook displays."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def is_terminal(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal where a picture can be painted over, and nobody else writes meanwhile.

    False for a command in a notebook's cell (``!muster show``), though IPython gives the command a terminal.
    """
    if not takes_escapes(stream):
        return False
    is_in_cell = all(os.environ.get(name) == value for name, value in OF_A_CELL.items())
    return not is_in_cell and not is_in_background(stream)
