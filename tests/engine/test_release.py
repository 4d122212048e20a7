"""Whoever waits for the end of a run is told, whatever fails when observers are let go."""

from __future__ import annotations

from typing import Any

import pytest
from muster.run.execution import Execution
from muster.run.request import CheckedRun
from muster.testing import SimulatedLoop

from tests.engine.executing import finish


@pytest.mark.parametrize("step", ["close", "are_done", "end"])
@pytest.mark.parametrize("error", [KeyError("a defect"), RuntimeError("can't start new thread")], ids=repr)
def test_observers_that_cannot_be_let_go_hold_up_no_end(
    loop: SimulatedLoop,
    made: Execution,
    checked: CheckedRun,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: Exception,
) -> None:
    def raising(*_: Any) -> None:
        raise error

    monkeypatch.setattr(made._observers, step, raising)
    made.begin(checked)
    assert finish(loop, made).status == "succeeded"
