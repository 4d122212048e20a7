"""A function that is told of a run's events may take as long as it likes, whenever it was added."""

from __future__ import annotations

import threading
import time
from typing import Any

import muster
import pytest

from tests.plain import Plain


@pytest.mark.slow
def test_a_subscriber_that_waits_holds_up_no_run() -> None:
    def work() -> int:
        import time

        time.sleep(1)
        return 1

    released = threading.Event()
    told: list[Any] = []

    def wait(event: Any) -> None:
        told.append(event)
        released.wait(60)

    cluster = muster.run_cluster(1, worker_script=work, strategy=Plain(), wait=False, dashboard=False).cluster
    assert cluster is not None
    cluster.subscribe(wait)
    began = time.monotonic()
    try:
        assert cluster.wait().value == 1
        assert time.monotonic() - began < 20
        assert told
    finally:
        released.set()
