"""A detached run in pods lives on when the session that has begun it is killed."""

from __future__ import annotations

from tests.platforms.kubernetes.space import Space
from tests.platforms.test_detached import TRAIN, outlives_its_session


def test_a_detached_run_in_pods_outlives_its_session(space: Space) -> None:
    (space.folder / "train.py").write_text(TRAIN)
    outlives_its_session(platform="kubernetes", cpu=0.1, python=space.python, **space.options)
    space.wait_until_empty()
