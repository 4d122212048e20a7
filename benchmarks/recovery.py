"""Measure the seconds from the kill of a rank to the next step: Muster, Horovod's elastic mode, and torchrun.

Two ranks average a thousand numbers in each step, and one kills itself once, before a step. Muster and torchrun start
both ranks again, from a checkpoint. Horovod's elastic mode keeps the other rank and its state; it never reuses a host
on which a rank has failed, so that a third host stands by for the new rank. PyTorch is that of this interpreter, or of
the interpreter that MUSTER_TORCH names, such as one with Debian's python3-torch. Without it, torchrun is left out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import muster

from benchmarks import bare_horovod
from benchmarks.bare_horovod import Hosts
from benchmarks.measuring import Figure, by_turns, fresh, main, private_home
from benchmarks.recovery_steps import seconds_lost

HERE = Path(__file__).parent
RANKS = 2
HAS_TORCH = "import torch.distributed.run"
# On Python 3.11, PyTorch 1's torchrun fails with the defaults of these two options, and with the value 3.
OUTPUT = ("--redirects=1", "--tee=2")
LIMIT = 300.0  # seconds that one run may take


def measure(quick: bool) -> list[Figure]:
    """Measure Muster, Horovod's elastic mode and, if PyTorch is there, torchrun, by turns."""
    torch = find_torch()
    with private_home(), bare_horovod.hosts(RANKS + 1) as hosts:
        contenders: dict[str, Callable[[], float]] = {
            "muster": partial(fresh, by_muster, "horovod", sys.executable, "recovery_horovod.py"),
            "elastic": partial(by_elastic_horovod, hosts),
        }
        if torch is None:
            print("torchrun is left out: no PyTorch here, and MUSTER_TORCH names no interpreter that has one")
        else:
            contenders["muster, PyTorch"] = partial(fresh, by_muster, "processes", torch, "recovery_torch.py")
            contenders["torchrun"] = partial(by_torchrun, torch)
        taken = by_turns(1 if quick else 5, contenders)
    title = "kill of a rank to the next step"
    figures = [Figure(f"{title}, Horovod", "s", taken["muster"], "Horovod's elastic mode", taken["elastic"])]
    if torch is not None:
        beside = "`torchrun --max-restarts`"
        figures.append(Figure(f"{title}, PyTorch", "s", taken["muster, PyTorch"], beside, taken["torchrun"]))
    return figures


def find_torch() -> str | None:
    """Return an interpreter that has PyTorch, or None if there is none."""
    for python in (sys.executable, os.environ.get("MUSTER_TORCH")):
        if python and shutil.which(python):
            tried = subprocess.run([python, "-c", HAS_TORCH], capture_output=True, check=False)
            if tried.returncode == 0:
                return python
    return None


def by_muster(strategy: str, python: str, script: str) -> float:
    """Return the seconds lost with Muster's ``restarts=1``; to be called in a new process."""
    with tempfile.TemporaryDirectory() as name, open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        muster.run_cluster(
            RANKS, strategy=strategy, python=python, worker_script=HERE / script, args=[name], restarts=1,
            run_timeout=LIMIT,
        )  # fmt: skip
        return seconds_lost(Path(name))


def by_elastic_horovod(hosts: Hosts) -> float:
    """Return the seconds lost with ``horovodrun --host-discovery-script``."""
    with tempfile.TemporaryDirectory() as name:
        discovery = Path(name, "hosts")
        discovery.write_text("#!/bin/sh\n" + "".join(f"echo {address}:1\n" for address in hosts.addresses))
        discovery.chmod(0o700)
        hosts.horovodrun_elastic(RANKS, discovery, sys.executable, str(HERE / "recovery_horovod.py"), name, "--elastic")
        return seconds_lost(Path(name))


def by_torchrun(python: str) -> float:
    """Return the seconds lost with ``torchrun --max-restarts=1``."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(
            [python, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}", "--max_restarts=1",
             *OUTPUT, "--log_dir", str(Path(name, "logs")), str(HERE / "recovery_torch.py"), name],
            env={**os.environ, **bare_horovod.THREADS}, check=True, capture_output=True, timeout=LIMIT,
        )  # fmt: skip
        return seconds_lost(Path(name))


if __name__ == "__main__":
    main("recovery")
