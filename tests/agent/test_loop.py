"""The agent's event loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from muster.agent.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGUSR1, signal.SIGUSR2)}
    loop = Loop()
    yield loop
    loop.close()
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_a_signal_that_comes_while_another_is_acted_on_is_known_before_its_turn(loop: Loop) -> None:
    seen: list[object] = []

    def act() -> None:
        seen.append(loop.has_come(signal.SIGUSR2))
        os.kill(os.getpid(), signal.SIGUSR2)
        seen.append(loop.has_come(signal.SIGUSR2))

    def act_on_second() -> None:
        seen.extend(["its turn", loop.has_come(signal.SIGUSR2)])
        loop.stop()

    loop.on_signal(signal.SIGUSR1, act)
    loop.on_signal(signal.SIGUSR2, act_on_second)
    os.kill(os.getpid(), signal.SIGUSR1)
    loop.run()
    assert seen == [False, True, "its turn", False]
