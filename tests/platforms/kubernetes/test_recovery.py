"""A pod is taken away: it is replaced alone, and nothing that was learnt is lost."""

from __future__ import annotations

from tests.platforms.kubernetes.space import Space
from tests.platforms.recovering import recovers, take_away


def test_a_pod_whose_agent_is_told_to_end_is_replaced(space: Space) -> None:
    recovers(take_away, platform="kubernetes", cpu=0.1, python=space.python, **space.options)
