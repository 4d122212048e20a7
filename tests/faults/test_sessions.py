"""A session that dies, is suspended or leaves: its workers end with it or live on, and its run is recorded as such."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.faults.scene import SLEEP, Notebook, Scene

# A cell that brings a cluster into a phase and stays there. The agents wait for an sshd that never listens; the script
# never listens on its port; the script runs.
CELLS = {
    "connecting": """
        from muster import run_cluster
        from muster.platforms import machine
        from plain import Plain
        machine.SSHD_PATHS = ("./sshd",)
        run_cluster(2, worker_script="train.py", strategy=Plain(needs_ssh=True))
        """,
    "starting": """
        from muster import run_cluster
        from plain import Plain
        run_cluster(2, worker_script="train.py", strategy=Plain(listens=True))
        """,
    "training": """
        from muster import run_cluster
        from plain import Plain
        run_cluster(2, n_ps=1, worker_script="train.py", strategy=Plain())
        """,
    "horovod": """
        from muster import run_cluster
        run_cluster(2, worker_script="train.py", strategy="horovod")
        """,
}
VICTIMS = ("session", "session, agents", "session, guard")


def reach(scene: Scene, cell: str) -> Notebook:
    """A notebook that runs this cell, and has come where it stays."""
    scene.fake_sshd()
    scene.script(SLEEP)
    notebook = scene.notebook(CELLS[cell])
    scene.wait_for_phase("training" if cell == "horovod" else cell)
    if cell == "starting":
        scene.wait_for_output()
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "victims"),
    [
        *itertools.product(("connecting", "starting", "training"), VICTIMS),
        *(pytest.param("horovod", victims, marks=pytest.mark.horovod) for victims in (*VICTIMS, "session, launcher")),
    ],
)
def test_nothing_is_left_of_a_session_that_is_killed(scene: Scene, cell: str, victims: str) -> None:
    notebook = reach(scene, cell)
    pids = [pid for part in victims.split(", ") for pid in (scene.agents() if part == "agents" else [scene.pid(part)])]
    killed = scene.kill(*pids)
    notebook.process.wait()
    scene.assert_nothing_left()
    print(f"all gone after {time.time() - killed:.2f} s")
    recorded = scene.recorded
    assert recorded.status == "lost"
    assert recorded.result is None
    assert "was lost" in recorded.explain()
    if cell != "connecting":
        assert all("ready" in recorded.logs(worker) for worker in recorded.worker_names)
