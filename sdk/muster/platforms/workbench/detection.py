"""Detection of a session of the workbench, and of the interfaces of it that can be used."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping

LIBRARIES = ("cml.workers_v1", "cdsw")  # newer runtimes, older engines
REST_VARIABLES = ("CDSW_API_KEY", "CDSW_PROJECT_URL", "CDSW_ENGINE_URL")


def is_session(environ: Mapping[str, str]) -> bool:
    """Return whether this environment is that of a session of the workbench, which can launch workers."""
    if not environ.get("CDSW_ENGINE_ID"):
        return False
    return all(environ.get(name) for name in REST_VARIABLES) or find_library() is not None


def find_library() -> str | None:
    """The name of the workbench's client library, where there is one."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError, ValueError):  # of the package around it; of a module without a spec
            spec = importlib.util.find_spec(name)
            if spec and spec.name == name:  # and not Muster's own stand-in for it
                return name
    return None
