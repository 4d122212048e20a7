"""A server that answers as a test says, for what a healthy cluster does not do. It proves nothing of a real one."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """An answer to one request; ``status`` 0 closes the connection without one."""

    status: int
    body: dict[str, Any] | str = {}
    headers: dict[str, str] = {}


class Fake:
    """The server: its address, what it will say, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, authorization
        self.proxied_by: list[str | None] = []  # what proxies are shown
        self.otherwise: Callable[[str, str], Answer] = lambda method, path: Answer(200, {"items": []})


@contextmanager
def fake_server() -> Iterator[Fake]:
    """Serve on this machine until the end of the block."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fake.asked.append((self.command, self.path, self.headers.get("Authorization")))
            fake.proxied_by.append(self.headers.get("Proxy-Authorization"))
            answer = fake.answers.pop(0) if fake.answers else fake.otherwise(self.command, self.path)
            if not answer.status:
                self.close_connection = True
                return
            body = (answer.body if isinstance(answer.body, str) else json.dumps(answer.body)).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # whoever asked has read enough
                self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        fake = Fake(f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield fake
        server.shutdown()
