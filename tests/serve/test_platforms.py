"""A service over another platform: here the workbench that another service is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.serve.service import Client, Service, serving
from tests.support import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Client]:
    """A session of the inner service, which is the outer one's own."""
    with serving(tmp_path) as inner:
        yield Client(inner.client_environment())


def statuses(session: Client) -> list[str]:
    return [worker["status"] for worker in session.list().json()]


def test_serves_the_workers_of_another_workbench(tmp_path: Path, session: Client) -> None:
    variables: dict[str, Any] = session.variables
    with serving(tmp_path, "--platform", "workbench", **variables) as outer:
        client = Client(outer.client_environment())
        worker, log = client.run(code="!echo $CDSW_MASTER_ID", memory=1)
        assert worker["status"] == "succeeded"
        assert log.splitlines() == [client.id]
        client.start("")
        assert statuses(session) == ["succeeded", "running"]
    assert statuses(session) == ["succeeded", "stopped"]


def test_the_next_service_ends_what_a_killed_one_left_on_its_platform(tmp_path: Path, session: Client) -> None:
    def outer() -> AbstractContextManager[Service]:
        variables: dict[str, Any] = session.variables
        return serving(tmp_path, "--platform", "workbench", **variables)

    with outer() as killed:
        Client(killed.client_environment()).start("")
        killed.process.kill()
        killed.process.wait()
        assert statuses(session) == ["running"], "nobody has told the platform"
    with outer():
        eventually(lambda: statuses(session) == ["stopped"], "the next one has")
