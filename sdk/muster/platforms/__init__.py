"""Platforms by name, each imported when it is first asked for."""

from __future__ import annotations

import os
from importlib import import_module

from muster.errors import JobError
from muster.platforms.base import Platform
from muster.platforms.workbench.detection import is_session

PLATFORMS = {
    "local": "muster.platforms.local:LocalPlatform",
    "workbench": "muster.platforms.workbench.platform:WorkbenchPlatform",
}


def get_platform(platform: str | Platform | None) -> Platform:
    """The platform of that name, or the given object itself.

    None is what ``MUSTER_PLATFORM`` names; without it the ``workbench``, in one of its sessions, or else ``local``.

    Raises:
        JobError: there is no platform of that name.
        PlatformUnsupported: it cannot be used from here.
    """
    if isinstance(platform, Platform):
        return platform
    name = platform or os.environ.get("MUSTER_PLATFORM") or ("workbench" if is_session(os.environ) else "local")
    if name not in PLATFORMS:
        raise JobError(f"There is no platform {name!r}.", advice=f"platform= one of {', '.join(sorted(PLATFORMS))}")
    module, _, attribute = PLATFORMS[name].partition(":")
    created: Platform = getattr(import_module(module), attribute)()
    return created
