"""The environment of a session, whatever platform its workers run on: where it is shown, and when it is ended."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from muster.platforms.workbench.detection import is_session

IDLE_MINUTES = 60.0  # the workbench's own limit where nobody has set another


class WebApp(NamedTuple):
    """A port of the session that is shown in the browser, and the address that it is shown under."""

    port: int
    url: str


def web_app(environ: Mapping[str, str]) -> WebApp | None:
    """The port of a session with this environment that is shown in the browser; None where none is.

    The workbench shows one under a name of its domain for each engine, which an address has none of: that is where
    ``muster serve`` says that it is, which shows nothing.
    """
    port, domain, engine = (environ.get(f"CDSW_{name}", "") for name in ("APP_PORT", "DOMAIN", "ENGINE_ID"))
    if not port.isdigit() or not domain or not engine or _is_address(urlsplit(f"//{domain}").hostname or ""):
        return None
    scheme = urlsplit(environ.get("CDSW_PROJECT_URL", "")).scheme or "https"
    return WebApp(int(port), f"{scheme}://{engine}.{domain}/")


def idle_minutes(environ: Mapping[str, str]) -> float | None:
    """After how long without a browser a session with this environment is ended; None where it is not."""
    given = environ.get("IDLE_MAXIMUM_MINUTES", "")
    if given.isdigit():
        return float(given)
    return IDLE_MINUTES if is_session(environ) else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
