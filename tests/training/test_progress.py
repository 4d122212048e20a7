import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from muster.training import progress, report

from tests.support import eventually
from tests.training.listener import Listener
from tests.training.processes import REPOSITORY, environment, start

Received = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """A reporter that has sent nothing yet, by a clock that stands still; returns how to move it."""
    now = [100.0]
    reporter = progress.Reporter(progress._send_datagram, lambda: now[0])
    monkeypatch.setattr(progress, "_reporter", reporter)
    monkeypatch.setattr(progress._stages, "is_over", True)
    monkeypatch.setattr(progress, "_known_names", {})
    monkeypatch.setattr(progress, "_warned", {})
    for variable in (*progress.RANK_VARIABLES, progress.ADDRESS_VARIABLE):
        monkeypatch.delenv(variable, raising=False)

    def advance(seconds: float) -> None:
        now[0] += seconds

    yield advance
    reporter._waiting.clear()
    reporter._is_held = False  # its thread sends nothing to the next test


@pytest.fixture
def received(clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """Binds the agent's socket, which holds what comes until it is called: the messages so far."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(f"{folder}/report.sock")
        agent.setblocking(False)
        monkeypatch.setenv("MUSTER_REPORT", f"{folder}/report.sock")

        def messages() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            while True:
                try:
                    found.append(json.loads(agent.recv(65536), parse_constant=pytest.fail))
                except BlockingIOError:
                    return found

        yield messages


def test_what_finds_no_room_is_sent_once_there_is_some(received: Received) -> None:
    """As at the end of an epoch that many ranks reach at once: the kernel's queue has room for ten, or some more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.setblocking(False)
        others.connect(os.environ["MUSTER_REPORT"])
        with pytest.raises(BlockingIOError):
            while True:
                others.send(b"{}")
    report(4, steps=5, epoch=1, loss=0.5)
    report(5, steps=5, epoch=1, accuracy=1)
    report(1, steps=5, epoch=2, loss=0.125)
    assert not any(received())
    found: list[dict[str, Any]] = []

    def has_come() -> bool:
        found.extend(received())
        return len(found) == 2

    eventually(has_come, "two messages")
    assert [(message["epoch"], message["step"], message["metrics"]) for message in found] == [
        (1, 5, {"loss": 0.5, "accuracy": 1.0}),
        (2, 1, {"loss": 0.125}),
    ]


def test_what_finds_no_room_waits_for_some_at_the_end(received: Received, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        """
        import os, socket
        from muster.training import report
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
            others.setblocking(False)
            others.connect(os.environ["MUSTER_REPORT"])
            try:
                while True:
                    others.send(b"{}")
            except BlockingIOError:
                pass
        report(5, steps=5, loss=0.25)
        print("ended", flush=True)
        """.replace("\n        ", "\n")
    )
    given = environment(MUSTER_REPORT=os.environ["MUSTER_REPORT"])
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "train.py")], cwd=REPOSITORY, env=given, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ended\n"
        found: list[dict[str, Any]] = []

        def has_come() -> bool:
            found.extend(filter(None, received()))
            return bool(found)

        eventually(has_come, "a message")
    assert [message["step"] for message in found] == [5]


def test_a_report_is_one_message_with_what_was_given(received: Received, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "3")
    before = time.time()
    report(7, epoch=2, steps=10, epochs=5, examples=448, loss=0.25, accuracy=1)
    (message,) = received()
    assert before <= message.pop("time") <= time.time()
    assert message == {
        "kind": "progress",
        "rank": 3,
        "step": 7,
        "epoch": 2,
        "steps": 10,
        "epochs": 5,
        "examples": 448,
        "metrics": {"loss": 0.25, "accuracy": 1.0},
    }


def test_what_is_not_given_is_not_sent(received: Received) -> None:
    report(1)
    (message,) = received()
    assert set(message) == {"kind", "rank", "time", "step"}


def test_names_and_values_that_are_a_slip_are_told_once(received: Received) -> None:
    for _ in range(2):
        report(
            1, **cast("dict[str, Any]", {"stepp": 1, "loss": "low", "accuracy": None, "val_loss": 0.5, "n_steps": 3})
        )
    report(cast(Any, "first"))
    warnings = [message["text"] for message in received() if message["kind"] == "warning"]
    assert warnings == [
        "reports stepp=, which is shown as a metric; the argument of report() is step=",
        "reports loss as a value of type str, which is no number: it is left out",
        "reports step as a value of type str, which is no number: it is left out",
    ]


def test_a_dict_of_metrics_is_answered_with_how_they_are_given(received: Received) -> None:
    report(cast(Any, {"val_loss": 1.0}))
    (warning,) = [message["text"] for message in received() if message["kind"] == "warning"]
    assert warning.endswith("metrics are given by name, as in report(val_loss=...), or report(**metrics)")


@pytest.mark.parametrize("slip", ["setp", "stpe", "epohcs", "exampels"])
def test_letters_that_have_changed_places_are_a_slip(received: Received, slip: str) -> None:
    report(1, **cast("dict[str, Any]", {slip: 1}))
    assert f"reports {slip}=" in next(message["text"] for message in received() if message["kind"] == "warning")


@pytest.mark.parametrize(
    ("examples", "is_told"), [([32] * 8, True), (range(32, 320, 32), False), ([32, 64, *[64] * 8], False)]
)
def test_examples_of_one_step_in_place_of_all_are_told_once(
    received: Received, monkeypatch: pytest.MonkeyPatch, examples: Iterable[int], is_told: bool
) -> None:
    monkeypatch.setattr(progress, "_first_examples", {})
    for step, count in enumerate(examples, start=1):
        report(step, examples=count)
    warnings = [message["text"] for message in received() if message["kind"] == "warning"]
    assert [text.partition(";")[0] for text in warnings] == ["reports examples=32 at every step"] * is_told


@pytest.mark.parametrize("variable", progress.RANK_VARIABLES)
def test_the_rank_is_the_launchers(received: Received, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    report(1)
    assert received()[0]["rank"] == 1


def test_horovods_rank_comes_before_the_others(received: Received, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, variable in enumerate(progress.RANK_VARIABLES):
        monkeypatch.setenv(variable, str(rank))
    report(1)
    assert received()[0]["rank"] == 0


def test_no_rank_is_null(received: Received, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_RANK", "none")
    report(1)
    assert received()[0]["rank"] is None


def test_metrics_that_are_not_finite_go_by_name_in_strict_json(received: Received) -> None:
    report(1, loss=math.nan, norm=-math.inf, scale=np.float32("inf"), accuracy=0.5)
    metrics = received()[0]["metrics"]
    assert metrics == {"loss": "NaN", "norm": "-Infinity", "scale": "Infinity", "accuracy": 0.5}
    assert math.isnan(float(metrics["loss"]))


def test_what_float_and_int_take_is_taken_and_the_rest_left_out(received: Received) -> None:
    report(
        np.int64(3),
        loss=np.float32(0.5),
        one=np.array(2),
        images=np.zeros(3),
        name=cast(Any, "LeNet"),
        nothing=cast(Any, None),
    )
    (message,) = (message for message in received() if message["kind"] == "progress")
    assert message["step"] == 3
    assert message["metrics"] == {"loss": 0.5, "one": 2.0}


def test_fast_reports_are_merged_and_the_newest_wins(received: Received, clock: Callable[[float], None]) -> None:
    for step in range(1, 100):
        report(step, loss=1 / step)
    assert [message["step"] for message in received()] == [1]
    report(accuracy=0.9)
    clock(1 / progress.MAX_PER_SECOND)
    report(100, loss=0.01)
    (message,) = received()
    assert (message["step"], message["metrics"]) == (100, {"loss": 0.01, "accuracy": 0.9})


def test_the_rate_is_bounded(received: Received, clock: Callable[[float], None]) -> None:
    sent = 0
    for step in range(2000):
        report(step)
        clock(0.001)
        sent += len(received())
    assert 1.5 * progress.MAX_PER_SECOND <= sent <= 2 * progress.MAX_PER_SECOND + 1


def test_a_metric_is_looked_at_only_when_it_is_sent(received: Received) -> None:
    class OnTheGpu:
        def __float__(self) -> float:
            looked.append(1)
            return 0.5

    looked: list[int] = []
    for step in range(50):
        report(step, loss=OnTheGpu())
    assert len(looked) == 1


def test_the_first_and_the_last_report_of_every_epoch_are_sent(received: Received) -> None:
    for epoch in (1, 2):
        for step in (1, 2, 3):
            report(step, epoch=epoch)
        report(epoch=epoch, val_loss=epoch / 10)
    progress._reporter.flush()
    assert [(message["epoch"], message["step"]) for message in received()] == [(1, 1), (1, 3), (2, 1), (2, 3)]


@pytest.mark.parametrize("first", [0, 1])
def test_the_report_of_the_last_step_is_sent_as_nothing_may_follow_it_for_long(received: Received, first: int) -> None:
    for step in range(60):
        report(first + step, steps=60)
    assert [message["step"] for message in received()][-1] == first + 59


def test_a_full_queue_drops_reports_and_holds_up_nothing(received: Received, clock: Callable[[float], None]) -> None:
    started = time.perf_counter()
    for step in range(1, 2001):
        report(step)
        clock(1)
    assert time.perf_counter() - started < 10  # 0.2 without a wait; some 20 if each waited for 10 ms
    assert 1 <= len(received()) < 2000
    clock(1)
    report(2001)
    assert [message["step"] for message in received()] == [2001]


@pytest.mark.parametrize("path", ["/nowhere/report.sock", "/tmp", "x" * 200])
def test_an_agent_that_is_gone_disturbs_nothing(
    clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("MUSTER_REPORT", path)
    report(1, loss=0.5)


def test_a_message_too_large_for_a_datagram_disturbs_nothing(received: Received) -> None:
    report(1, **{f"metric_{index}": index for index in range(50_000)})
    assert received() == []


def test_outside_a_run_nothing_happens(clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_reporter", progress.Reporter(lambda *_: pytest.fail("sent")))
    report(1, loss=cast(Any, object()))
    progress._reporter.flush()


def test_reports_of_several_threads_and_of_a_signal_handler_are_taken(received: Received) -> None:
    def reports() -> None:
        for step in range(200):
            report(step)

    threads = [threading.Thread(target=reports) for _ in range(4)]
    with progress._reporter._lock:  # as the thread that a signal interrupts in the middle of a report holds it
        report(1)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received()[0]["step"] == 1


HANGS = """
import os, sys, time
from muster.training import report
class OnTheGpu:
    def __float__(self):
        time.sleep(60)
if sys.argv[1] == "fork":
    report(0)
    report(0, ours=1)
    if os.fork():
        os._exit(os.wait()[1])
for step in range(1, 5):
    report(step, steps=400, loss=1.0 / step, accuracy=OnTheGpu() if step > 1 else 0.5)
while sys.argv[1] == "spin":
    pass
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["spin", "sleep", "fork"])
def test_a_script_that_hangs_has_told_its_last_step(how: str) -> None:
    with Listener() as agent:
        process = start([sys.executable, "-c", HANGS, how], environment(MUSTER_REPORT=agent.path))
        try:
            eventually(lambda: 4 in [message["step"] for message in agent.messages], "the last report")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    first, last = (message for message in agent.messages if message["step"])
    assert (first["step"], last["step"], last["metrics"]) == (1, 4, {"loss": 0.25})
    assert last["time"] - first["time"] < 0.2, "it is of the time when it was reported"


def test_what_is_on_a_device_is_sent_when_the_script_goes_on(
    received: Received, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnTheGpu:
        def __float__(self) -> float:
            return 0.5

    monkeypatch.setattr(progress, "SECONDS_PER_CHECK", 0.01)
    report(1)
    report(2, loss=0.25, accuracy=OnTheGpu())
    clock(1)
    eventually(lambda: not progress._reporter._is_watched, "the end of the thread that has sent it")
    first, held = received()
    assert (first["step"], held["step"], held["metrics"]) == (1, 2, {"loss": 0.25})
    clock(1)
    report(3)
    (message,) = received()
    assert (message["step"], message["metrics"]) == (3, {"accuracy": 0.5})


PROGRAM = """
import sys
from muster.training import report
for step in range(1, 501):
    report(step, steps=500, loss=1.0 / step)
report(test_accuracy=0.97)
assert not [name for name in sys.modules if name.partition(".")[0] in ("tensorflow", "keras", "numpy", "horovod")]
"""


def oldest_interpreter() -> str | None:
    """The oldest Python from 3.6 on this machine: the path, or None."""
    found: list[str | Path | None] = [shutil.which(f"python3.{minor}") for minor in range(6, 10)]
    found += sorted(Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python"))
    for python in found:
        if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return str(python)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", [sys.executable, "the oldest"])
def test_a_copy_of_the_folder_reports_from_any_interpreter(tmp_path: Path, interpreter: str) -> None:
    python = oldest_interpreter() if interpreter == "the oldest" else interpreter
    if python is None:
        pytest.skip("no Python older than 3.10 on this machine")
    shutil.copytree(REPOSITORY / "sdk" / "muster" / "training", tmp_path / "muster" / "training")
    (tmp_path / "muster" / "__init__.py").touch()
    with Listener() as agent:
        env = {"PYTHONPATH": str(tmp_path), "MUSTER_REPORT": agent.path, "PMI_RANK": "1"}
        subprocess.run([python, "-c", PROGRAM], env=env, check=True, timeout=60)
    step, after = agent.messages[-2:]
    assert (step["step"], step["rank"], step["metrics"]) == (500, 1, {"loss": 0.002})
    assert (after["rank"], after["metrics"]) == (1, {"test_accuracy": 0.97})
    assert agent.messages[0]["step"] == 1
    assert len(agent.messages) < 100
