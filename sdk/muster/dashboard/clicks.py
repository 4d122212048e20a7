"""Workaround for ipykernel, so that clicks on a widget reach Python while a cell runs."""

from __future__ import annotations

from typing import Any


def let_clicks_through(comm: Any) -> None:
    """Have messages of a page handled on the thread that receives them, while a cell occupies the main thread.

    ipykernel 7.4 passes them to the thread that last used the comm, which may be the busy one. Before version 7 there
    is only one thread, and nothing can be done here.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default
