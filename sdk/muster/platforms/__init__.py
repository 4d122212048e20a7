"""Platforms by name, each imported when it is first asked for."""

from __future__ import annotations

import difflib
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
    if platform is not None and not isinstance(platform, str):
        raise JobError(
            f"platform is of type {type(platform).__name__}; it must be a name or a platform.",
            advice=f"platform= one of {', '.join(sorted(PLATFORMS))}",
        )
    name = platform or os.environ.get("MUSTER_PLATFORM") or ("workbench" if is_session(os.environ) else "local")
    if name not in PLATFORMS:
        near = difflib.get_close_matches(name.lower(), PLATFORMS, n=1)
        advice = f'platform="{near[0]}"' if near else f"platform= one of {', '.join(sorted(PLATFORMS))}"
        raise JobError(f"There is no platform {name!r}.", advice=advice)
    module, _, attribute = PLATFORMS[name].partition(":")
    created: Platform = getattr(import_module(module), attribute)()
    return created
