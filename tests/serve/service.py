"""``muster serve`` as a real process, and a client that calls it as the platform's older library does."""

from __future__ import annotations

import contextlib
import functools
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.support import environment, eventually


@dataclass
class Service:
    """A running service.

    Attributes:
        process: the process that serves.
        url: where it listens, such as ``http://127.0.0.1:8765``.
        keys: its file of keys.
        key: the first key in it.
        home: its ``MUSTER_HOME``; None for that of the test.
        output: what it has printed, once it has ended.
    """

    process: subprocess.Popen[str]
    url: str
    keys: Path
    key: str
    home: Path | None
    output: str = ""

    def client_environment(self) -> dict[str, str]:
        """The variables of a new session, ``CDSW_API_KEY`` and so on. Its id is all that is not as printed."""
        engine_id = secrets.token_hex(8)
        engine_url = f"{self.printed['CDSW_ENGINE_URL'].rpartition('/')[0]}/{engine_id}"
        return {**self.printed, "CDSW_ENGINE_ID": engine_id, "CDSW_ENGINE_URL": engine_url}

    @functools.cached_property
    def printed(self) -> dict[str, str]:
        """The variables that ``--print-env`` sets."""
        port = self.url.rpartition(":")[2]
        program = f'eval "$({sys.executable} -m muster serve --print-env --port {port})" && env -0'
        done = subprocess.run(
            ["bash", "-c", program], env=_environment(self.home), capture_output=True, text=True, check=True
        )
        variables = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
        return {name: value for name, value in variables.items() if name.startswith(("CDSW_", "REQUESTS_"))}


@contextlib.contextmanager
def serving(
    project: Path,
    *options: str,
    keys: Path | None = None,
    home: Path | None = None,
    before: str = "",
    **variables: str,
) -> Iterator[Service]:
    """Serve a project on a free port until the block ends; it must then end in order.

    Args:
        project: the folder that workers run in.
        options: further options of ``muster serve``.
        keys: file of keys; a new one by default.
        home: its ``MUSTER_HOME``; that of the test by default.
        before: Python that its process runs first.
        variables: further environment variables of the service.
    """
    keys = keys or new_keys(project / ".keys" / secrets.token_hex(4))
    program = [sys.executable, "-c", f"{before}\nfrom muster.commands.main import main\nmain()"]
    argv = [*program, "serve", "--port", "0", "--project", str(project), "--keys", str(keys)]
    process = subprocess.Popen(
        [*argv, *options],
        env={**_environment(home), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    url = first.split(" on ")[-1].split(",")[0]
    service = Service(process, url, keys, keys.read_text().splitlines()[0], home)
    try:
        assert first.startswith("Serving "), first
        yield service
    finally:
        process.terminate()
        service.output = first + process.communicate(timeout=20)[0]
    assert process.returncode in (0, -9), service.output
    assert "Traceback" not in service.output, service.output


def new_keys(path: Path, count: int = 1) -> Path:
    """A file of new keys."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text("".join(secrets.token_urlsafe(32) + "\n" for _ in range(count)))
    return path


def _environment(home: Path | None) -> dict[str, str]:
    return environment(**({} if home is None else {"MUSTER_HOME": str(home)}))


class Client:
    """One session of a client, which has nothing but the variables of its environment.

    Args:
        variables: those that ``--print-env`` sets.
    """

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables
        self.id = variables["CDSW_ENGINE_ID"]
        self._auth = (variables["CDSW_API_KEY"], "")
        self._verify = variables.get("REQUESTS_CA_BUNDLE", True)

    def call(self, method: str, url: str, **arguments: Any) -> requests.Response:
        """Send one request."""
        return requests.request(method, url, auth=self._auth, verify=self._verify, timeout=30, **arguments)

    def launch(self, **changes: Any) -> requests.Response:
        """Ask for one worker."""
        order = {
            "kernel": "python3",
            "cpu": 1,
            "memory": 0.5,
            "nvidia_gpu": 0,
            "script": "",
            "code": "",
            "env": {},
            "master_id": self.variables["CDSW_MASTER_ID"] or self.id,
        }
        return self.call("POST", self.variables["CDSW_PROJECT_URL"] + "/dashboards", json={**order, **changes})

    def list(self) -> requests.Response:
        """Ask for the session's workers."""
        return self.call("GET", self.variables["CDSW_ENGINE_URL"] + "/workers")

    def stop(self, worker_id: str) -> requests.Response:
        """Ask a worker to end."""
        return self.call("PUT", f"{self.variables['CDSW_PROJECT_URL']}/dashboards/{worker_id}/stop")

    def worker(self, worker_id: str) -> dict[str, Any]:
        """A worker of the session."""
        (found,) = [worker for worker in self.list().json() if worker["id"] == worker_id]
        return dict(found)

    def ended(self, worker_id: str) -> dict[str, Any]:
        """A worker, once it has ended."""
        eventually(lambda: self.worker(worker_id)["finished_at"], f"{worker_id} has ended")
        return self.worker(worker_id)

    def start(self, code: str) -> dict[str, Any]:
        """Launch a worker that goes on; returns it once it has run ``code``."""
        worker = self.launch(code=f"{code}\nprint('ready')\nimport time\ntime.sleep(600)").json()
        log = Path(worker["log"])
        eventually(lambda: log.exists() and "ready" in log.read_text().splitlines(), "it is ready")
        return self.worker(worker["id"])

    def run(self, **order: Any) -> tuple[dict[str, Any], str]:
        """Launch a worker; returns it as it ended, and its log."""
        worker = self.ended(self.launch(**order).json()["id"])
        return worker, Path(worker["log"]).read_text()
