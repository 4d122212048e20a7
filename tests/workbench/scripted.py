"""A workbench that says what a test tells it to, over real HTTP: for what no real one can be made to do."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TIME = "2026-01-02T03:04:05.678Z"


class ScriptedWorkbench:
    """The workers of one session, which change when a test changes them.

    Attributes:
        workers: what a listing says, oldest first.
        requests: every request so far, such as ``GET /engine/workers``.
        orders: what launches asked for.
        connections: how many connections clients have made.
        key: the API key that is accepted.
        looks: called at each listing, before it is answered, with the number of listings so far.
        launches: called at each launch with what it asks for; may answer instead, with status and body.
        answers: what to answer instead, one after the other: status and body.
    """

    def __init__(self) -> None:
        self.workers: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.orders: list[dict[str, Any]] = []
        self.connections = 0
        self.key = "the-key"
        self.looks: Callable[[int], object] = lambda number: None
        self.launches: Callable[[dict[str, Any]], tuple[int, str] | None] = lambda order: None
        self.answers: list[tuple[int, str]] = []
        self._lock = threading.Lock()

    def add(self, status: str = "running", address: str = "10.0.0.1", **facts: Any) -> dict[str, Any]:
        """A worker, as the workbench describes it."""
        worker = {
            "id": f"engine-{len(self.workers)}", "status": status, "created_at": TIME, "running_at": TIME,
            "finished_at": None, "duration": 0, "ip_address": address, "app_url": "https://app", **facts,
        }  # fmt: skip
        self.workers.append(worker)
        return worker

    def count(self, method: str) -> int:
        """Return the number of requests of that method."""
        return sum(request.startswith(method) for request in self.requests)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, str]:
        """Status and body for one request."""
        with self._lock:
            self.requests.append(f"{method} {path}")
            if method == "POST":
                self.orders.append(body)
            if self.answers:
                return self.answers.pop(0)
            if method == "GET":
                self.looks(self.count("GET"))
                return 200, json.dumps(self.workers)
            if method == "POST":
                return self.launches(body) or (200, json.dumps(self.add("scheduling", "unknown", running_at=None)))
            for worker in self.workers:
                if worker["id"] == path.split("/")[-2]:
                    worker.update(status="stopped", finished_at=TIME)
            return 200, "{}"


@contextlib.contextmanager
def serving(workbench: ScriptedWorkbench) -> Iterator[str]:
    """Serve it until the block ends, at the address that comes out."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            workbench.connections += 1
            super().setup()

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            expected = "Basic " + base64.b64encode(f"{workbench.key}:".encode()).decode()
            if self.headers.get("Authorization") == expected:
                status, text = workbench.answer(self.command, self.path, body)
            else:
                status, text = 401, json.dumps({"message": "no such key"})
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_PUT = do_GET

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
