"""A small client of a cluster's API: JSON over HTTPS, with what goes wrong on the way mended or named.

Requests are repeated where that can help, those that make something, too: what has a name is made once, and a repeated
request says that it is there. Any threads may use one client.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from muster.errors import PlatformError, PlatformUnsupported
from muster.platforms.kubernetes.credentials import Credential, Credentials
from muster.platforms.kubernetes.kubeconfig import SET_UP, Access
from muster.runtime.extras import extra

if TYPE_CHECKING:
    import urllib3

CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
PATIENCE = 20.0  # seconds for which a request is repeated at most
PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)  # before a request is repeated
LONGEST_PAUSE = 10.0  # that a server may ask for
CONNECTIONS = 8


class ClusterGone(PlatformError):
    """The cluster's API does not answer."""


class Refused(PlatformError):
    """The cluster's API says no.

    Attributes:
        code: status of the answer, such as 403.
        reason: its reason as one word, such as ``AlreadyExists``.
        said: its message.
    """

    def __init__(self, what: str, code: int, answer: Mapping[str, Any], advice: str | None = None) -> None:
        self.code = code
        self.reason = str(answer.get("reason") or "")
        self.said = str(answer.get("message") or f"status {code}")
        super().__init__(f"{what}: {self.said}", advice=advice)


class Client:
    """Asks a cluster's API.

    Args:
        access: the cluster, and how to log in to it.

    Attributes:
        access: the same.
        requests: how many have been sent.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.requests = 0
        self._credentials = Credentials(access)
        self._lock = threading.Lock()
        self._pool: urllib3.PoolManager | None = None
        self._shown = Credential()  # the certificate of the pool's connections

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return what is there. Raises as ``ask``."""
        return self.ask("GET", path, query=query)

    def text(self, path: str) -> str:
        """Return what is there as text, such as a log; empty where there is nothing. Raises as ``ask``."""
        try:
            answer = self.ask("GET", path)
        except Refused as error:
            if error.code in (400, 404):
                return ""
            raise
        return str(answer.get("text", ""))

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make something. Raises as ``ask``."""
        return self.ask("POST", path, body)

    def delete(self, path: str, body: Mapping[str, Any] | None = None, **query: str) -> bool:
        """Delete what is there; return whether there was anything. Raises as ``ask``."""
        try:
            self.ask("DELETE", path, body, query)
        except Refused as error:
            if error.code in (404, 409):  # gone, or somebody else is at it
                return False
            raise
        return True

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request, again and again for some seconds where that can help, and return the answer.

        Raises:
            ClusterGone: there is no answer.
            Refused: it says no.
            PlatformUnsupported: there are no credentials to show.
        """
        what = f"{method} {path}"
        query = dict(query or {})
        deadline = time.monotonic() + PATIENCE
        has_new_credentials = False
        pauses = iter(PAUSES)
        while True:
            try:
                status, headers, answer = self._send(method, path, body, query)
            except ClusterGone:
                pause = next(pauses, None)
                if pause is None or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                continue
            if status < 400:
                return answer
            error = Refused(what, status, answer, _advice(status))
            if status == 401 and not has_new_credentials and self._credentials.forget():
                has_new_credentials = True
                continue
            if status == 410 and query.pop("resourceVersion", None) is not None:
                continue  # older than what the server remembers: whatever it has now
            if status != 429 and status < 500:
                raise error
            pause = _retry_after(headers) or next(pauses, None)
            if pause is None or time.monotonic() + pause > deadline:
                raise error
            time.sleep(pause)

    def close(self) -> None:
        """Close all connections. The client can be used again."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], dict[str, Any]]:
        import urllib3

        credential = self._credentials.current()
        pool = self._connections(credential)
        headers = {"Accept": "application/json", "User-Agent": "muster"}
        if credential.header:
            headers["Authorization"] = credential.header
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = self.access.server + path + ("?" + urlencode(query) if query else "")
        self.requests += 1
        try:
            response = pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
                retries=False,
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise _gone(self.access, error) from error
        return response.status, response.headers, _content(response)

    def _connections(self, credential: Credential) -> urllib3.PoolManager:
        with extra("kubernetes"):
            import urllib3
        with self._lock:
            if self._pool is None or (credential.certificate, credential.key) != (
                self._shown.certificate,
                self._shown.key,
            ):
                settings: dict[str, Any] = {
                    "ssl_context": tls_context(self.access, credential),
                    "maxsize": CONNECTIONS,
                    "block": True,
                }
                if self.access.server_name:
                    settings |= {"server_hostname": self.access.server_name}
                if self.access.proxy:
                    self._pool = urllib3.ProxyManager(self.access.proxy, **settings)
                else:
                    self._pool = urllib3.PoolManager(**settings)
                self._shown = credential
            return self._pool


def _content(response: urllib3.BaseHTTPResponse) -> dict[str, Any]:
    """Return the content of an answer; text that is no JSON as ``text``, and in short as ``message``."""
    text = response.data.decode("utf-8", "surrogateescape")
    if "json" not in response.headers.get("Content-Type", ""):
        return {"text": text, "message": text[:500]}
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"message": text[:500]}


def tls_context(access: Access, credential: Credential) -> ssl.SSLContext:
    """Return how connections to a cluster's API are made.

    Raises:
        PlatformUnsupported: its certificates cannot be read.
    """
    try:
        context = ssl.create_default_context(cadata=access.authority or None)
        if access.server_name:
            context.check_hostname = True
        if not access.is_checked:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if credential.certificate:
            # The library reads files only. This one is private, and gone at once.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(credential.certificate.rstrip("\n") + "\n" + credential.key)
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as error:
        raise PlatformUnsupported(
            f"The certificates of {access.source} cannot be used: {error}.", advice=SET_UP
        ) from error
    return context


def _gone(access: Access, error: Exception) -> ClusterGone:
    cause: BaseException = error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    words = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return ClusterGone(
        f"The cluster's API at {access.server} ({access.source}) does not answer: {words}.", advice=SET_UP
    )


def _retry_after(headers: Mapping[str, str]) -> float | None:
    with contextlib.suppress(ValueError, TypeError):
        return min(max(float(headers.get("Retry-After", "")), 0.05), LONGEST_PAUSE)
    return None


def _advice(status: int) -> str | None:
    if status == 401:
        return SET_UP
    return None
