"""Measure the time to the end of the first training step of a notebook's second run, with Horovod on two workers.

The second run uses a pool whose template has made its imports already, as it has when somebody has looked at the first
result. Baseline: a bare horovodrun with the same arguments, script and numbers of threads, on two hosts whose sshd
already listens. Also measured are the limits: a process alone that has imported everything, and trains; and as many
such processes at once as there are workers, which share this machine's processors.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import muster

from benchmarks import bare_horovod, training
from benchmarks.measuring import Figure, Target, by_turns, fresh, main, private_home

FIRST_LIMIT = 1
SECOND_LIMIT = 0.2
END_SECONDS = 0.3
MEASURED = ("first", "second", "end", "megabytes")
IMPORTS = "import keras, numpy, tensorflow, horovod.tensorflow, runpy, sys; keras.layers, keras.optimizers"
RUN = "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
TRAINING = f"{IMPORTS}; print('imported', flush=True); input(); {RUN}"


def measure(quick: bool) -> list[Figure]:
    """Measure both runs of a pool, a bare horovodrun, and a process that trains alone, by turns."""
    with private_home(), bare_horovod.hosts(training.WORKERS) as hosts:
        if not quick:
            fresh(_both)  # a first run after a long time reads TensorFlow from the disk
        contenders: dict[str, Callable[[], dict[str, float]]] = {
            "pool": lambda: fresh(_both),
            "bare": lambda: training.by_horovodrun(hosts),
            "alone": partial(_by_themselves, 1),
            "beside": partial(_by_themselves, training.WORKERS),
        }
        taken = by_turns(1 if quick else 5, contenders)
    first, second, end, megabytes = ([found[name] for found in taken["pool"]] for name in MEASURED)
    bare, alone, beside = ([found["seconds"] for found in taken[name]] for name in ("bare", "alone", "beside"))
    title, floor = f"first step with Horovod, {training.WORKERS} workers", "bare `horovodrun` on hosts that are up"
    return [
        Figure(f"{title}, first run on a pool", "s", first, floor, bare, Target(FIRST_LIMIT)),
        Figure(f"{title}, second run on a pool", "s", second, floor, bare, Target(SECOND_LIMIT)),
        Figure(f"{title}, second run on a pool", "s", second, "a process alone, everything imported", alone),
        Figure(f"{title}, second run on a pool", "s", second, f"{training.WORKERS} such processes at once", beside),
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


def _by_themselves(count: int) -> dict[str, float]:
    """Return the seconds to the first step of the slowest of processes that have imported everything, and only train.

    Each begins when all have made their imports.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        environment = {**os.environ, **bare_horovod.THREADS, "CUDA_VISIBLE_DEVICES": "-1"}
        environment["PYTHONPATH"] = str(Path(muster.__file__).parents[1])
        outs = [Path(folder) / f"measured-{number}.json" for number in range(count)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        commands = [[sys.executable, "-c", TRAINING, str(training.SCRIPT), str(out)] for out in outs]
        processes = [running.enter_context(subprocess.Popen(command, env=environment, **pipes)) for command in commands]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "imported\n"
        began = time.time()
        for process in processes:
            assert process.stdin is not None
            print("begin", file=process.stdin, flush=True)
        for process in processes:
            process.wait()
        return {"seconds": max(training.measured(out, began)["seconds"] for out in outs)}


if __name__ == "__main__":
    main("second_run")
