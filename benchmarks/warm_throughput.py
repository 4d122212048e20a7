"""Measure whether ranks that are forks of a template train as fast as ranks that have made their own imports.

Both train LeNet with Horovod on two workers of the same pool, by turns. Steps per second depend on what else the
machine does; CPU per step depends less on it: the seconds of CPU of all threads of rank 0, for each step.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from functools import partial
from pathlib import Path

import muster
from muster.worker_pool import Pool

from benchmarks import training
from benchmarks.measuring import Figure, Target, by_turns, main, private_home

STEPS = 50  # in an epoch; the first epoch is not counted
LIMIT = 0.99
ROUNDS = 12


def measure(quick: bool) -> list[Figure]:
    """Measure short runs on a pool, with warm ranks and with cold ones, by turns."""
    options = ("--steps", str(10 if quick else STEPS), "--epochs", str(2 if quick else 5))
    with private_home(), muster.pool(training.WORKERS) as pool:
        _train(pool, options, False)  # after which the template makes its imports
        while "importing" in repr(pool):
            time.sleep(0.1)
        contenders = {warm: partial(_train, pool, options, warm) for warm in (True, False)}
        taken = by_turns(1 if quick else ROUNDS, contenders)

    def figure(what: str, unit: str, name: str, target: Target) -> Figure:
        warm, cold = ([found[name] for found in taken[side]] for side in (True, False))
        title = f"training LeNet with Horovod, {training.WORKERS} workers, warm ranks"
        return Figure(f"{title}{what}", unit, warm, "cold ranks", cold, target)

    return [
        figure("", "steps/s", "steps_per_second", Target(LIMIT, at_least=True)),
        figure(": CPU of a rank for a step", "s", "cpu_per_step", Target(1 / LIMIT)),
    ]


def _train(pool: Pool, options: tuple[str, ...], warm: bool) -> dict[str, float]:
    """Train on the pool, and return the script's figures."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        out = Path(folder) / "measured.json"
        started = time.time()
        pool.run_cluster(strategy="horovod", worker_script=training.SCRIPT, args=[out, *options], warm=warm)
        return training.measured(out, started)


if __name__ == "__main__":
    main("warm_throughput")
