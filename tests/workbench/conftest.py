"""Fixtures of the workbench's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from muster.workbench import workers

from tests.workbench.scripted import ScriptedWorkbench, serving


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedWorkbench]:
    """Provide a workbench that answers as a test tells it to, and make this process a session on it."""
    workbench = ScriptedWorkbench()
    with serving(workbench) as url:
        for name, value in {
            "CDSW_API_KEY": workbench.key,
            "CDSW_ENGINE_ID": "session",
            "CDSW_ENGINE_URL": f"{url}/engine",
            "CDSW_IP_ADDRESS": "127.0.0.1",
            "CDSW_MASTER_ID": "",
            "CDSW_PROJECT_URL": f"{url}/project",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(workers, "_platform", None)
        yield workbench
