"""Addresses at which container engines listen, found as Docker's and Podman's own tools find them."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from muster.errors import PlatformUnsupported
from muster.text.arguments import Argument, ArgumentText

CONF = "containers/containers.conf"


@dataclass(frozen=True)
class EngineAddress:
    """An address at which an engine may listen, and how it was found."""

    url: str
    source: str


def candidates(asked: str | None, environ: Mapping[str, str]) -> list[EngineAddress]:
    """Return addresses at which an engine may listen, in the order in which Docker's and Podman's tools try them.

    Raises:
        PlatformUnsupported: the tools' own settings name one that cannot be used from here, or are broken.
    """
    if asked:
        return [EngineAddress(asked, "engine=")]
    if environ.get("DOCKER_HOST"):
        return [EngineAddress(environ["DOCKER_HOST"], "DOCKER_HOST")]
    if environ.get("CONTAINER_HOST"):
        return [_of_podman(environ["CONTAINER_HOST"], environ.get("CONTAINER_SSHKEY", ""), "CONTAINER_HOST", environ)]
    connection = environ.get("CONTAINER_CONNECTION")
    chosen = _connection(connection, environ) if connection else _context(environ) or _connection(None, environ)
    if chosen:
        return [chosen]
    folders = [environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"]
    paths = [Path("/var/run/docker.sock"), Path(folders[0], "docker.sock")]
    paths += [Path("/run/podman/podman.sock"), Path(folders[0], "podman", "podman.sock")]
    return [EngineAddress(f"unix://{path}", "its usual place") for path in paths if _may_be_there(path)]


def _may_be_there(path: Path) -> bool:
    """Return whether there is a socket, or a folder for it that this user may not look into: to connect tells."""
    try:
        return path.exists()
    except PermissionError:
        return True


def _context(environ: Mapping[str, str]) -> EngineAddress | None:
    """Return the address of Docker's context, which its tools have stored; None for the default context.

    The ``docker`` package's own look for it is another one: it finds none where Docker has no ``config.json``.

    Raises:
        PlatformUnsupported: there is none of that name, or it has certificates of its own.
    """
    folder = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or Path.home(), ".docker"))
    name = environ.get("DOCKER_CONTEXT") or _read(folder / "config.json", json.loads).get("currentContext")
    if not name or name == "default":
        return None
    digest = hashlib.sha256(name.encode()).hexdigest()
    described = _read(folder / "contexts" / "meta" / digest / "meta.json", json.loads)
    host = ((described.get("Endpoints") or {}).get("docker") or {}).get("Host")
    if not host:
        by = "DOCKER_CONTEXT" if environ.get("DOCKER_CONTEXT") else "its config.json"
        raise PlatformUnsupported(
            f"Docker has no context {name!r}, which {by} names.",
            advice="one that docker context ls shows",
        )
    certificates = folder / "contexts" / "tls" / digest / "docker"
    if certificates.is_dir():
        raise PlatformUnsupported(
            f"Docker's context {name} has certificates of its own, which Muster reads from the environment only.",
            advice=f"DOCKER_HOST={host} DOCKER_TLS_VERIFY=1 DOCKER_CERT_PATH={certificates} in the environment",
        )
    return EngineAddress(host, f"Docker's context {name}")


def _connection(name: str | None, environ: Mapping[str, str]) -> EngineAddress | None:
    """Return the address of one of Podman's connections.

    Args:
        name: its name; None for the one that ``podman system connection default`` has chosen.
        environ: the environment, which may name Podman's files.

    Raises:
        PlatformUnsupported: there is none of that name, or it cannot be used from here.
    """
    # Only here, as all commands import this file, also where what containers need is not installed.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    known: dict[str, Any] = {}
    default = ""
    for path in _containers_conf(environ):
        engine = _read(path, tomllib.loads).get("engine") or {}
        known.update(engine.get("service_destinations") or {})
        default = engine.get("active_service") or default
    # Podman 5 keeps them in a file of their own, by which its tools write them.
    own = environ.get("PODMAN_CONNECTIONS_CONF") or _of_user(environ).with_name("podman-connections.json")
    of_podman_5 = _read(Path(own), json.loads).get("Connection") or {}
    for key, value in (of_podman_5.get("Connections") or {}).items():
        known[key] = {"uri": value.get("URI"), "identity": value.get("Identity")}
    chosen = name or of_podman_5.get("Default") or default
    if not chosen:
        return None
    if not (known.get(chosen) or {}).get("uri"):
        raise PlatformUnsupported(
            f"Podman has no connection {chosen!r}, which {'CONTAINER_CONNECTION' if name else 'its default'} names.",
            advice="one that podman system connection list shows",
        )
    source = f"Podman's connection {chosen}"
    return _of_podman(known[chosen]["uri"], known[chosen].get("identity") or "", source, environ)


def _containers_conf(environ: Mapping[str, str]) -> list[Path]:
    """Return the paths of Podman's settings, those last that count most."""
    if environ.get("CONTAINERS_CONF"):
        found = [Path(environ["CONTAINERS_CONF"])]
    else:
        found = [Path("/usr/share", CONF)]
        for path in (Path("/etc", CONF), _of_user(environ)):
            found += [path, *map(Path, sorted(glob.glob(f"{path}.d/*.conf")))]
    override = environ.get("CONTAINERS_CONF_OVERRIDE")
    return [*found, Path(override)] if override else found


def _of_user(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home(), ".config"), CONF)


def _read(path: Path, parse: Any) -> dict[str, Any]:
    """Return what a file of settings says; nothing where there is none. Raises PlatformUnsupported."""
    try:
        found: dict[str, Any] = parse(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, PermissionError):  # none, or another user's
        return {}
    except (OSError, ValueError) as error:
        raise PlatformUnsupported(
            f"The address of the container engine cannot be read from {path}: {error}.",
            advice=ArgumentText("correct it, or ", Argument("engine", ""), " the address of an engine"),
        ) from error
    return found


def _of_podman(uri: str, identity: str, source: str, environ: Mapping[str, str]) -> EngineAddress:
    """Return the address that one of Podman's settings names.

    Raises:
        PlatformUnsupported: it is reached by ssh, by which the ``docker`` package reaches only a Docker.
    """
    parts = urlsplit(uri)
    if parts.scheme == "unix":
        return EngineAddress(f"unix:///{uri.removeprefix('unix://').lstrip('/')}", source)  # Podman takes two slashes
    if parts.scheme != "ssh":
        return EngineAddress(uri, source)
    local = Path(environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(), f"podman-on-{parts.hostname}.sock")
    login = f"{parts.username}@{parts.hostname}" if parts.username else f"{parts.hostname}"
    options = [*(["-p", str(parts.port)] if parts.port else []), *(["-i", identity] if identity else [])]
    forward = f"{local}:{parts.path.rstrip('/') or '/run/podman/podman.sock'}"
    command = shlex.join(["ssh", "-f", "-N", "-o", "ExitOnForwardFailure=yes", "-L", forward, *options, login])
    raise PlatformUnsupported(
        f"The container engine at {uri} ({source}) is a Podman behind ssh, which Muster cannot reach by itself.",
        advice=ArgumentText(
            f"forward its socket to this machine ({command}), and ", Argument("engine", f"unix://{local}")
        ),
    )
