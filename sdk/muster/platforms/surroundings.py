"""Facts that a session's environment tells, on any platform: where its web port is shown, and when idleness ends it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from muster.platforms.workbench.detection import is_session

IDLE_MINUTES = 60.0  # the workbench's default


class WebApp(NamedTuple):
    """A port of the session that the workbench shows in the browser, and its URL there."""

    port: int
    url: str


def web_app(environ: Mapping[str, str]) -> WebApp | None:
    """Return the port that the workbench shows in the browser for a session with this environment; None for none.

    The workbench shows it under a subdomain for each engine. An IP address has no subdomains: it is the domain under
    ``muster serve``, which shows no ports.
    """
    port, domain, engine = (environ.get(f"CDSW_{name}", "") for name in ("APP_PORT", "DOMAIN", "ENGINE_ID"))
    if not port.isdecimal() or not domain or not engine or _is_address(urlsplit(f"//{domain}").hostname or ""):
        return None
    scheme = urlsplit(environ.get("CDSW_PROJECT_URL", "")).scheme or "https"
    return WebApp(int(port), f"{scheme}://{engine}.{domain}/")


def idle_minutes(environ: Mapping[str, str]) -> float | None:
    """Return the minutes without a browser after which a session with this environment is ended; None for never."""
    given = environ.get("IDLE_MAXIMUM_MINUTES", "")
    if given.isdecimal():
        return float(given)
    return IDLE_MINUTES if is_session(environ) else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
