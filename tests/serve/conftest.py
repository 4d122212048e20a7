"""A service that the tests of a file share, and sessions of its clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.service import Client, Service, new_keys, serving


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Provide a service with two API keys."""
    folder = tmp_path_factory.mktemp("serve")
    project = folder / "my project"
    project.mkdir()
    with serving(project, keys=new_keys(folder / "keys", 2), home=folder / "home") as service:
        yield service


@pytest.fixture
def client(service: Service) -> Client:
    """Return a client of the service, with a session of its own."""
    return Client(service.client_environment())


@pytest.fixture
def other_client(service: Service) -> Client:
    """Return a client with the other key."""
    other_key = service.keys.read_text().splitlines()[1]
    return Client({**service.client_environment(), "CDSW_API_KEY": other_key})
