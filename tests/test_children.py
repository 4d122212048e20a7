"""Child processes that are waited for and ended although an interrupt has spoilt what Popen itself could do."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from muster.runtime import children

from tests.support import InterruptedPopen, is_gone

KINDS = [subprocess.Popen, InterruptedPopen]

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(params=KINDS)
def child(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[Any]]:
    child: subprocess.Popen[Any] = request.param(["sleep", "600"])
    yield child
    children.kill(child)


def test_one_that_runs_has_not_ended(child: subprocess.Popen[Any]) -> None:
    assert not children.has_ended(child)
    assert not children.ends_within(child, 0.05)


def test_one_that_is_killed_is_gone(child: subprocess.Popen[Any]) -> None:
    children.kill(child)
    assert is_gone(child.pid)
    assert children.has_ended(child)
    children.kill(child)


def test_one_that_gets_a_signal_ends_soon(child: subprocess.Popen[Any]) -> None:
    children.send_signal(child, signal.SIGTERM)
    assert children.ends_within(child, 10)
    children.send_signal(child, signal.SIGTERM)


def test_the_exit_status_is_known_at_once() -> None:
    with subprocess.Popen(["sh", "-c", "exit 3"]) as child:
        assert children.ends_within(child, 10)
        assert child.returncode == 3


def test_one_that_is_gone_since_it_was_looked_at_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    monkeypatch.setattr(children, "has_ended", lambda _: False)
    children.send_signal(child, signal.SIGTERM)


def test_one_that_somebody_else_has_waited_for_has_ended() -> None:
    child = InterruptedPopen(["true"])
    os.waitpid(child.pid, 0)
    assert children.has_ended(child)
    assert children.ends_within(child, 0)
