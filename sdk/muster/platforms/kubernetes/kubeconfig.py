"""The address of a cluster's API and the login to it, from kubeconfig files or a pod's own service account."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.errors import PlatformUnsupported
from muster.runtime.extras import extra
from muster.text.arguments import Argument, ArgumentText

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # folder of a pod's service account
PROGRAMS = "client.authentication.k8s.io/exec"  # name of a cluster's extension for programs that log in
SET_UP = ArgumentText(
    "kubectl get pods: what works there works here; KUBECONFIG names the file, ", Argument("context", ""), " its entry"
)


@dataclass(frozen=True)
class Access:
    """The configured access to a cluster.

    Attributes:
        server: URL of its API.
        namespace: namespace of pods, unless the user names another one.
        source: where this was found, in words.
        authority: certificates of the server's authority (PEM); empty for those that this system trusts.
        is_checked: whether the server's certificate is checked at all.
        server_name: name that the certificate must have; empty for the one in ``server``.
        proxy: URL of a proxy from the kubeconfig; empty where the environment may name one.
        user: the login, with the keys of a kubeconfig's ``user``; files among them by absolute path.
        is_inside: whether this process runs in a pod of the cluster.
        context: entry of the kubeconfig; empty for a pod's service account.
        program_config: the cluster entry's configuration for a login program; None for none.
        files: absolute paths of the kubeconfig files, as ``KUBECONFIG`` lists them; empty for a pod's service account.
    """

    server: str
    namespace: str
    source: str
    authority: str = field(default="", repr=False)
    is_checked: bool = True
    server_name: str = ""
    proxy: str = field(default="", repr=False)  # it may hold a password
    user: Mapping[str, Any] = field(default_factory=dict, repr=False)
    is_inside: bool = False
    context: str = ""
    files: str = ""
    program_config: Any = field(default=None, repr=False)


def find_access(
    context: str | None = None, environ: Mapping[str, str] = os.environ, *, account: Path = ACCOUNT
) -> Access:
    """Find the cluster that ``kubectl`` would use: a kubeconfig's, or else that of the pod of this process.

    Args:
        context: entry of the kubeconfig; None for its current one.
        environ: the environment, in which ``KUBECONFIG`` may list files.
        account: folder of a pod's service account.

    Raises:
        ExtraMissing: the packages that this needs are not installed.
        PlatformUnsupported: there is no configuration, or it is invalid.
    """
    named = environ.get("KUBECONFIG", "")
    paths = [Path(path).expanduser().absolute() for path in named.split(os.pathsep) if path]
    if not paths:
        paths = [Path(environ.get("HOME") or "~").expanduser().absolute() / ".kube" / "config"]
    there = [path for path in paths if path.exists()]
    if there:
        return _of_kubeconfig(there, context)
    host = environ.get("KUBERNETES_SERVICE_HOST")
    if host and (account / "token").exists() and not context and not named:
        return _of_pod(host, environ.get("KUBERNETES_SERVICE_PORT") or "443", account)
    if host and not named:
        raise PlatformUnsupported(
            "This session is a pod that was given no service account, and there is no kubeconfig.",
            advice="ask for a service account with the rights that the guide lists (JupyterHub: "
            "KubeSpawner.service_account and automount_service_account_token), or for a kubeconfig",
        )
    missing = f"KUBECONFIG names {named}, which is not there" if named else f"{paths[0]} is not there"
    raise PlatformUnsupported(f"No Kubernetes cluster is known here: {missing}.", advice=SET_UP)


def _of_pod(host: str, port: str, account: Path) -> Access:
    address = f"[{host}]" if ":" in host else host
    namespace = account / "namespace"
    return Access(
        server=f"https://{address}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        source="this pod's service account",
        authority=(account / "ca.crt").read_text() if (account / "ca.crt").exists() else "",
        user={"tokenFile": str(account / "token")},
        is_inside=True,
    )


def _of_kubeconfig(paths: list[Path], asked: str | None) -> Access:
    merged, current = _merged(paths)
    source = os.pathsep.join(map(str, paths))
    name = asked or current
    if not name:
        raise PlatformUnsupported(
            f"{source} has no current context.", advice=ArgumentText(Argument("context", ""), " one that it has")
        )
    context = merged["contexts"].get(name)
    if context is None:
        known = ", ".join(sorted(merged["contexts"])) or "none"
        raise PlatformUnsupported(
            f"{source} has no context {name!r}; it has: {known}.",
            advice=ArgumentText(Argument("context", ""), " one of those"),
        )
    cluster = merged["clusters"].get(context.get("cluster", ""))
    if not cluster or not cluster.get("server"):
        raise PlatformUnsupported(f"{source}: the cluster of context {name!r} is not there.", advice=SET_UP)
    return Access(
        server=str(cluster["server"]).rstrip("/"),
        namespace=str(context.get("namespace") or "default"),
        source=f"context {name} of {source}",
        authority=content_of(cluster, "certificate-authority"),
        is_checked=not cluster.get("insecure-skip-tls-verify"),
        server_name=str(cluster.get("tls-server-name") or ""),
        proxy=str(cluster.get("proxy-url") or ""),
        user=merged["users"].get(context.get("user", ""), {}),
        context=name,
        files=source,
        program_config=_extension(cluster, PROGRAMS),
    )


def _extension(entry: Mapping[str, Any], name: str) -> Any:
    """Return an extension of an entry; None where it has none of that name."""
    found = [each for each in entry.get("extensions") or [] if isinstance(each, dict) and each.get("name") == name]
    return found[0].get("extension") if found else None


def _merged(paths: list[Path]) -> tuple[dict[str, dict[str, dict[str, Any]]], str]:
    """Return the entries of several files, by kind and name, and the current context; the first of each counts."""
    found: dict[str, dict[str, dict[str, Any]]] = {"clusters": {}, "contexts": {}, "users": {}}
    current = ""
    for path in paths:
        data = _read(path)
        current = current or str(data.get("current-context") or "")
        for kind, entries in found.items():
            for entry in data.get(kind) or []:
                inner = entry.get(kind[:-1]) if isinstance(entry, dict) else None
                if isinstance(inner, dict) and entry.get("name"):
                    entries.setdefault(str(entry["name"]), _absolute(inner, path.parent))
    return found, current


def _read(path: Path) -> dict[str, Any]:
    with extra("kubernetes"):
        import yaml
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PlatformUnsupported(f"The kubeconfig {path} cannot be read: {error}.") from error
    if data is None:  # an empty file, as kubectl takes it
        return {}
    if not isinstance(data, dict):
        raise PlatformUnsupported(f"The kubeconfig {path} is none: it is no mapping.")
    return data


def _absolute(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the entry with its relative paths made absolute, as they are relative to the kubeconfig's folder."""
    files = {"certificate-authority", "client-certificate", "client-key", "tokenFile"}
    found = {key: str(folder / value) if key in files and value else value for key, value in entry.items()}
    program = found.get("exec")
    if isinstance(program, dict) and os.sep in str(program.get("command")):  # a plain name is found on PATH
        found["exec"] = {**program, "command": str(folder / program["command"])}
    return found


def content_of(entry: Mapping[str, Any], key: str) -> str:
    """Return the text of an entry's key: its base64 (``KEY-data``), or the file that it names; empty without either.

    Raises:
        PlatformUnsupported: the text cannot be decoded or read.
    """
    try:
        if entry.get(f"{key}-data"):
            data = "".join(entry[f"{key}-data"].split())  # YAML may have it on several lines
            return base64.b64decode(data, validate=True).decode()
        return Path(entry[key]).read_text() if entry.get(key) else ""
    except (OSError, AttributeError, UnicodeDecodeError, binascii.Error) as error:
        raise PlatformUnsupported(f"{key} of the kubeconfig cannot be read: {error}.") from error
