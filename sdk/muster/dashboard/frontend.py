"""Facts about the frontend that has this kernel run its cells."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


def is_jupyter() -> bool:
    """Return whether a Jupyter server's own page shows this kernel: every model of a widget then lives in that page.

    Editors such as VS Code, recognized by the name of the session, load a widget only where it is displayed.
    """
    session = os.environ.get("JPY_SESSION_NAME", "")
    return bool(session) and "-jvsc-" not in session


def is_attended() -> bool:
    """Return whether a person can answer a prompt of this kernel: nbconvert and papermill run notebooks unattended."""
    return bool(getattr(getattr(_shell(), "kernel", None), "_allow_stdin", True))


def when_cell_ends(call: Callable[[], object]) -> None:
    """Call ``call()`` once, at the end of the cell that runs; never where there are no cells."""
    events = getattr(_shell(), "events", None)
    if events is None:
        return

    def ended(*_: Any) -> None:
        events.unregister("post_run_cell", ended)
        call()

    events.register("post_run_cell", ended)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
