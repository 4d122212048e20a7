"""Platforms by name, each imported when it is first asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module

from muster.errors import JobError
from muster.platforms.base import Platform

PLATFORMS = {
    "local": "muster.platforms.local:LocalPlatform",
    "workbench": "muster.platforms.workbench:WorkbenchPlatform",
}


def in_workbench(environ: Mapping[str, str]) -> bool:
    """Whether this environment is that of a session of Cloudera's workbench."""
    return all(environ.get(name) for name in ("CDSW_ENGINE_ID", "CDSW_API_KEY", "CDSW_PROJECT_URL", "CDSW_ENGINE_URL"))


def get_platform(platform: str | Platform | None) -> Platform:
    """The platform of that name, or the given object itself.

    None is what ``MUSTER_PLATFORM`` names; without it the ``workbench``, in one of its sessions, or else ``local``.

    Raises:
        JobError: there is no platform of that name.
        PlatformUnsupported: it cannot be used from here.
    """
    if isinstance(platform, Platform):
        return platform
    name = platform or os.environ.get("MUSTER_PLATFORM") or ("workbench" if in_workbench(os.environ) else "local")
    if name not in PLATFORMS:
        raise JobError(f"There is no platform {name!r}.", advice=f"platform= one of {', '.join(sorted(PLATFORMS))}")
    module, _, attribute = PLATFORMS[name].partition(":")
    created: Platform = getattr(import_module(module), attribute)()
    return created
