"""Runs that are really run, within a second: workers that are plain Python programs, and no TensorFlow."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from muster.checks.script import make_script
from muster.errors import MusterError
from muster.job import Job
from muster.records.runs import Run
from muster.run.cluster import Cluster

from tests.plain import Plain

TRAINING = """
import sys
from muster.training import report

for epoch in (1, 2, 3):
    for step in (1, 2):
        done = 2 * (epoch - 1) + step
        report(step, steps=2, epoch=epoch, epochs=3, examples=32 * done, loss=1 / done, accuracy=1 - 1 / done)
    print("epoch", epoch, "is done", flush=True)
if "--fail" in sys.argv:
    sys.stdout.buffer.write(b"not UTF-8: \\xff\\n")
    raise ValueError("the shard is empty")
report(test_accuracy=0.97)
"""


def record(folder: Path, *args: str, text: str = TRAINING, n_workers: int = 2, **options: Any) -> Run:
    """Write a script, run it, and return the recorded run, however it ended."""
    script = folder / "train.py"
    script.write_text(text)
    cluster = Cluster(Job(make_script(script), n_workers, args=args, cwd=str(folder)), strategy=Plain(), **options)
    with suppress(MusterError), cluster:
        cluster.wait()
    return Run(cluster.run_dir)
