"""Live views of a run. Dashboards are observers: they see events, and cannot change the run."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from muster.dashboard.base import Dashboard, NoDashboard, Shown
from muster.errors import JobError

__all__ = ["Dashboard", "NoDashboard", "Shown", "choose", "is_notebook"]

VARIABLE = "MUSTER_DASHBOARD"
NOTEBOOK = ("widget", "basic")
ELSEWHERE = ("rich", "plain")


def choose(stream: TextIO | None = None, cluster: Shown | None = None) -> Dashboard:
    """The dashboard that suits: a widget in a notebook, else live in a terminal, else plain lines.

    The environment variable ``MUSTER_DASHBOARD`` overrides: ``widget``, ``basic`` (a simpler widget, for notebooks
    that cannot load the other), ``rich``, ``plain`` or ``off``.

    Args:
        stream: what to write to where there is no notebook; standard output by default.
        cluster: what is shown, so that a notebook can stop it and show its logs; None where there is no cluster.

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
    if wanted == "rich" or (wanted != "plain" and _is_terminal(stream)):
        from muster.dashboard.terminal import TerminalDashboard

        return TerminalDashboard(stream=stream)
    from muster.dashboard.plain import PlainDashboard

    return PlainDashboard(stream)


def is_notebook() -> bool:
    """Return whether this is a kernel, which shows what it displays in a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"
