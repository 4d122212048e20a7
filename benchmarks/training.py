"""Functions that train LeNet on two workers, with Muster and with a bare horovodrun."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import muster

from benchmarks.bare_horovod import Hosts
from benchmarks.measuring import fresh

WORKERS = 2
SCRIPT = Path(__file__).parent / "lenet.py"


def by_muster(*options: str, launcher: str = "horovodrun") -> dict[str, float]:
    """Train with Muster in a new process, and return what ``measured`` does.

    Args:
        options: arguments of the script.
        launcher: launcher of the ranks, as of ``muster.Horovod``.
    """
    return fresh(_by_muster, launcher, *options)


def _by_muster(launcher: str, *options: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        out = Path(folder) / "measured.json"
        started = time.time()
        strategy = muster.Horovod(launcher=launcher)
        muster.run_cluster(WORKERS, strategy=strategy, worker_script=SCRIPT, args=[out, *options])
        return measured(out, started)


def by_horovodrun(hosts: Hosts, *options: str) -> dict[str, float]:
    """Train with a bare horovodrun, and return what ``measured`` does."""
    out = hosts.folder / "measured.json"
    out.unlink(missing_ok=True)
    started = time.time()
    hosts.horovodrun(sys.executable, str(SCRIPT), str(out), *options)
    return measured(out, started)


def measured(out: Path, started: float) -> dict[str, float]:
    """Return the script's figures, and the seconds until its first step (``seconds``) and since its last (``end``)."""
    found = json.loads(out.read_text())
    return {**found, "seconds": found["first_step"] - started, "end": time.time() - found["last_step"]}
