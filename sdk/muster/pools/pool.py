"""The workers of a run: the endpoint of their agents, the platform that they run on, and their submission.

A run gives orders to the workers of a pool, receives their messages, and polls the platform about them. Each run makes
a pool of its own and closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from typing import Any

from muster.errors import PlatformError
from muster.job import Worker, WorkerSpec
from muster.platforms.base import Platform, Relay
from muster.pools.calls import CLOSE_SECONDS, PlatformCalls
from muster.pools.endpoint import Endpoint
from muster.pools.leases import MARGIN
from muster.runtime import clock

GONE_SECONDS = 5.0  # how long workers may take to be gone once they have been stopped
ANSWER_SECONDS = 5.0  # time limit of the platform's answer about a worker to be replaced, or of stopping it
WARM_SECONDS = 30.0  # how long a run waits for its template's imports, which have begun before its own would begin
WARM_POLL_SECONDS = 0.02
FASTER_AT_THE_END = 10  # factor by which workers that were just stopped are polled more often


class AgentPool:
    """A set of workers on one platform.

    Its methods are called on one event loop. Calls of the platform block, and are made one after the other on a thread
    of the pool.

    Args:
        name: name for its thread.
        platform: the platform of the workers.
        owns_platform: whether the platform is closed with the pool.
        endpoint: the endpoint of the agents, which listens already.
        is_relayed: whether the platform relays the agents' connections to the endpoint, as they cannot dial it.
        calls: makes the platform's calls, if it has made some before; None for a new one.

    Attributes:
        platform, endpoint: the arguments of these names.
        handles: handles of all workers that the platform has accepted.
    """

    def __init__(
        self, name: str, platform: Platform, endpoint: Endpoint, *, owns_platform: bool, is_relayed: bool = False,
        calls: PlatformCalls | None = None,
    ) -> None:  # fmt: skip
        self.platform = platform
        self.endpoint = endpoint
        self.handles: list[str] = []
        self._owns_platform = owns_platform
        self._is_relayed = is_relayed
        self._relay: Relay | None = None
        if is_relayed:
            endpoint.on_connected = self._tell_relay
        self._calls = calls or PlatformCalls(name)
        # The handle of each worker's present generation, None where it could not be launched; and its spec.
        self._generations: dict[str, tuple[str | None, WorkerSpec]] = {}

    # -- orders -------------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> Set[str]:
        """Names of the workers whose agents are connected: a live view, which changes as agents come and go."""
        return self.endpoint.connected

    def send(self, worker: str, message: tuple[Any, ...]) -> bool:
        """Send a message to a worker's agent; return False if it is gone for good."""
        return self.endpoint.send(worker, message)

    def listen(
        self, on_message: Callable[[str, Any], None], on_lost: Callable[[str], None], on_cut: Callable[[str], None],
        on_back: Callable[[str], None], on_defect: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        """Set the callbacks for messages of workers and for changes of their connections (see ``Endpoint``).

        ``on_defect`` is called with every exception that one of the others raises.
        """
        self.endpoint.on_message, self.endpoint.on_lost = on_message, on_lost
        self.endpoint.on_cut, self.endpoint.on_back = on_cut, on_back
        self.endpoint.on_defect = on_defect

    # -- workers ------------------------------------------------------------------------------------------------------

    async def submit(self, specs: Sequence[WorkerSpec], run_key: str, seconds: float | None = None) -> list[str]:
        """Have the platform launch workers, and return their handles.

        Raises:
            TimeoutError: it has not answered within ``seconds``. Workers that it launches later end with the pool.
            PlatformError: it refuses.
        """
        for spec in specs:
            self._generations.setdefault(spec.name, (None, spec))
        await self._calls.have_warmed_up(seconds)
        await self._until_warm(specs, WARM_SECONDS if seconds is None else min(seconds, WARM_SECONDS))

        def submit() -> list[str]:  # records the handles itself: workers are ended even if nobody waited for the answer
            handles = self.platform.submit(self._dialling(specs), run_key)
            self.handles += handles
            for spec, handle in zip(specs, handles, strict=True):
                self._generations[spec.name] = (handle, spec)
            return handles

        return await self._calls.call(submit, seconds=seconds)

    async def _until_warm(self, specs: Sequence[WorkerSpec], seconds: float) -> None:
        """Wait while a template imports modules; here, as a call of the platform could not be interrupted."""
        if not any(spec.imports and spec.imports.modules for spec in specs):
            return
        deadline = clock.now() + seconds
        while clock.now() < deadline and await self._calls.call(self.platform.is_warming):
            await asyncio.sleep(WARM_POLL_SECONDS)

    async def poll(self, handles: Iterable[str], seconds: float) -> list[Worker]:
        """Return the workers with these handles as the platform knows them. Raises what it raises, or TimeoutError."""
        return await self._calls.call(self.platform.poll, list(handles), seconds=seconds)

    async def replace(self, worker: str, run_key: str, seconds: float | None = None) -> str:
        """Submit the next generation of a worker, and return its handle. The generation before is stopped.

        Raises:
            LeaseHeld: the generation before may still act, according to its lease and the platform.
            TimeoutError, PlatformError: as ``submit``. The call may be repeated, with another key.
        """
        before, spec = self._generations[worker]
        if self.endpoint.leases.seconds_left(worker) > 0 and await self._has_ended(before):
            self.endpoint.ended(worker)
        generation = self.endpoint.renew(worker)
        await self._stop(before)
        spec = replace(spec, generation=generation, session=self.endpoint.address_for(worker))
        (handle,) = await self.submit([spec], run_key, seconds)
        return handle

    async def retire(self, worker: str) -> None:
        """Stop a worker that is to be replaced, and wait until nothing of it can act any more.

        That is, until its platform says that it has ended or, if the platform does not answer, until its lease has
        ended. If neither happens in time, this returns, and ``replace`` raises LeaseHeld.
        """
        handle, _ = self._generations[worker]
        await self._stop(handle)
        began = clock.now()
        while not await self._has_ended(handle):
            waited, leases = clock.now() - began, self.endpoint.leases
            left = leases.seconds_left(worker)
            if waited > GONE_SECONDS and (left == 0 or waited > GONE_SECONDS + leases.seconds + MARGIN):
                return
            await asyncio.sleep(self.platform.poll_seconds[0] / FASTER_AT_THE_END)
        self.endpoint.ended(worker)

    async def give_up(self, worker: str) -> None:
        """Stop a worker that has not connected, and refuse it if it connects all the same.

        A worker that may still act keeps its lease: until the lease ends, nothing can take its place.
        """
        if self.endpoint.leases.seconds_left(worker) <= 0:
            self.endpoint.ended(worker)
        handle, _ = self._generations[worker]
        await self._stop(handle)

    async def _stop(self, handle: str | None) -> None:
        """Have the platform stop a worker. Errors are ignored, as the end of the pool stops it again."""
        if handle is not None:
            with contextlib.suppress(PlatformError, TimeoutError):
                await self._calls.call(self.platform.stop, [handle], seconds=ANSWER_SECONDS)

    async def _has_ended(self, handle: str | None) -> bool:
        """Return whether the platform knows that nothing of a worker is left."""
        if handle is None:
            return True
        try:
            polled = await self.poll([handle], ANSWER_SECONDS)
        except (PlatformError, TimeoutError):
            return False
        return any(worker.id == handle and worker.status.is_final for worker in polled)

    def _dialling(self, specs: Sequence[WorkerSpec]) -> list[WorkerSpec]:
        """Return the specs with the addresses that agents dial: the session's, or those of the platform's relay."""
        if not self._is_relayed:
            return list(specs)
        if self._relay is None:
            self._relay = self.platform.open_relay(*self.endpoint.listening)
        return [
            replace(spec, session=spec.session and replace(spec.session, host=host, port=port))
            for spec, (host, port) in zip(specs, self._relay.addresses_for(specs), strict=True)
        ]

    def _tell_relay(self, worker: str) -> None:
        if self._relay is not None:
            self._relay.connected(worker)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End all workers, and close the platform if the pool owns it. Raises what the platform raises."""
        self.endpoint.close()
        try:
            if self._owns_platform:
                await self._calls.call(self.platform.close, seconds=CLOSE_SECONDS)
            else:
                await self._calls.call(lambda: self.platform.stop(self.handles), seconds=CLOSE_SECONDS)
                await self._wait_until_gone()
        finally:
            try:
                if self._is_relayed:
                    await self._calls.call(self._close_relay, seconds=CLOSE_SECONDS)
            finally:
                self._calls.close()

    def _close_relay(self) -> None:
        if self._relay is not None:
            self._relay.close()

    async def _wait_until_gone(self) -> None:
        deadline = clock.now() + GONE_SECONDS
        own = set(self.handles)
        while clock.now() < deadline:
            polled = await self.poll(self.handles, CLOSE_SECONDS)
            if all(worker.status.is_final for worker in polled if worker.id in own):
                return
            await asyncio.sleep(self.platform.poll_seconds[0] / FASTER_AT_THE_END)
