"""A detached run in pods lives on when the session that has begun it is killed."""

from __future__ import annotations

from tests.platforms.kubernetes.space import Space
from tests.platforms.test_detached import OPTIONS, TRAIN, by_strategy, outlives_its_session


@by_strategy
def test_a_detached_run_in_pods_outlives_its_session(space: Space, strategy: str) -> None:
    (space.folder / "train.py").write_text(TRAIN)
    outlives_its_session(platform="kubernetes", cpu=0.1, python=space.python, **space.options, **OPTIONS[strategy])
    space.wait_until_empty()
