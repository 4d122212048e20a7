"""Measure the time to the end of the first training step of a notebook's second run, with Horovod on two workers.

The second run uses a pool whose template has made its imports already, as it has when somebody has looked at the first
result. Baseline: a bare horovodrun with the same arguments, script and numbers of threads, on two hosts whose sshd
already listens. Also measured is the limit: a process alone that has imported everything, and trains.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import muster

from benchmarks import bare_horovod, training
from benchmarks.measuring import Figure, Target, by_turns, fresh, main, private_home

FIRST_LIMIT = 1
SECOND_LIMIT = 0.2
END_SECONDS = 0.3
MEASURED = ("first", "second", "end", "megabytes")
IMPORTS = "import keras, numpy, tensorflow, horovod.tensorflow, runpy, sys, time, json; keras.layers, keras.optimizers"
ALONE = f"{IMPORTS}; began = time.time(); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__'); "


def measure(quick: bool) -> list[Figure]:
    """Measure both runs of a pool, a bare horovodrun, and a process that trains alone, by turns."""
    with private_home(), bare_horovod.hosts(training.WORKERS) as hosts:
        if not quick:
            fresh(_both)  # a first run after a long time reads TensorFlow from the disk
        contenders: dict[str, Callable[[], dict[str, float]]] = {
            "pool": lambda: fresh(_both),
            "bare": lambda: training.by_horovodrun(hosts),
            "alone": _alone,
        }
        taken = by_turns(1 if quick else 5, contenders)
    first, second, end, megabytes = ([found[name] for found in taken["pool"]] for name in MEASURED)
    bare, alone = ([found["seconds"] for found in taken[name]] for name in ("bare", "alone"))
    title, floor = f"first step with Horovod, {training.WORKERS} workers", "bare `horovodrun` on hosts that are up"
    return [
        Figure(f"{title}, first run on a pool", "s", first, floor, bare, Target(FIRST_LIMIT)),
        Figure(f"{title}, second run on a pool", "s", second, floor, bare, Target(SECOND_LIMIT)),
        Figure(f"{title}, second run on a pool", "s", second, "a process alone, everything imported", alone),
        Figure("last step to prompt, second run on a pool", "s", end, target=Target(END_SECONDS, "s")),
        Figure("memory of the template", "MB", megabytes),
    ]


def _both() -> dict[str, float]:
    """Make two runs of a pool, and return the seconds to the first step of each (``first``, ``second``).

    Returns as well the seconds from the second's last step to its return (``end``), and the template's ``megabytes``.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as null,
        contextlib.redirect_stdout(null),
        muster.pool(training.WORKERS) as pool,
    ):
        out = Path(folder) / "measured.json"

        def run() -> tuple[float, float]:
            started = time.time()
            pool.run_cluster(strategy="horovod", worker_script=training.SCRIPT, args=[out])
            found = training.measured(out, started)
            return found["seconds"], found["end"]

        first, _ = run()
        while "importing" in repr(pool):
            time.sleep(0.1)
        megabytes = pool.memory / 1e6
        second, end = run()
        return {"first": first, "second": second, "end": end, "megabytes": megabytes}


def _alone() -> dict[str, float]:
    """Return the seconds to the first step in a process that has imported everything, and trains alone."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        program = ALONE + "print(json.loads(open(sys.argv[1]).read())['first_step'] - began)"
        environment = {**os.environ, **bare_horovod.THREADS, "CUDA_VISIBLE_DEVICES": "-1"}
        environment["PYTHONPATH"] = str(Path(muster.__file__).parents[1])
        done = subprocess.run(
            [sys.executable, "-c", program, str(training.SCRIPT), str(out)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        return {"seconds": float(done.stdout.split()[-1])}


if __name__ == "__main__":
    main("second_run")
