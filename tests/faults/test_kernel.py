"""Interrupting a real Jupyter kernel while a cell runs a cluster: the cell ends, the kernel does not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.scene import SLEEP, Scene

jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")
pytestmark = pytest.mark.slow

BLOCKS = 'import muster; muster.run_cluster(2, worker_script="train.py", strategy="horovod")'
SUCCEEDS = """
from plain import Plain
print(muster.run_cluster(2, worker_script="hello.py", strategy=Plain(), dashboard=False).cluster.logs("worker-1"))
"""


class Kernel:
    """A kernel and its client."""

    def __init__(self, scene: Scene) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        # Not by ports, which Jupyter chooses before the kernel binds them: other tests may be quicker.
        self.manager = jupyter_client.manager.KernelManager(transport="ipc")
        self.manager.start_kernel(cwd=str(scene.folder), env=env)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def outcome(self, cell: str) -> dict[str, Any]:
        """Return the end of a cell that was sent to the kernel: ``printed``, and ``raised`` (a class name or None)."""
        found: dict[str, Any] = {"printed": "", "raised": None}
        while True:
            message = self.client.get_iopub_msg(timeout=30)
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                found["printed"] += content["text"]
            elif kind == "error":
                found["raised"] = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return found

    def run(self, cell: str) -> dict[str, Any]:
        """Run a cell to its end."""
        return self.outcome(self.client.execute(cell))

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(scene: Scene) -> Iterator[Kernel]:
    kernel = Kernel(scene)
    yield kernel
    kernel.close()


@pytest.mark.alone
@pytest.mark.horovod
def test_interrupting_a_cell_thrice_ends_its_run_and_not_the_kernel(scene: Scene, kernel: Kernel) -> None:
    scene.script(SLEEP)
    scene.script("print('hello')", "hello.py")
    cell = kernel.client.execute(BLOCKS)
    scene.wait_for_phase("training")
    scene.remember()
    interrupted = time.time()
    for _ in range(3):
        kernel.manager.interrupt_kernel()
        time.sleep(0.02)
    outcome = kernel.outcome(cell)
    assert outcome["raised"] is None, "it is told in a line"
    logs = scene.recorded.run_dir / "logs"
    assert f"The run was stopped (interrupted); no process of it is left. Logs: {logs}\n" in outcome["printed"]
    print(f"interrupted after {time.time() - interrupted:.2f} s")
    assert time.time() - interrupted < 2
    assert scene.recorded.status == "stopped"
    again = kernel.run(SUCCEEDS)
    assert again["raised"] is None
    assert again["printed"] == "hello\n\n"


@pytest.mark.horovod
def test_a_kernel_that_is_restarted_leaves_nothing(scene: Scene, kernel: Kernel) -> None:
    scene.script(SLEEP)
    kernel.client.execute(BLOCKS)
    scene.wait_for_phase("training")
    scene.remember()
    kernel.manager.restart_kernel(now=True)
    assert scene.recorded.status == "lost"
    assert kernel.client.wait_for_ready(timeout=30) is None


def test_a_detached_run_outlives_the_restart_of_its_kernel_and_the_next_attaches(scene: Scene, kernel: Kernel) -> None:
    scene.script("import os, time\nprint('ready', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.05)")
    begun = kernel.run(
        'import muster; run = muster.run_cluster(2, worker_script="train.py", strategy="processes", detach="5m")'
    )
    assert begun["raised"] is None
    scene.wait_for_phase("training")
    scene.remember()
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=30)
    assert scene.recorded.status == "running"
    attached = kernel.run('import muster; run = muster.attach(); print(*run.stacks(), run.logs("worker-1"))')
    assert attached["raised"] is None
    assert f"Attached to run {scene.recorded.run_id}" in attached["printed"]
    assert "rank 0 (worker-0) rank 1 (worker-1) ready" in attached["printed"]
    (scene.folder / "go").touch()
    ended = kernel.run("print(run.wait().status)")
    assert (ended["raised"], ended["printed"]) == (None, "succeeded\n")
