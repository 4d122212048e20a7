"""A session on a workbench: what its environment says, and what the workbench itself knows of its workers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import requests


@dataclass(frozen=True)
class WorkbenchSession:
    """One session.

    Attributes:
        url: where the workbench listens.
        environment: the variables that tell a session where it is.
    """

    url: str
    environment: dict[str, str]

    @classmethod
    def new(cls, url: str, key: str, engine_id: str | None = None) -> WorkbenchSession:
        """A new session, or the one of that id, of whoever has the key."""
        engine_id = engine_id or secrets.token_hex(8)
        environment = {
            "CDSW_API_KEY": key,
            "CDSW_ENGINE_ID": engine_id,
            "CDSW_ENGINE_URL": f"{url}/api/v1/engines/{engine_id}",
            "CDSW_IP_ADDRESS": "127.0.0.1",
            "CDSW_MASTER_ID": "",
            "CDSW_PROJECT_URL": f"{url}/api/v1/project",
        }
        return cls(url, environment)

    def through(self, url: str) -> WorkbenchSession:
        """The same session, with the workbench reached at another address."""
        return self.new(url, self.environment["CDSW_API_KEY"], self.environment["CDSW_ENGINE_ID"])

    def workers(self) -> list[dict[str, Any]]:
        """Its workers, as the workbench itself lists them."""
        answer = requests.get(
            f"{self.environment['CDSW_ENGINE_URL']}/workers", auth=(self.environment["CDSW_API_KEY"], "")
        )
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()
        return found

    def living(self) -> list[str]:
        """The ids of those that have not ended."""
        return [worker["id"] for worker in self.workers() if not worker["finished_at"]]
