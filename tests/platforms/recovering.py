"""Trains on any platform and loses a worker on the way; what is learnt must be the same to the last bit."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.events import RunAttempt
from muster.records import runs

from tests.cluster.test_restarts_alone import COORDINATOR, processes_of, steps_of, times_listening
from tests.support import environment, eventually

STEPS = 40
PAUSE = 15  # the step after which the first attempt waits for what befalls it
# How ranks add up what each of them has, to the last bit, by strategy. Beside `total` each has `rank` and `size`.
TOTALS = {
    "processes": """
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if size == 1:
    answers = None
elif rank == 0:
    server = socket.create_server(place)
    peer = server.accept()[0]
    answers = peer.makefile()
else:
    while True:
        try:
            peer = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.05)
    answers = peer.makefile()


def total(values):
    if answers is None:
        return values
    peer.sendall(json.dumps(values).encode() + b"\\n")
    return [own + theirs for own, theirs in zip(values, json.loads(answers.readline()))]
""",
    "horovod": """
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
rank, size = hvd.rank(), hvd.size()


def total(values):
    return hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Sum).numpy().tolist()
""",
    "mpi": """
import atexit, ctypes

if "OMPI_COMM_WORLD_RANK" in os.environ:
    mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)  # Open MPI's
    names = ("comm_world", "double", "op_sum")
    world, double, add = (ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")) for name in names)
else:
    mpi = ctypes.CDLL("libmpich.so.12")
    world, double, add = 0x44000000, 0x4C00080B, 0x58000003  # as its mpi.h defines them
mpi.MPI_Init(None, None)
atexit.register(mpi.MPI_Finalize)
rank, size = int(os.environ["MUSTER_RANK"]), int(os.environ["MUSTER_WORLD_SIZE"])


def total(values):
    mine, ours = (ctypes.c_double * len(values))(*values), (ctypes.c_double * len(values))()
    mpi.MPI_Allreduce(mine, ours, len(values), double, add, world)
    return list(ours)
""",
}
# The weight moves at each step by the mean of what all ranks have found. Rank 0 keeps the checkpoint, and tells the
# others where to go on.
TRAIN = f"""
import json, math, os, socket, time
from pathlib import Path
from muster.training.progress import report

{{total}}

kept = Path(os.environ.get("KEPT") or os.environ["TMPDIR"], os.environ["MUSTER_RUN_ID"])
state = [0, 0.0] if rank else json.loads(kept.read_text()) if kept.exists() else [0, 1.0]
first, weight = total(state)
print("attempt", os.environ["MUSTER_ATTEMPT"], "goes on at step", int(first), flush=True)
for step in range(int(first), {STEPS}):
    weight -= 0.1 * total([math.sin((rank + 1) * weight + step)])[0] / size
    report(step=step + 1, steps={STEPS})
    if rank == 0:
        kept.with_suffix(".new").write_text(json.dumps([step + 1, weight]))
        kept.with_suffix(".new").replace(kept)
    if step + 1 == {PAUSE} and os.environ["MUSTER_ATTEMPT"] == "1":
        print("waits", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.1)
print("weight", repr(weight))
"""


def script_for(strategy: str) -> str:
    """Return the training, for two ranks of a strategy."""
    return TRAIN.format(total=TOTALS[strategy])


def uninterrupted(alone_after: int = STEPS) -> str:
    """Return the weight that a training ends with which nothing interrupts.

    Args:
        alone_after: the step after which rank 0 trains alone.
    """
    weight = 1.0
    for step in range(STEPS):
        size = 2 if step < alone_after else 1
        weight -= 0.1 * sum(math.sin((rank + 1) * weight + step) for rank in range(size)) / size
    return repr(weight)


def recovers(
    lose: Callable[[muster.Cluster], object],
    *,
    lost: str = "worker-1",
    are_all_new: bool = False,
    is_left_alone: bool = False,
    **options: Any,
) -> None:
    """Train on two workers, lose one of them on the way, and see what is learnt.

    Args:
        lose: has it lost.
        lost: which one; rank 0 keeps the checkpoint, so that the first needs a folder for that which outlives it.
        are_all_new: whether the other one is launched again with it.
        is_left_alone: whether the second one cannot be launched again, and the first goes on without it.
        options: of ``run_cluster``.
    """
    options = {"strategy": "processes", "memory": 0.5, "timeout_seconds": 120, "dashboard": False, **options}
    Path("train.py").write_text(script_for(options["strategy"]))
    running: muster.Cluster = muster.run_cluster(2, worker_script="train.py", wait=False, restarts=1, **options).cluster
    try:
        for worker in ("worker-0", "worker-1"):
            _comes_to(running, lambda: "waits" in running.logs(worker), f"{worker} has come so far")  # noqa: B023
        lose(running)
        running.wait()
    finally:
        running.stop()
    recorded = runs.Run(running.run_dir)
    weight = uninterrupted(alone_after=PAUSE if is_left_alone else STEPS)
    for worker in ("worker-0",) if is_left_alone else ("worker-0", "worker-1"):
        assert f"attempt 2 goes on at step {PAUSE}" in recorded.logs(worker)
        assert recorded.logs(worker).rpartition("weight ")[2].split()[0] == weight
    how = f"{lost} was replaced; 1 worker has stayed"
    if are_all_new:
        how = "All workers were launched anew"
    if is_left_alone:
        how = "1 worker has stayed. It goes on without worker-1"
    said = recorded.explain()
    assert re.search(rf"Attempt 2 runs, [\d.]+ s after the failure\. {how}\.", said), said
    assert re.search(r"Attempt 2 is at step 1\d, as far as the training was: [\d.]+ s were lost\.", said)


def servers_recover(lose: Callable[[muster.Cluster], object], **options: Any) -> None:
    """Train with a chief, a worker and a server: all start again from the checkpoint when the server is lost.

    Before that the worker's process is killed, and started again alone.

    Args:
        lose: has the server lost.
        options: of ``run_cluster``; in its ``env`` is the folder ``KEPT``, which chief and server see.
    """
    Path("train.py").write_text(COORDINATOR)
    Path("waits").touch()
    options["env"] = {"WAITS_UNTIL": "1", **options["env"]}
    running: muster.Cluster = muster.run_cluster(
        1, n_ps=1, worker_script="train.py", wait=False, restarts=2, dashboard=False, **options
    ).cluster
    recorded = runs.Run(running.run_dir)
    try:
        _comes_to(running, lambda: steps_of(recorded) >= 20, "the first steps")
        kill_process(running, "worker-0", processes_of(recorded, "worker-0")[0])
        _comes_to(running, lambda: times_listening(recorded, "worker-0") > 1, "the worker is back")
        came_to = steps_of(recorded)
        _comes_to(running, lambda: steps_of(recorded) >= came_to + 20, "it goes on")
        lose(running)
        running.wait()
    finally:
        running.stop()
    log = recorded.logs("chief-0")
    assert int(log.rpartition("attempt 2 goes on after ")[2].split()[0]) >= came_to
    assert float(log.rpartition("weight ")[2].split()[0]) == pytest.approx(3, abs=0.3)
    assert len([event for event in recorded.events() if type(event.data) is RunAttempt]) == 1
    said = recorded.explain()
    assert "worker-0 was ended by signal 9 (SIGKILL), and is started again; the others go on." in said
    assert re.search(
        r"Attempt 2 runs, [\d.]+ s after the failure\. ps-0 was replaced; 2 workers have stayed\.", said
    ), said


def _comes_to(running: muster.Cluster, condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition is true; raise the error that the run ends with before that."""
    eventually(lambda: condition() or not running.is_running, what, timeout=120)
    if not condition():
        running.wait()
        raise AssertionError(f"the run has ended before {what}")


def take_away(running: muster.Cluster, worker: str = "worker-1") -> None:
    """Tell a worker's agent to end, and to be quick about it, as whoever runs it does."""
    twice = "import os, time; agent = os.getppid(); os.kill(agent, 15); time.sleep(0.5); os.kill(agent, 15)"
    _inside(running, worker, twice)


def kill_process(running: muster.Cluster, worker: str, pid: int) -> None:
    """Kill a process of a worker, which has this id there."""
    _inside(running, worker, f"import os; os.kill({pid}, 9)")


def _inside(running: muster.Cluster, worker: str, program: str) -> None:
    command = [sys.executable, "-m", "muster", "exec", running.run_id, worker, "--", sys.executable, "-c", program]
    subprocess.run(command, env=environment(), check=False)
