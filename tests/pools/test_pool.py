"""A pool of real workers: orders, generations, and nothing left of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from muster.agent import linux, wire
from muster.platforms.local import LocalPlatform
from muster.pools.endpoint import Endpoint
from muster.pools.leases import LeaseHeld
from muster.pools.pool import AgentPool
from muster.runtime.background import background_loop, call_in_background

from tests.listening import eventually
from tests.support import Run, is_gone

Result = TypeVar("Result")


def wait_for(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run_coroutine_threadsafe(work, background_loop()).result(timeout=20)


class Heard:
    """Record of what a run that borrows the workers is told."""

    def __init__(self, pool: AgentPool) -> None:
        self.messages: list[Any] = []
        self.lost: list[str] = []
        pool.listen(self._on_message, self.lost.append, lambda worker: None, lambda worker: None, lambda error: None)

    def _on_message(self, worker: str, message: Any) -> None:
        self.messages.append(message)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]


@pytest.mark.parametrize("owns_platform", [True, False])
def test_a_worker_is_replaced_once_it_has_ended_and_nothing_is_left(
    run: Run, tmp_path: Path, owns_platform: bool
) -> None:
    platform = LocalPlatform()
    endpoint = Endpoint(["worker-0"])
    wait_for(endpoint.open(tmp_path, "127.0.0.1"))
    pool = AgentPool("test", platform, endpoint, owns_platform=owns_platform)
    heard = Heard(pool)
    try:
        spec = run.spec(session=endpoint.address_for("worker-0"))
        (first,) = wait_for(pool.submit([spec], "first"))
        eventually(lambda: bool(heard.of(wire.Hello)))
        with pytest.raises(LeaseHeld):
            wait_for(pool.replace("worker-0", "second"))
        linux.kill(heard.of(wire.Hello)[0].pid)
        eventually(lambda: heard.lost == ["worker-0"])
        second = wait_for(pool.replace("worker-0", "second"))
        assert second != first
        eventually(lambda: len(heard.of(wire.Hello)) == 2)  # on another thread, and a moment after it is connected
        assert pool.connected == {"worker-0"}
        assert [hello.generation for hello in heard.of(wire.Hello)] == [0, 1]
        call_in_background(lambda: pool.send("worker-0", wire.Start(("/bin/sleep", "60"), {})))
        eventually(lambda: bool(heard.of(wire.Started)))
    finally:
        wait_for(pool.close())
        platform.close()
    assert is_gone(heard.of(wire.Started)[0].pid)
