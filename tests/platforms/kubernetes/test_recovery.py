"""A pod is taken away: it is replaced alone, and nothing that was learnt is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.platforms.kubernetes.space import Space
from tests.platforms.recovering import recovers, take_away

HOROVOD = {"strategy": "horovod", "cpu": 0.7, "memory": 1.5, "timeout_seconds": 240, "run_timeout": 240}


@pytest.mark.parametrize(
    "options",
    [{"cpu": 0.1}, pytest.param(HOROVOD, marks=[pytest.mark.elsewhere, pytest.mark.horovod])],
    ids=["processes", "horovod"],
)
def test_a_pod_whose_agent_is_told_to_end_is_replaced(space: Space, options: dict[str, Any]) -> None:
    recovers(take_away, platform="kubernetes", python=space.python, **space.options, **options)
