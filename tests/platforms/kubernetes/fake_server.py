"""A server that answers as a test says, for what a healthy cluster does not do. It proves nothing of a real one."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound="Fake")


class Answer(NamedTuple):
    """An answer to one request; ``status`` 0 closes the connection without one."""

    status: int
    body: dict[str, Any] | str = {}
    headers: dict[str, str] = {}


START = "2026-01-01T00:00:00Z"
RUNNING = {
    "phase": "Running",
    "podIP": "127.0.0.1",
    "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": START}],
    "containerStatuses": [{"name": "worker", "state": {"running": {"startedAt": START}}}],
}


class Fake:
    """The server: its address, what it will say, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, authorization
        self.proxied_by: list[str | None] = []  # what proxies are shown
        self.otherwise: Callable[[str, str], Answer] = lambda method, path: Answer(200, {"items": []})

    def respond(self, method: str, path: str, body: bytes) -> Answer:
        """Answer a request for which the test has put down no answer of its own."""
        return self.otherwise(method, path)


class FakeCluster(Fake):
    """A server that keeps the pods that are made on it, each of which runs at once; it has no other objects."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._pods: dict[str, dict[str, Any]] = {}

    def respond(self, method: str, path: str, body: bytes) -> Answer:
        """Make, list or delete pods; make anything else without keeping it."""
        what, _, name = path.partition("?")[0].partition("/namespaces/ml/")[2].partition("/")
        if method == "DELETE":
            self._pods.pop(name, None)
            return Answer(200)
        if method == "POST":
            made = json.loads(body)
            made.setdefault("metadata", {})["uid"] = f"uid-{len(self.asked)}"
            if what == "pods":
                self._pods[made["metadata"]["name"]] = {**made, "status": RUNNING}
            return Answer(201, {**made, "status": {"allowed": True}})
        return Answer(200, {"items": [*self._pods.values()] if what == "pods" else []})


@contextmanager
def fake_server() -> Iterator[Fake]:
    """Serve the answers of a test on this machine until the end of the block."""
    with _serving(Fake) as fake:
        yield fake


@contextmanager
def fake_cluster() -> Iterator[FakeCluster]:
    """Serve pods on this machine until the end of the block."""
    with _serving(FakeCluster) as fake:
        yield fake


@contextmanager
def _serving(kind: type[F]) -> Iterator[F]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fake.asked.append((self.command, self.path, self.headers.get("Authorization")))
            fake.proxied_by.append(self.headers.get("Proxy-Authorization"))
            answer = fake.answers.pop(0) if fake.answers else fake.respond(self.command, self.path, sent)
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
        fake = kind(f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield fake
        server.shutdown()


def fake_kubeconfig(fake: Fake) -> dict[str, Any]:
    """Return a kubeconfig whose current cluster is a fake server, with the namespace ``ml``."""
    return {
        "clusters": [{"name": "c", "cluster": {"server": fake.url}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "first", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
        "current-context": "first",
    }
