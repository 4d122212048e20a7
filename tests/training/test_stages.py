"""Stages of a training process up to its first step, as its agent is told; and ranks that train by themselves."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import muster
import pytest
from muster.events import Event
from muster.records.first_step import first_step, importing
from muster.training import stages
from muster.training.stages import BUILDING, RUNNING, SILENT_SECONDS, Stages

from tests.plain import Plain
from tests.support import environment


class Watched:
    """The stages of a process whose time the test makes pass."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[tuple[str, float]] = []
        self.stages = Stages(lambda message: self.told.append((message["stage"], message["seconds"])), lambda: self.now)

    def passes(self, seconds: float, stage: str, call: Any = None) -> None:
        """Time in which the process is looked at ten times a second, and is always at the same."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.stages.record(stage, call)


def test_each_stage_is_told_with_how_long_the_one_before_took() -> None:
    watched = Watched()
    watched.passes(0.5, RUNNING)
    watched.passes(2, "importing tensorflow")
    watched.passes(1, RUNNING)
    call = sys._getframe()
    watched.passes(3, BUILDING, call)
    watched.stages.first_step()
    assert watched.told == [
        (RUNNING, 0.0), ("importing tensorflow", 0.5), (RUNNING, 2.0), (BUILDING, 1.0), ("training", 3.0),
    ]  # fmt: skip
    watched.passes(5, RUNNING)
    watched.stages.first_step()
    assert len(watched.told) == 5


def test_an_import_that_goes_on_is_told_again_and_one_that_hangs_is_not() -> None:
    watched = Watched()
    watched.passes(1, "importing tensorflow")
    for modules in range(30):  # in three seconds, one more at each look
        watched.now += 0.1
        watched.stages.record("importing tensorflow")
        watched.stages.came_further(modules)
    again = [("importing tensorflow", 0.0)]
    assert watched.told == again * (1 + len(watched.told[1:]))
    assert 3 <= len(watched.told) <= 8, "not at each look"
    told = len(watched.told)
    for _ in range(50):
        watched.now += 0.1
        watched.stages.record("importing tensorflow")
        watched.stages.came_further(30)
    assert len(watched.told) <= told + 1, "nothing has been imported any more"


def test_what_lasts_a_moment_is_not_told() -> None:
    watched = Watched()
    watched.passes(1, RUNNING)
    for package in "abc":
        watched.passes(0.2, f"importing {package}")
    watched.passes(1, RUNNING)
    assert watched.told == [(RUNNING, 0.0)]


def test_steps_of_a_script_that_tells_nothing_are_not_taken_for_one_that_is_being_built() -> None:
    watched = Watched()
    watched.passes(1, RUNNING)
    for frame in frames(20):
        watched.passes(0.2, BUILDING, frame)
    assert BUILDING not in dict(watched.told)
    watched.passes(1, BUILDING, sys._getframe())
    assert watched.told[-1][0] == BUILDING
    watched.passes(SILENT_SECONDS + 1, RUNNING)
    assert watched.stages.is_over
    assert [stage for stage, _ in watched.told] == [RUNNING, BUILDING, RUNNING]


def frames(count: int) -> list[FrameType]:
    """Frames of different calls."""
    return [(lambda: sys._getframe())() for _ in range(count)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site" / "tensorflow" / "python" / "eager" / "polymorphic_function").mkdir(parents=True)
    package = tmp_path / "site" / "tensorflow"
    (package / "__init__.py").write_text(
        "import time; time.sleep(1); from .python.eager.polymorphic_function.f import call"
    )
    (package / "python" / "eager" / "polymorphic_function" / "f.py").write_text("def call(function): return function()")
    (tmp_path / "mine.py").write_text("import tensorflow\n")
    return tmp_path


def run(folder: Path, script: str, n_workers: int = 1, **env: str) -> tuple[Any, list[Event]]:
    (folder / "train.py").write_text(textwrap.dedent(script))
    env = {"PYTHONPATH": str(folder / "site"), **env}
    cluster = muster.run_cluster(n_workers, worker_script="train.py", strategy=Plain(), env=env).cluster
    return cluster, list(muster.open_run(cluster.run_id).events())


@pytest.mark.slow
def test_a_run_says_what_the_first_step_waits_for(folder: Path) -> None:
    cluster, events = run(
        folder,
        """
        import time
        import mine, tensorflow
        from muster.training import report
        time.sleep(0.6)
        tensorflow.call(lambda: time.sleep(0.8))
        for step in range(3):
            report(step, steps=3)
        """,
    )
    told = [event.data["stage"] for event in events if event.kind == "stage"]
    assert told[-4:] == ["importing tensorflow", RUNNING, BUILDING, "training"]
    seconds = {event.data["stage"]: event.data["seconds"] for event in events if event.kind == "stage"}
    assert seconds["training"] == pytest.approx(0.8, abs=0.4)
    assert 2.4 < cluster.result.timings["first_step"] < cluster.result.seconds
    assert not [event for event in events if event.kind == "note"]


ALONE = """
    import sys
    from muster.training import report
    if "reports" in sys.argv:
        report(1, steps=1, loss=0.5)
"""


@pytest.mark.parametrize("reports", ["reports", ""])
def test_ranks_that_never_join_the_others_are_warned_of(folder: Path, reports: str) -> None:
    script = ALONE.replace("sys.argv", f"{[reports]}")
    cluster, events = run(folder, script, n_workers=2, HOROVOD_SIZE="2", HOROVOD_RANK="1")
    (note,) = [event.data["text"] for event in events if event.kind == "note"]
    assert "without having called hvd.init()" in note
    assert cluster.logs("worker-0") == ""
    assert note in cluster.explain()


def test_a_single_process_is_not_warned_of(folder: Path) -> None:
    _, events = run(folder, ALONE, HOROVOD_SIZE="1", HOROVOD_RANK="0")
    assert not [event for event in events if event.kind == "note"]


def test_a_loss_that_is_no_number_is_told_once(folder: Path) -> None:
    _, events = run(
        folder,
        """
        from muster.training import report
        for step in range(1, 4):
            report(step, epoch=step, loss=float("nan") if step > 1 else 0.5)
        """,
    )
    (note,) = [event.data["text"] for event in events if event.kind == "note"]
    assert note == "worker-0 reports loss nan at step 2: its training diverges."


HOROVOD = """
import atexit, os, sys, types
from muster.training import stages

class Basics:
    now = {now}
    def is_initialized(self):
        return self.now
    def shutdown(self):
        print("shut down")

module = types.ModuleType("horovod.torch.mpi_ops")
module._basics = Basics()
if {ever}:
    atexit.register(module._basics.shutdown)
sys.modules[module.__name__] = module
os.environ["HOROVOD_SIZE"] = "2"
print(stages.trains_alone(), stages.trains_alone())
"""


@pytest.mark.parametrize(
    ("now", "ever", "said"),
    [
        (True, True, "False False\nshut down\n"),
        (False, True, "False False\nshut down\n"),
        (False, False, "True True\n"),
    ],
)
def test_who_has_left_the_others_again_had_joined_them(now: bool, ever: bool, said: str) -> None:
    program = HOROVOD.format(now=now, ever=ever)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == said


@pytest.mark.parametrize(
    ("variables", "is_told"),
    [
        ({"HOROVOD_SIZE": "2"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"PMI_SIZE": "2"}, True),
        ({"PMI_SIZE": "1"}, False),
        ({"MUSTER_WORLD_SIZE": "2"}, False),
        ({"HOROVOD_SIZE": "2", "TF_USE_LEGACY_KERAS": "1"}, False),
        ({}, False),
    ],
)
def test_ranks_whose_gradients_keras_3_keeps_apart(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_told: bool
) -> None:
    for name in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "TF_USE_LEGACY_KERAS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "horovod._keras", ModuleType("horovod._keras"))
    keras = ModuleType("keras")
    keras.__dict__["__version__"] = "3.12.4"
    monkeypatch.setitem(sys.modules, "keras", keras)
    assert stages.trains_apart() == is_told


CONTEXT = """
import sys, types
from muster.training import stages
if {context!r}:
    module = types.ModuleType("tensorflow.python.eager.context")
    module._context = types.SimpleNamespace(**{context})
    sys.modules[module.__name__] = module
print(stages.lacks_strategy())
"""
TWO = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}'


@pytest.mark.parametrize(
    ("config", "context", "lacks"),
    [
        (TWO, {}, True),
        (TWO, {"_collective_ops_server_def": None}, True),
        (TWO, {"_collective_ops_server_def": "one"}, False),
        (TWO, {"another": "version"}, False),
        (TWO.replace(', "b:2"', ""), {}, False),
        ("nonsense", {}, False),
    ],
)
def test_workers_that_have_made_no_strategy_are_told_apart(config: str, context: dict[str, Any], lacks: bool) -> None:
    env = environment(TF_CONFIG=config, MUSTER_SERVES="1")
    command = [sys.executable, "-c", CONTEXT.format(context=context)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout == f"{lacks}\n"


def test_looking_costs_little(folder: Path) -> None:
    """Less than a hundredth of a core, with as many modules as TensorFlow loads."""
    program = f"""
import sys, time, types
sys.path.insert(0, {str(Path(stages.__file__).parents[2])!r})
from muster.training import stages
for number in range(4000):
    sys.modules[f"package{{number % 300}}.module{{number}}"] = types.ModuleType("x")

def look():
    began = time.process_time()
    assert stages.importing() is None
    stages.outermost(sys._getframe(), stages.BUILDERS)
    return time.process_time() - began

print(min(look() for _ in range(100)))  # other processes, which share the caches, only ever add to it
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.01 * stages.CHECK_SECONDS


def test_a_server_has_imported_when_it_listens() -> None:
    stage = {"stage": "importing tensorflow", "seconds": 0.1}
    events = [Event("stage", "ps-0", stage, 10), Event("stage", "worker-0", {**stage, "rank": 0}, 10)]
    events += [Event("stage", "worker-0", {"stage": RUNNING, "rank": 0, "seconds": 3}, 13)]
    ended = [Event("process_exited", name, {"pid": 1}, 90) for name in ("worker-0", "ps-0")]
    assert importing([*events, Event("listening", "ps-0", {"port": 1}, 14), *ended]) == 4
    assert importing([*events, *ended]) == 80, "it has not said more"


def test_a_slow_start_is_explained_by_the_process_that_was_last() -> None:
    def at(time: float, kind: str, worker: str | None = None, **data: Any) -> Event:
        return Event(kind, worker, data, time)

    events = [at(10, "run_requested")]
    for worker, rank, slower in (("worker-0", 0, 0), ("worker-1", 1, 2)):
        events += [
            at(10.2, "process_started", worker, rank=rank, pid=1),
            at(10.3, "stage", worker, rank=rank, stage="importing tensorflow", seconds=0.1),
            at(15 + slower, "stage", worker, rank=rank, stage=BUILDING, seconds=4.7 + slower),
            at(18 + slower, "stage", worker, rank=rank, stage="training", seconds=3),
            at(18 + slower, "progress", worker, rank=rank, step=1),
        ]
    assert first_step(events) == (
        "The first step came after 10.0 s: importing tensorflow 6.7 s, building the first step 3.0 s, "
        "starting workers 0.2 s."
    )
    assert first_step(events[:3]) == ""
    assert first_step([]) == ""
    again = [at(event.time + 100, event.kind, event.worker, **event.data) for event in events[1:]]
    assert "starting workers 0.2 s" in first_step([*events, at(110, "run_attempt", attempt=2, reason=""), *again])
    by_launcher = [*events[:1], at(10.1, "run_phase", phase="starting", launcher="horovodrun"), *events[1:]]
    assert "horovodrun 0.1 s, starting workers 0.1 s" in first_step(by_launcher)
