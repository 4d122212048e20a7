"""The credentials of requests: tokens, token files, passwords, certificates, and programs that return them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from muster.errors import PlatformUnsupported
from muster.platforms.kubernetes.kubeconfig import Access, content_of
from muster.platforms.timestamps import timestamp

TOKEN_FILE_SECONDS = 60.0  # after which a token file is read again, as other programs renew it
PROGRAM_SECONDS = 60.0  # time that a program may take to print its credential
LAST_WORDS = 1000  # characters of its error output in errors
EARLY_SECONDS = 30.0  # before its expiration at which a token is no longer used
VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Credential(NamedTuple):
    """A credential: a request's Authorization header, or a client certificate with its key (PEM); others are empty."""

    header: str = ""
    certificate: str = ""
    key: str = ""

    def __repr__(self) -> str:
        """Name the fields that are set, without their secret values."""
        return f"Credential({', '.join(name for name, value in self._asdict().items() if value)})"


class Credentials:
    """The credential of a user, which is obtained again when it is about to expire or was refused.

    Args:
        access: how the user logs in.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._user = access.user
        self._lock = threading.Lock()
        self._known: Credential | None = None
        self._until = 0.0  # on the wall clock

    def current(self) -> Credential:
        """Return the current credential.

        Raises:
            PlatformUnsupported: its file cannot be read, or its program fails.
        """
        with self._lock:
            if self._known is None or time.time() >= self._until:
                self._known, self._until = self._ask()
            return self._known

    def renew(self, refused: Credential) -> bool:
        """Drop the credential if it is still the refused one, and return whether another attempt can help.

        So several requests that are refused at the same time log in only once.
        """
        with self._lock:
            if self._known is refused:
                self._known = None
        return bool(self._user.get("exec") or self._user.get("tokenFile"))

    def _ask(self) -> tuple[Credential, float]:
        user, forever = self._user, float("inf")
        if user.get("exec"):
            return self._of_program(user["exec"])
        certificate, key = content_of(user, "client-certificate"), content_of(user, "client-key")
        if user.get("tokenFile"):
            try:
                token = Path(user["tokenFile"]).read_text().strip()
            except OSError as error:
                raise PlatformUnsupported(f"The token of the cluster's user cannot be read: {error}.") from error
            return Credential(f"Bearer {token}", certificate, key), time.time() + TOKEN_FILE_SECONDS
        if user.get("token"):
            return Credential(f"Bearer {user['token']}", certificate, key), forever
        if user.get("username"):
            both = f"{user['username']}:{user.get('password', '')}"
            return Credential("Basic " + base64.b64encode(both.encode()).decode(), certificate, key), forever
        if user.get("auth-provider") and not certificate:
            raise PlatformUnsupported(
                "The kubeconfig logs in by an auth-provider, which Kubernetes has given up.",
                advice="have the cloud's tool write it again: newer ones name a program under exec",
            )
        return Credential("", certificate, key), forever

    def _of_program(self, described: Mapping[str, Any]) -> tuple[Credential, float]:
        said = run_program(described, self._access)
        header = f"Bearer {said['token']}" if said.get("token") else ""
        credential = Credential(header, said.get("clientCertificateData") or "", said.get("clientKeyData") or "")
        until = timestamp(said.get("expirationTimestamp"))
        return credential, until - EARLY_SECONDS if until else float("inf")


def run_program(described: Mapping[str, Any], access: Access) -> dict[str, Any]:
    """Run the program of a kubeconfig's ``exec``, and return the ``status`` that it prints.

    Args:
        described: the kubeconfig's ``exec`` entry.
        access: the cluster, which is described to programs that ask for it (``provideClusterInfo``).

    Raises:
        PlatformUnsupported: the program is missing, fails, or prints something else.
    """
    command = str(described.get("command") or "")
    version = str(described.get("apiVersion") or "")
    if version not in VERSIONS:
        raise PlatformUnsupported(
            f"The kubeconfig logs in by {command}, which speaks {version}; Muster knows {' and '.join(VERSIONS)}.",
            advice="a newer version of that program, and have it write the kubeconfig again",
        )
    if described.get("interactiveMode") == "Always":
        raise PlatformUnsupported(
            f"{command}, which logs in to the cluster, wants to ask something, and nobody is there to answer.",
            advice="another way to log in for this session; some such programs have one for scripts",
        )
    spec: dict[str, Any] = {"interactive": False}
    if described.get("provideClusterInfo"):
        spec["cluster"] = _told_of(access)
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    own = {str(entry["name"]): str(entry["value"]) for entry in described.get("env") or []}
    try:
        done = subprocess.run(
            [command, *map(str, described.get("args") or [])],
            env={**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROGRAM_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise PlatformUnsupported(
            f"{command}, which logs in to the cluster, takes more than {PROGRAM_SECONDS:g} s."
        ) from None
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode("utf-8", "replace").strip()[-LAST_WORDS:] or "nothing"
        raise PlatformUnsupported(
            f"{command}, which logs in to the cluster, failed with status {error.returncode} and said: {words}",
            advice="log in with it in a terminal, then again",
        ) from None
    except OSError as error:
        raise PlatformUnsupported(
            f"{command}, which logs in to the cluster, cannot be run: {error.strerror}.",
            advice=str(described.get("installHint") or "install it, or put it on PATH"),
        ) from error
    try:
        said = json.loads(done.stdout)
        status = said["status"]
        if said.get("apiVersion") != version or not (status.get("token") or status.get("clientCertificateData")):
            raise ValueError("no credential of that version")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise PlatformUnsupported(f"{command}, which logs in to the cluster, did not say a credential.") from None
    return dict(status)


def _told_of(access: Access) -> dict[str, Any]:
    """Return the description of the cluster for a program, without fields that the kubeconfig does not set."""
    authority = base64.b64encode(access.authority.encode()).decode()
    told = {
        "server": access.server,
        "tls-server-name": access.server_name,
        "insecure-skip-tls-verify": not access.is_checked,
        "certificate-authority-data": authority,
        "proxy-url": access.proxy,
        "config": access.program_config,
    }
    return {name: value for name, value in told.items() if value}
