"""The addresses of a service, and the environment that sessions and their workers get from them."""

from __future__ import annotations

from dataclasses import dataclass

APP_PORT = 8100  # port on which workers may serve pages, each at its own address
PROJECT_PATH = "/api/v1/project"
ENGINES_PATH = "/api/v1/engines"


@dataclass(frozen=True)
class ServiceSite:
    """The addresses at which clients and workers reach a service.

    Attributes:
        url: where the service listens, such as ``http://127.0.0.1:8765``.
        project: name of the project.
        address: address at which workers reach sessions on the service's machine.
        authorities: file of the certificates that clients trust; None for the default ones.
    """

    url: str
    project: str
    address: str
    authorities: str | None = None

    def environment(self, engine_id: str) -> dict[str, str]:
        """Return the environment of the session with that id, and of all its workers."""
        environment = {
            "CDSW_APP_PORT": str(APP_PORT),
            "CDSW_DOMAIN": self.url.partition("://")[2],
            "CDSW_ENGINE_URL": f"{self.url}{ENGINES_PATH}/{engine_id}",
            "CDSW_PROJECT": self.project,
            "CDSW_PROJECT_URL": self.url + PROJECT_PATH,
        }
        if self.authorities:
            environment["REQUESTS_CA_BUNDLE"] = self.authorities
        return environment
