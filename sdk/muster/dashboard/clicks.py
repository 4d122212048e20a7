"""Clicks that reach Python while a cell runs."""

from __future__ import annotations

from typing import Any


def let_clicks_through(comm: Any) -> None:
    """Have what a page says answered on the thread that it comes in on, while a cell keeps the main thread.

    ipykernel 7.4 sends it to the thread that the comm was last used from, which may be the one that is busy. Before 7
    there is but one thread, and nothing to be done here.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default
