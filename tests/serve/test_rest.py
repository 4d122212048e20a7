"""The service as its clients see it: real processes, spoken to with nothing but requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from support import eventually

from tests.serve.service import Service, serving


class Client:
    """One session of a client, which calls as the platform's older library does."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables
        self.id = variables["CDSW_ENGINE_ID"]
        self._auth = (variables["CDSW_API_KEY"], "")

    def launch(self, **changes: Any) -> requests.Response:
        """Ask for one worker."""
        order = {
            "kernel": "python3", "cpu": 1, "memory": 0.5, "nvidia_gpu": 0, "script": "", "code": "", "env": {},
            "master_id": self.variables["CDSW_MASTER_ID"] or self.variables["CDSW_ENGINE_ID"],
        }  # fmt: skip
        return requests.post(
            self.variables["CDSW_PROJECT_URL"] + "/dashboards", json={**order, **changes}, auth=self._auth
        )

    def workers(self) -> list[dict[str, Any]]:
        """The session's workers."""
        answer = requests.get(self.variables["CDSW_ENGINE_URL"] + "/workers", auth=self._auth)
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()
        return found

    def stop(self, worker_id: str) -> requests.Response:
        """Ask a worker to end."""
        return requests.put(f"{self.variables['CDSW_PROJECT_URL']}/dashboards/{worker_id}/stop", auth=self._auth)

    def ended(self, worker_id: str) -> dict[str, Any]:
        """A worker, once it has ended."""

        def look() -> dict[str, Any] | None:
            (worker,) = [worker for worker in self.workers() if worker["id"] == worker_id]
            return worker if worker["finished_at"] else None

        found: dict[str, Any] = eventually(look, f"{worker_id} has ended")
        return found

    def run(self, **order: Any) -> tuple[dict[str, Any], str]:
        """Launch a worker; returns it as it ended, and its log."""
        worker = self.ended(self.launch(**order).json()["id"])
        return worker, Path(worker["log"]).read_text()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as service:
        yield service


def test_a_worker_is_launched_listed_and_ends(service: Service) -> None:
    client = Client(service.client_environment())
    worker, log = client.run(code="!echo hello\nprint(1 + 1)")
    assert worker["status"] == "succeeded"
    assert log.splitlines() == ["hello", "2"]
