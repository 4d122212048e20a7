"""Detection of a session of the workbench, and of its client library."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping

LIBRARIES = ("cml.workers_v1", "cdsw")  # of newer runtimes, and of older engines
REST_VARIABLES = ("CDSW_API_KEY", "CDSW_PROJECT_URL", "CDSW_ENGINE_URL")


def is_session(environ: Mapping[str, str]) -> bool:
    """Return whether this environment is that of a session of the workbench, which can launch workers."""
    if not environ.get("CDSW_ENGINE_ID"):
        return False
    return all(environ.get(name) for name in REST_VARIABLES) or find_library() is not None


def find_library() -> str | None:
    """Return the name of the workbench's client library; None where there is none."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError, ValueError):  # no parent package; a module without a spec
            spec = importlib.util.find_spec(name)
            if spec and spec.name == name:  # not Muster's own stand-in for it
                return name
    return None
