"""Invariants of every run, whatever its workers, its platform and its launcher do, in whatever order."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from muster.errors import (
    LaunchRefused,
    MusterError,
    PlatformError,
    RunTimeout,
    ScriptFailed,
    StartTimeout,
    WorkerKilled,
    WorkerLost,
    WorkerOutOfMemory,
)
from muster.job import Limits, Status, Worker
from muster.pools.calls import CLOSE_SECONDS
from muster.run.request import AT_ONCE
from muster.strategies.horovod import Horovod
from muster.strategies.parameter_server import ParameterServer
from muster.strategies.processes import Processes
from muster.testing import Scene, ScriptedPlatform

LIMITS = Limits(start=60, run=300)
LONGEST = 60 + 300 + 20 + 3 * CLOSE_SECONDS + 10  # seconds until a run has ended, whatever happens
NAMES_A_WORKER = (ScriptFailed, WorkerKilled, WorkerOutOfMemory, WorkerLost, LaunchRefused)
REFUSAL = PlatformError("no")
ABOUT_THE_CONNECTION = {"welcome", "refused", "ping", "ack"}
PHASES = ["launching", "connecting", "starting", "training", "ending"]

few = st.integers(0, 5)
ranks = st.none() | st.integers(0, 3)
seconds = st.sampled_from([0.01, 0.1, 0.3, 1.0, 5.0, 30.0])
messages = st.sampled_from(
    [
        ("started", {"pid": 7, "rank": 0}),
        ("exited", {"pid": 7, "rank": 0, "exit_code": 3}),
        ("exited", {"pid": 7, "rank": 9, "exit_code": 0}),
        ("exited", {"pid": 7, "exit_code": None, "signal": 9, "reason": "memory", "memory": 5}),
        ("exited", {"pid": 7, "rank": "x"}),
        ("hung_up", {"rank": 1}),
        ("broken", {"code": 137}),
        ("listening", {"port": 80}),
        ("stacks", {"rank": None, "text": "somewhere"}),
        ("output", {"text": "words"}),
        ("usage", {"cpu": 1.0, "memory": 5}),
        ("error", {"text": "cannot"}),
        ("report", {"report": {"kind": "returned"}}),
        ("report", {"report": {"kind": "progress", "step": 1, "metrics": {"loss": "NaN"}}}),
        ("report", {"report": {"kind": "exception", "type": "ConnectionResetError", "rank": {}}}),
        ("report", {"report": []}),
        ("hello", {}),
        ("tea", {"sugar": 2}),
    ]
)


class Runs(RuleBasedStateMachine):
    """One run, to which things happen."""

    @initialize(
        strategy=st.sampled_from([Processes(), Processes(slots=2), Horovod(), ParameterServer()]),
        n_workers=st.integers(1, 3),
        owns_platform=st.booleans(),
        lease=st.sampled_from([0.0, 15.0]),
        hellos=st.lists(st.sampled_from([0.0, 0.1, 0.1, 2.0, None]), min_size=4, max_size=4),
    )
    def begin(
        self, strategy: Any, n_workers: int, owns_platform: bool, lease: float, hellos: list[float | None]
    ) -> None:
        n_ps = 1 if strategy.name == "parameter_server" else 0
        platform = ScriptedPlatform()
        platform.lease_seconds = lease
        how = {"strategy": strategy, "platform": platform, "limits": LIMITS, "owns_platform": owns_platform}
        self.scene = Scene(n_workers, n_ps=n_ps, **how)
        self.names = list(self.scene.workers)
        self.touched: set[str | None] = set()  # workers that something has been done to
        for worker, hello in zip(self.scene.workers.values(), hellos, strict=False):
            worker.behaviour.hello_after = hello
            if hello is None:
                self.touched.add(worker.name)
        self.scene.start()

    def worker(self, number: int) -> Any:
        name = self.names[number % len(self.names)]
        self.touched.add(name)
        return self.scene.workers[name]

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(passing=seconds)
    def time_passes(self, passing: float) -> None:
        self.scene.advance(passing)

    @rule(number=few, rank=ranks)
    def a_process_starts(self, number: int, rank: int | None) -> None:
        self.scene.do(self.worker(number).start, rank)

    @rule(number=few, rank=ranks, code=st.sampled_from([0, 1]), signal=st.sampled_from([None, 9, 15]))
    def a_process_ends(self, number: int, rank: int | None, code: int, signal: int | None) -> None:
        self.scene.do(self.worker(number).exit, code, rank, signal=signal)

    @rule(number=few, rank=ranks, type=st.sampled_from(["ValueError", "ConnectionResetError", "HorovodInternalError"]))
    def a_script_raises(self, number: int, rank: int | None, type: str) -> None:
        self.scene.do(self.worker(number).raise_exception, type, rank=rank)

    @rule(number=few, message=messages)
    def a_message_comes(self, number: int, message: tuple[str, dict[str, Any]]) -> None:
        kind, fields = message
        self.scene.do(self.worker(number).say, kind, **fields)

    @rule(number=few, data=st.sampled_from([b"\n", b"[]\n", b"nonsense\n", b"{", b"\xff\n"]))
    def bytes_come(self, number: int, data: bytes) -> None:
        self.scene.do(self.worker(number).send, data)

    @rule(number=few)
    def an_agent_hangs_up(self, number: int) -> None:
        self.scene.do(self.worker(number).hang_up)

    @rule(number=few)
    def a_connection_is_cut(self, number: int) -> None:
        self.scene.do(self.worker(number).cut)

    @rule(number=few)
    def an_agent_dials_again(self, number: int) -> None:
        if not self.worker(number).is_connected:
            self.scene.do(self.worker(number).dial)

    @rule(number=few, kinds=st.sampled_from([{"stop"}, {"end"}, {"start", "expect"}, {"stop", "end", "stacks"}]))
    def an_agent_turns_deaf(self, number: int, kinds: set[str]) -> None:
        self.worker(number).behaviour.deaf_to = frozenset(kinds)

    @rule(number=few, status=st.sampled_from(list(Status)))
    def the_platform_moves_a_worker(self, number: int, status: Status) -> None:
        if any(worker.name == self.worker(number).name for worker in self.scene.platform.list()):
            self.scene.do(self.scene.platform.end, self.worker(number).name, status, "so it says")

    @rule(
        method=st.sampled_from(["submit", "poll", "stop", "close"]), error=st.sampled_from([None, PlatformError("no")])
    )
    def the_platform_fails(self, method: str, error: Exception | None) -> None:
        self.scene.platform.errors.pop(method, None)
        if error:
            self.scene.platform.errors[method] = error

    @rule(method=st.sampled_from(["poll", "stop", "close"]), takes=st.sampled_from([0.1, 5.0, 40.0, float("inf")]))
    def the_platform_is_slow(self, method: str, takes: float) -> None:
        self.scene.platform.seconds[method] = takes

    @rule(status=st.sampled_from(list(Status)))
    def the_platform_lists_strangers(self, status: Status) -> None:
        self.scene.platform.strangers.append(Worker("9", "stranger", status))

    @rule(code=st.sampled_from([0, 1, -9]))
    def the_launcher_ends(self, code: int) -> None:
        self.touched.add(None)
        self.scene.do(self.scene.launcher.exit, code)

    @rule(reason=st.sampled_from(["by request", AT_ONCE]))
    def somebody_stops_it(self, reason: str) -> None:
        self.scene.do(self.scene.stop, reason)

    # -- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def a_final_status_never_changes(self) -> None:
        final: dict[str | None, str] = {}
        for event in self.scene.events:
            if event.kind == "worker_state":
                assert final.get(event.worker, event.data["status"]) == event.data["status"]
                if Status(event.data["status"]).is_final:
                    final[event.worker] = event.data["status"]

    @invariant()
    def nothing_is_sent_after_the_end(self) -> None:
        for worker in self.scene.workers.values():
            orders = [kind for kind in worker.order_types() if kind not in ABOUT_THE_CONNECTION]
            assert "end" not in orders[:-1]

    @invariant()
    def phases_come_in_order(self) -> None:
        phases = [event.data["phase"] for event in self.scene.events if event.kind == "run_phase"]
        assert phases == [phase for phase in PHASES if phase in phases]

    @precondition(lambda self: self.scene.has_ended)
    @rule()
    def nothing_happens_after_the_end(self) -> None:
        told = len(self.scene.events)
        self.scene.advance(100)
        assert len(self.scene.events) == told

    def teardown(self) -> None:
        if not hasattr(self, "scene"):
            return
        with self.scene as scene:
            outcome = scene.finish(LONGEST)
            error = outcome.error
            assert error is None or isinstance(error, MusterError), repr(error)
            if isinstance(error, NAMES_A_WORKER):
                assert error.worker in self.touched
            if not self.touched and not scene.platform.errors and not isinstance(error, (RunTimeout, StartTimeout)):
                assert error is None or isinstance(error, MusterError)
            assert not any(worker.is_connected for worker in scene.workers.values())
            self.a_final_status_never_changes()
            self.nothing_is_sent_after_the_end()
            self.phases_come_in_order()
            assert outcome.events[-1].kind != "run_phase" or outcome.events[-1].data["phase"] == "ending"


Runs.TestCase.settings = settings(max_examples=40, stateful_step_count=12, suppress_health_check=[HealthCheck.too_slow])
test_every_run = Runs.TestCase
