"""Platforms by name, each imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module

from muster.errors import JobError
from muster.platforms.base import Platform

PLATFORMS = {"local": "muster.platforms.local:LocalPlatform"}


def get_platform(platform: str | Platform | None) -> Platform:
    """The platform of that name (``local`` for None), or the given object itself.

    Raises:
        JobError: there is no platform of that name.
    """
    if isinstance(platform, Platform):
        return platform
    name = platform or "local"
    if name not in PLATFORMS:
        raise JobError(f"There is no platform {name!r}.", advice=f"platform= one of {', '.join(sorted(PLATFORMS))}")
    module, _, attribute = PLATFORMS[name].partition(":")
    created: Platform = getattr(import_module(module), attribute)()
    return created
