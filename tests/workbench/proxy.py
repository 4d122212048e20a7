"""A proxy between a session and its workbench that does harm to chosen requests, over real HTTP."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FOREVER = 1 << 30


class Proxy:
    """A proxy before a workbench, which harms requests as told.

    Attributes:
        url: where it listens.
        seen: the methods of the requests that came, in order.
    """

    def __init__(self, upstream: str) -> None:
        self.url = ""
        self.seen: list[str] = []
        self._upstream = urlsplit(upstream).netloc
        self._harm: dict[str, tuple[str, int, int]] = {}
        self._lock = threading.Lock()

    def harm(self, method: str, how: str, *, times: int = FOREVER, after: int = 0) -> None:
        """Do harm to the next requests of that method.

        Args:
            method: of the requests.
            how: ``refuse`` (hang up before the workbench hears of it), ``drop`` (hang up in the middle of its
                answer), ``slow`` (answer after two seconds), ``garble`` (cut its JSON), or a status that is answered
                instead of asking the workbench, such as ``500``.
            times: how many requests suffer.
            after: how many are spared before.
        """
        self._harm[method] = (how, times, after)

    def next_harm(self, method: str) -> str:
        """Return the harm to do to the request that has come; empty for none."""
        with self._lock:
            self.seen.append(method)
            how, times, after = self._harm.get(method, ("", 0, 0))
            if after:
                self._harm[method] = (how, times, after - 1)
                return ""
            self._harm[method] = (how, max(0, times - 1), 0)
            return how if times else ""

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Forward a request, and return the workbench's answer."""
        connection = http.client.HTTPConnection(self._upstream)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()


class Handler(BaseHTTPRequestHandler):
    """One connection of a session."""

    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def do_GET(self) -> None:
        """Pass a request of any method on, if at all."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        how = self.proxy.next_harm(self.command)
        if how == "refuse":
            self.close_connection = True
            return
        if how.isdigit():
            self._answer(int(how), b"the proxy says no")
            return
        status, text = self.proxy.forward(self.command, self.path, dict(self.headers), body)
        if how == "slow":
            time.sleep(2)
        if how == "garble":
            text = text[: len(text) // 2]
        self._answer(status, text, cut=how == "drop")

    do_POST = do_PUT = do_GET

    def _answer(self, status: int, text: bytes, cut: bool = False) -> None:
        with contextlib.suppress(OSError):  # the session has lost patience
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text[: len(text) // 2] if cut else text)
        self.close_connection = cut

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def proxying(upstream: str) -> Iterator[Proxy]:
    """A proxy before the workbench at that URL, until the block ends."""
    proxy = Proxy(upstream)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("ProxyHandler", (Handler,), {"proxy": proxy}))
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
