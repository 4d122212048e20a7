"""Trains on any platform, loses a worker on the way, and sees that the end is the very one of an uninterrupted run."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
from muster.records import runs

from tests.support import environment, eventually

STEPS = 40
PAUSE = 15  # the step after which the first attempt waits for what befalls it
# Two ranks whose weight each step moves by the mean of what both have found. Rank 0, whose worker stays, keeps the
# checkpoint, and tells the other where to go on.
TRAIN = f"""
import json, math, os, socket, time
from pathlib import Path
from muster.training.progress import report

rank, place = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
kept = Path(os.environ.get("KEPT") or os.environ["TMPDIR"], "checkpoint")
if rank == 0:
    server = socket.create_server(place)
    peer = server.accept()[0]
    state = json.loads(kept.read_text()) if kept.exists() else [0, 1.0]
else:
    while True:
        try:
            peer = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.05)
answers = peer.makefile()


def exchanged(value):
    peer.sendall(json.dumps(value).encode() + b"\\n")
    return json.loads(answers.readline())


theirs = exchanged(state if rank == 0 else None)
step, weight = state if rank == 0 else theirs
print("attempt", os.environ["MUSTER_ATTEMPT"], "goes on at step", step, flush=True)
for step in range(step, {STEPS}):
    own = math.sin((rank + 1) * weight + step)
    theirs = exchanged(own)
    weight -= 0.1 * sum((own, theirs) if rank == 0 else (theirs, own)) / 2
    report(step=step + 1, steps={STEPS})
    if rank == 0:
        kept.with_suffix(".new").write_text(json.dumps([step + 1, weight]))
        kept.with_suffix(".new").replace(kept)
    if step + 1 == {PAUSE} and os.environ["MUSTER_ATTEMPT"] == "1":
        print("waits", flush=True)
        time.sleep(600)
print("weight", repr(weight))
"""


def uninterrupted() -> str:
    """The weight that a training ends with which nothing interrupts."""
    weight = 1.0
    for step in range(STEPS):
        weight -= 0.1 * sum((math.sin(weight + step), math.sin(2 * weight + step))) / 2
    return repr(weight)


def recovers(lose: Callable[[muster.Cluster], object], *, are_all_new: bool = False, **options: Any) -> None:
    """Train on two workers, lose the second of them on the way, and see what is learnt.

    Args:
        lose: has the second worker lost.
        are_all_new: whether the first one is launched again with it.
        options: of ``run_cluster``.
    """
    Path("train.py").write_text(TRAIN)
    options = {"strategy": "processes", "memory": 0.5, "timeout_seconds": 120, "dashboard": False, **options}
    running: muster.Cluster = muster.run_cluster(2, worker_script="train.py", wait=False, restarts=1, **options).cluster
    try:
        for worker in ("worker-0", "worker-1"):
            eventually(lambda: "waits" in running.logs(worker), f"{worker} has come so far", timeout=60)  # noqa: B023
        lose(running)
        running.wait()
    finally:
        running.stop()
    recorded = runs.Run(running.run_dir)
    for worker in ("worker-0", "worker-1"):
        assert f"attempt 2 goes on at step {PAUSE}" in recorded.logs(worker)
        assert recorded.logs(worker).split()[-1] == uninterrupted()
    how = "All workers were launched anew" if are_all_new else "worker-1 was replaced; 1 worker has stayed"
    assert re.search(rf"Attempt 2 runs, after .* {how}\.", recorded.explain())
    assert re.search(r"Attempt 2 is at step 1\d, as far as the training was: [\d.]+ s were lost\.", recorded.explain())


def take_away(running: muster.Cluster) -> None:
    """Tell the second worker's agent to end, and to be quick about it, as whoever runs it does."""
    twice = "import os, time; agent = os.getppid(); os.kill(agent, 15); time.sleep(0.5); os.kill(agent, 15)"
    inside = ["worker-1", "--", sys.executable, "-c", twice]
    subprocess.run([sys.executable, "-m", "muster", "exec", running.run_id, *inside], env=environment(), check=False)
