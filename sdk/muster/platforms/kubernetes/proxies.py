"""The proxy to a cluster's API: the kubeconfig's, or else the environment's, as ``kubectl`` chooses it."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

DEFAULT_PORTS = {"https": 443, "http": 80}


def proxy_of(server: str, named: str, environ: Mapping[str, str]) -> str:
    """Return the URL of the proxy for a server; empty for a direct connection.

    Args:
        server: address of the cluster's API.
        named: ``proxy-url`` of the kubeconfig, which overrides all variables of the environment, ``NO_PROXY`` too.
        environ: the environment, with ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` in upper or lower case.
    """
    scheme = urlsplit(server).scheme
    found = named or _either(environ, f"{scheme}_proxy")
    if not found or (not named and _is_direct(server, _either(environ, "no_proxy"))):
        return ""
    return found if "://" in found else f"http://{found}"


def credentials_of(proxy: str) -> str:
    """Return the ``name:password`` in a proxy's URL, unquoted; empty where it has none.

    >>> credentials_of("http://me:a%40b@proxy:3128")
    'me:a@b'
    """
    parts = urlsplit(proxy)
    return f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""


def _either(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _is_direct(server: str, exceptions: str) -> bool:
    """Return whether a server is reached without the environment's proxy: a loopback address, or an exception."""
    parts = urlsplit(server)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    address = None
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_is_meant(entry.strip().lower(), host, address, port) for entry in exceptions.split(","))


def _is_meant(entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    """Return whether an entry of ``NO_PROXY`` covers this server: an address, a network, or a domain and subdomains."""
    if entry in ("", "*"):
        return entry == "*"
    if address is not None and "/" in entry:
        with contextlib.suppress(ValueError):
            return address in ipaddress.ip_network(entry, strict=False)
        return False
    wanted, _, number = entry.rpartition(":")
    if not wanted or not number.isdecimal() or (":" in wanted and not wanted.endswith("]")):
        wanted, number = entry, ""
    if number and int(number) != port:
        return False
    wanted = wanted.strip("[]")
    if address is not None:
        return wanted == str(address)
    wanted = wanted.removeprefix("*")
    return host.endswith(wanted) if wanted.startswith(".") else host == wanted or host.endswith(f".{wanted}")
