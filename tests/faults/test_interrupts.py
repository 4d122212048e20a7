"""Ctrl-C at any moment: KeyboardInterrupt comes out soon, the run is recorded as stopped, and nothing is left."""

from __future__ import annotations

import textwrap
import time

import pytest

from tests.faults.scene import STUBBORN, Notebook, Scene, anywhere
from tests.faults.test_sessions import CELLS, reach

SOON = 20.0  # seconds until KeyboardInterrupt is there; a tenth is usual


def assert_stopped(scene: Scene, notebook: Notebook, interrupted: float, times: int = 1) -> None:
    outcome = notebook.outcome()
    # Of several the last one may come when the run has ended, and is not about the run any more.
    assert outcome["raised"] in ("RunInterrupted", *(["KeyboardInterrupt"] if times > 1 else [])), outcome["text"]
    print(f"interrupted after {outcome['at'] - interrupted:.2f} s")
    assert outcome["at"] - interrupted < SOON
    scene.assert_nothing_left(within=0.5)  # it was all ended before the interrupt came out
    assert scene.recorded.status == "stopped"
    assert scene.events("run_ended")[0].data["status"] == "stopped"


@anywhere
@pytest.mark.parametrize(
    ("cell", "how"),
    [
        *((cell, "once") for cell in CELLS if cell != "horovod"),
        *(("training", how) for how in ("group", "twice", "five times")),
        *(pytest.param("horovod", how, marks=pytest.mark.horovod) for how in ("once", "group", "five times")),
    ],
)
@pytest.mark.slow
def test_an_interrupt_ends_the_run(scene: Scene, cell: str, how: str) -> None:
    notebook = reach(scene, cell)
    scene.remember()
    times = {"twice": 2, "five times": 5}.get(how, 1)
    interrupted = notebook.interrupt(times, pause=0.2 if how == "twice" else 0.005, group=how == "group")
    assert_stopped(scene, notebook, interrupted, times)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 0.01, 0.03, 0.08])
@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_while_everything_starts_ends_the_run(scene: Scene, delay: float, times: int) -> None:
    scene.script(STUBBORN)
    notebook = scene.notebook(CELLS["training"])
    scene.wait_for_phase("launching")
    time.sleep(delay)
    interrupted = notebook.interrupt(times, pause=0.01)
    assert_stopped(scene, notebook, interrupted, times)


@pytest.mark.alone
@pytest.mark.slow
def test_a_second_interrupt_takes_the_time_to_end_away(scene: Scene) -> None:
    scene.script(STUBBORN)
    # With so much time to end, nothing but the second interrupt can be why it ends soon.
    cell = "import muster.run.ending; muster.run.ending.STOP_GRACE = 60\n"
    notebook = scene.notebook(cell + textwrap.dedent(CELLS["training"]))
    scene.wait_for_phase("training")
    interrupted = notebook.interrupt()
    scene.wait_for_phase("ending")
    notebook.interrupt()
    assert_stopped(scene, notebook, interrupted)
