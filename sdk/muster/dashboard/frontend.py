"""Facts about the frontend that has this kernel run its cells."""

from __future__ import annotations

import os
import sys


def is_jupyter() -> bool:
    """Return whether a Jupyter server's own page shows this kernel: every model of a widget then lives in that page.

    Editors such as VS Code, recognized by the name of the session, load a widget only where it is displayed.
    """
    session = os.environ.get("JPY_SESSION_NAME", "")
    return bool(session) and "-jvsc-" not in session


def is_attended() -> bool:
    """Return whether a person can answer a prompt of this kernel: nbconvert and papermill run notebooks unattended."""
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython.get_ipython() if ipython is not None else None, "kernel", None)
    return bool(getattr(kernel, "_allow_stdin", True))
