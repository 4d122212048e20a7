"""A small client of a cluster's API: JSON over HTTPS, with retries, and errors that say what went wrong.

Requests are repeated where that can help, also those that create objects: an object with a name is created only once,
and a repeated request is answered with ``AlreadyExists``. A client may be used by any thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from muster.errors import PlatformError, PlatformUnsupported
from muster.platforms.kubernetes.credentials import Credential, Credentials
from muster.platforms.kubernetes.kubeconfig import SET_UP, Access
from muster.platforms.kubernetes.proxies import credentials_of, proxy_of
from muster.runtime.extras import extra

if TYPE_CHECKING:
    import urllib3

CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
PATIENCE = 20.0  # seconds after which a request is not repeated again
PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)  # seconds before each repetition of a request
LONGEST_PAUSE = 10.0  # seconds that a server may ask for (Retry-After)
CONNECTIONS = 8
LARGEST_SHOWN = 500  # bytes in errors of an answer that is not JSON
LARGEST_ANSWER = 256 << 20  # bytes; a list of ten thousand pods has less than half of that


class ClusterGone(PlatformError):
    """The cluster's API does not answer, or something else answers in its place."""


class ApiRefused(PlatformError):
    """The cluster's API refuses a request.

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


class ApiClient:
    """A client of a cluster's API.

    Args:
        access: the cluster, and how to log in to it.

    Attributes:
        access: the same.
        credentials: the user's credentials.
        requests: number of requests that have been sent.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.requests = 0
        self.credentials = Credentials(access)
        self._lock = threading.Lock()
        self._pool: urllib3.PoolManager | None = None
        self._credential = Credential()  # with the certificate of the pool's connections

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return the object or list at a path. Raises what ``ask`` raises."""
        return self.ask("GET", path, query=query)

    def text(self, path: str, most: int = LARGEST_ANSWER, **query: str) -> str:
        """Return the text at a path, such as a log; empty where there is none.

        Args:
            path, query: path and query of the request.
            most: bytes that are read at most.

        Raises:
            ClusterGone, ApiRefused, PlatformUnsupported: as ``ask``.
        """
        try:
            answer = self._answer("GET", path, None, query, Wanted("text", most))
        except ApiRefused as error:
            if error.code in (400, 404):
                return ""
            raise
        return answer.data[:most].decode("utf-8", "surrogateescape")

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, and return it. Raises what ``ask`` raises."""
        return self.ask("POST", path, body)

    def delete(self, path: str, **query: str) -> bool:
        """Delete an object, and return whether there was one to delete. Raises what ``ask`` raises."""
        try:
            self.ask("DELETE", path, query=query)
        except ApiRefused as error:
            if error.code in (404, 409):  # it is gone, or another request is changing it
                return False
            raise
        return True

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request, repeating it for some seconds where that can help, and return the answer.

        Raises:
            ClusterGone: there is no answer, or it is not from a cluster's API.
            ApiRefused: the cluster refuses.
            PlatformUnsupported: the credentials cannot be had.
        """
        content = self._answer(method, path, body, query or {}, Wanted("json", LARGEST_ANSWER)).content()
        if content is None:
            raise ClusterGone(f"{self._where()} answers with something else than JSON to {method} {path}.")
        return content

    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str], wanted: Wanted
    ) -> Answer:
        query = dict(query)
        deadline = time.monotonic() + PATIENCE
        has_new_credentials = False
        pauses = iter(PAUSES)
        while True:
            credential = self.credentials.current()
            try:
                answer = self._send(method, path, body, query, credential, wanted.most)
            except ClusterGone:
                pause = next(pauses, None)
                if pause is None or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                continue
            if answer.status < 400:
                self._check_is_cluster_s(answer, wanted)
                return answer
            error = ApiRefused(f"{method} {path}", answer.status, answer.content() or answer.shown(), _advice(answer))
            if answer.status == 401 and not has_new_credentials and self.credentials.renew(credential):
                has_new_credentials = True
                continue
            if answer.status == 410 and query.pop("resourceVersion", None) is not None:
                continue  # the server no longer has that version: ask for the newest
            if answer.status != 429 and answer.status < 500:
                raise error
            pause = next(pauses, None)
            asked_for = _retry_after(answer.headers)
            if asked_for is not None:  # repeated for as long as the server asks for it, but never without a pause
                pause = max(asked_for, PAUSES[-1] if pause is None else pause)
            if pause is None or time.monotonic() + pause > deadline:
                raise error
            time.sleep(pause)

    def _check_is_cluster_s(self, answer: Answer, wanted: Wanted) -> None:
        """Raise ClusterGone for a successful answer that is not from a cluster's API, such as a proxy's login page."""
        to = answer.headers.get("Location")
        if answer.status >= 300:
            status = f"answers with status {answer.status}"
            what = f"sends requests on to {urlsplit(to).hostname or to}" if to else status
        elif answer.kind == "text/html":
            what = "answers with a page for a browser"
        elif wanted.kind == "json" and answer.kind != "application/json":
            what = f"answers with {answer.kind or 'something'} instead of JSON"
        elif wanted.kind == "json" and len(answer.data) > wanted.most:
            what = f"answers with more than {wanted.most >> 20} MiB"
        else:
            return
        raise ClusterGone(
            f"{self._where()} {what}: that is no answer of a cluster's API, but of something in front of it.",
            advice=SET_UP,
        )

    def _where(self) -> str:
        return f"The cluster's API at {self.access.server} ({self.access.source})"

    def close(self) -> None:
        """Close all connections. The client can be used again."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
        credential: Credential,
        most: int,
    ) -> Answer:
        """Send a request once, and return the answer, reading at most ``most`` + 1 bytes of it."""
        import urllib3

        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "muster"}
        if credential.header:
            headers["Authorization"] = credential.header
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = self.access.server + path + ("?" + urlencode(query) if query else "")
        self.requests += 1
        try:
            response = self._connections(credential).request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                data = response.read(most + 1)
                if len(data) > most:
                    response.close()  # the rest is not read, so the connection cannot be used again
            finally:
                response.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise _gone(self.access, error) from error
        return Answer(response.status, response.headers, data)

    def _connections(self, credential: Credential) -> urllib3.PoolManager:
        with self._lock:
            if self._pool is None or (credential.certificate, credential.key) != (
                self._credential.certificate,
                self._credential.key,
            ):
                self._pool = make_pool(self.access, credential)
                self._credential = credential
            return self._pool


class Wanted(NamedTuple):
    """The expected kind of answer, ``json`` or ``text``, and the most bytes that it may have."""

    kind: str
    most: int


class Answer(NamedTuple):
    """An answer of a cluster's API, or of something else in its place."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def kind(self) -> str:
        """Its media type, without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def content(self) -> dict[str, Any] | None:
        """Return its content as a JSON object; None where it is something else."""
        try:
            found = json.loads(self.data)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def shown(self) -> dict[str, Any]:
        """Return the beginning of an answer that is not JSON, in the form of an API error."""
        text = self.data[:LARGEST_SHOWN].decode("utf-8", "replace").strip()
        return {"message": f"status {self.status}" if self.kind == "text/html" or not text else text}


def proxy_for(access: Access) -> str:
    """Return the URL of the proxy to a cluster's API; empty for a direct connection."""
    return proxy_of(access.server, access.proxy, os.environ)


def make_pool(access: Access, credential: Credential) -> urllib3.PoolManager:
    """Return a pool of connections to a cluster's API, through a proxy where there is one.

    Raises:
        PlatformUnsupported: certificates cannot be read, or the proxy is of a kind that cannot be used.
    """
    with extra("kubernetes"):
        import urllib3
    settings: dict[str, Any] = {"ssl_context": tls_context(access, credential), "maxsize": CONNECTIONS, "block": True}
    if access.server_name:
        settings |= {"server_hostname": access.server_name}
    proxy = proxy_for(access)
    if not proxy:
        return urllib3.PoolManager(**settings)
    if urlsplit(proxy).scheme not in ("http", "https"):
        where = f"{urlsplit(proxy).scheme}://{urlsplit(proxy).hostname}"
        raise PlatformUnsupported(
            f"The way to {access.server} is by the proxy {where}, of a kind that Muster cannot use.",
            advice="one of http or https: proxy-url of the kubeconfig's cluster, or HTTPS_PROXY",
        )
    login = credentials_of(proxy)
    headers = urllib3.make_headers(proxy_basic_auth=login) if login else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, **settings)


def tls_context(access: Access, credential: Credential) -> ssl.SSLContext:
    """Return the TLS context of connections to a cluster's API.

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
            # The library only reads certificates from files. This one is private, and removed at once.
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
        return min(
            max(0.0, float(headers.get("Retry-After", ""))), LONGEST_PAUSE
        )  # in this order, which turns NaN into 0
    return None


def _advice(answer: Answer) -> str | None:
    return SET_UP if answer.status == 401 else None
