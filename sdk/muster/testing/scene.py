"""Scenes: one run with scripted workers in simulated time, with a timeline of actions, and its outcome."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.checks.planning import make_facts, member_names
from muster.events import Event, EventKind, Observer
from muster.events.observers import Observers
from muster.job import Job, Limits, Script, WorkerSpec
from muster.platforms.base import Platform
from muster.pools.endpoint import Endpoint
from muster.run.checked import CheckedRun
from muster.run.context import RunContext
from muster.run.orchestrator import Orchestrator
from muster.run.preparation import make_pool, make_specs
from muster.run.state import RunState
from muster.security.ssh import KeyPair
from muster.strategies import get_strategy
from muster.strategies.base import Strategy
from muster.testing.loop import SimulatedLoop
from muster.testing.platform import ScriptedPlatform
from muster.testing.programs import Program
from muster.testing.workers import ScriptedWorker

LONGEST = 3600.0  # simulated seconds that a scene may take to its end


@dataclass(frozen=True)
class Outcome:
    """The outcome of a scene.

    Attributes:
        error: the exception that the run ended with; None if it succeeded.
        events: all events, as observers got them.
        orders: every message that was sent to a worker: the worker's name, the message's type and its fields.
        seconds: how long the run took, in simulated time.
    """

    error: BaseException | None
    events: list[Event]
    orders: list[tuple[str, str, dict[str, Any]]]
    seconds: float

    def kinds(self, worker: str | None = None) -> list[str]:
        """Return the kinds of all events, in order; only those of one worker, if one is given."""
        return [event.kind for event in self.events if worker in (None, event.worker)]

    def ordered(self, worker: str) -> list[str]:
        """Return the types of the messages that were sent to a worker, in order."""
        return [kind for name, kind, _ in self.orders if name == worker]


class Scene:
    """One run with scripted workers. Only the orchestrator is real, and it takes no real time.

    Set with :meth:`at` what happens at which time, and then :meth:`play` the scene; or :meth:`start` it, and
    :meth:`advance` it step by step. Close it afterwards, or use it as a context manager.

    Args:
        n_workers, n_ps: number of workers that train, and of parameter servers.
        strategy: a strategy or the name of one. Its launcher is simulated, too (see ``launcher``).
        platform: the platform to launch the workers on; by default a :class:`~muster.testing.ScriptedPlatform`.
            Workers on another platform are scripted as well.
        limits: time limits of the run.
        observers: called with every event.
        owns_platform: whether the platform is closed with the run.
        min_workers: least number of workers to go on with; None for all.

    Attributes:
        workers: the scripted workers, by name.
        platform: the platform.
        launcher: the simulated launcher of the strategy, if it has one.
        loop: the event loop that everything runs on.
        orchestrator: the object under test; None before the start.
    """

    def __init__(
        self,
        n_workers: int = 2,
        *,
        n_ps: int = 0,
        strategy: str | Strategy = "processes",
        platform: Platform | None = None,
        limits: Limits | None = None,
        observers: Iterable[Observer] = (),
        owns_platform: bool = True,
        min_workers: int | None = None,
    ) -> None:
        self.loop = SimulatedLoop()
        self.loop.programs = lambda argv: self.launcher
        platform = platform or ScriptedPlatform()
        play = platform.player if isinstance(platform, ScriptedPlatform) else ScriptedWorker
        self.platform: Any = platform  # tests know which it is
        self.launcher = Program()
        self.events: list[Event] = []
        self.orders: list[tuple[str, str, dict[str, Any]]] = []
        self.workers: dict[str, ScriptedWorker] = {}
        self.orchestrator: Orchestrator | None = None
        self.is_up = False
        made = get_strategy(strategy)
        script = Script("file", "train.py", is_task=made.name == "parameter_server")
        job = Job(script, n_workers, n_ps, python="python", cwd="/", name="scene")
        members = member_names(job, made)
        self._checked = CheckedRun(
            job,
            made,
            self.platform,
            probed=made.probe(),
            owns_platform=owns_platform,
            limits=limits or Limits(),
            members=members,
            spare=0 if min_workers is None else n_workers - min_workers,
        )
        for name, role, _ in members:
            self.workers[name] = play(name)
            self.workers[name].on_order = self._note_order(name)
            if role == "ps":
                self.workers[name].behaviour.runs_for = None  # a server never ends by itself
        self._observers = Observers([self.events.append, self._note_launch, *observers])
        self._unplayed: dict[str, WorkerSpec] = {}
        self._timeline: list[tuple[float, Callable[[], object]]] = []
        self._folder = Path(tempfile.mkdtemp(prefix="muster-scene-"))
        self._started_at = self.loop.time()
        self._run: asyncio.Task[None] | None = None

    def at(self, seconds: float, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call ``function`` that many simulated seconds after the start."""
        self._timeline.append((seconds, lambda: function(*args, **kwargs)))

    def stop(self, reason: str = "by request") -> None:
        """Stop the run, as ``cluster.stop()`` does."""
        if self.orchestrator is not None:
            self.orchestrator.stop(reason)

    def play(self) -> Outcome:
        """Start the run, let it go on to its end, and return its outcome."""
        self.start()
        return self.finish()

    def start(self) -> None:
        """Start the simulated run."""
        self._run = self.loop.run_until_complete(self._begin())

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` of simulated time pass."""
        self.loop.run(asyncio.sleep(seconds))

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` on the loop now, and return its result."""

        async def call() -> Any:
            return function(*args, **kwargs)

        return self.loop.run(call())

    @property
    def has_ended(self) -> bool:
        """True if the run has ended."""
        return self._run is not None and self._run.done()

    def finish(self, limit: float = LONGEST) -> Outcome:
        """Let the run go on to its end, and return its outcome.

        Raises:
            TimeoutError: the run has not ended after ``limit`` simulated seconds.
        """
        assert self._run is not None, "it has been started"
        done, _ = self.loop.run(asyncio.wait([self._run], timeout=limit))
        if not done:
            raise TimeoutError(f"the run has not ended after {limit:g} simulated seconds")
        seconds = self.loop.time() - self._started_at
        return Outcome(self._run.exception(), self.events, self.orders, seconds)

    def close(self) -> None:
        """End whatever is left of the run."""
        self.loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _begin(self) -> asyncio.Task[None]:
        self.orchestrator = await self._make_orchestrator()
        if not isinstance(self.platform, ScriptedPlatform):
            self._unplayed = dict(self.orchestrator.state.specs)
        self._started_at = self.loop.time()
        for seconds, function in self._timeline:
            self.loop.call_later(seconds, function)
        return self.loop.create_task(self.orchestrator.run(), name="run")

    async def _make_orchestrator(self) -> Orchestrator:
        checked, scratch, run_dir = self._checked, self._folder / "scratch", self._folder / "run"
        for folder in (scratch, run_dir / "logs"):
            folder.mkdir(parents=True)
        facts = make_facts(checked.job, run_dir, scratch, probed=checked.probed)
        endpoint = Endpoint(list(self.workers), checked.platform.lease_seconds)
        await endpoint.open(scratch, "127.0.0.1")
        login = KeyPair("", "") if checked.strategy.uses_ssh else None
        context = RunContext(checked, facts, make_specs(checked, facts, endpoint, login))
        pool = make_pool(context, endpoint)
        state = RunState(context.specs, self._observers.tell, checked.spare)
        orchestrator = Orchestrator(context, pool, state, on_plan=lambda plan: None, on_up=self._up)
        return orchestrator

    def _note_launch(self, event: Event) -> None:
        """Launch the scripted worker that plays a worker launched by another platform than a ScriptedPlatform."""
        if event.kind == EventKind.WORKER_STATE and (spec := self._unplayed.pop(str(event.worker), None)):
            self.workers[spec.name].launch(spec)

    def _up(self) -> None:
        self.is_up = True

    def _note_order(self, name: str) -> Callable[[str, dict[str, Any]], None]:
        return lambda kind, fields: self.orders.append((name, kind, fields))
