"""Measure how long it takes until workers in a Slurm job are ready, on a real Slurm of two nodes.

Baseline: a job whose script is one ``srun`` of as many ``true``, from its submission to the end of srun. The time of
Muster is from the submission until every agent has connected to the session; what the site allows has been asked
before, as in each run. Each agent is a process of Python: the same job with as many interpreters that do nothing shows
what of the time is Python's. Slurm and its nodes are namespaces of this machine (``tests/platforms/slurm_engine.py``),
so that all of them share this machine's processors. Each time Slurm is done with the job before. A job then waits for
up to a second until Slurm plans, whoever submits it; so all three are submitted at the same moments of that second.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from muster.platforms.slurm.platform import SlurmPlatform

from benchmarks.measuring import Figure, Target, Unavailable, by_turns, main, private_home
from tests.platforms.slurm_engine import Engine, fetch, why_not
from tests.support import Run, StubSession, eventually

WORKERS = 8
LIMIT = 1.3
ROUNDS = 30


def measure(quick: bool) -> list[Figure]:
    """Measure Muster, a bare ``srun``, and one of interpreters that do nothing, by turns."""
    root = None if why_not() else fetch()
    if root is None:
        raise Unavailable(why_not() or "Debian's packages of Slurm cannot be fetched here")
    engine = Engine(root)
    before = os.environ["PATH"]
    os.environ["PATH"] = engine.path
    try:
        with private_home():
            rounds = 1 if quick else ROUNDS
            pauses = {way: (1 + number / rounds for number in range(rounds)) for way in ("muster", "bare", "python")}
            ways = {
                "muster": lambda: muster(engine, next(pauses["muster"])),
                "bare": lambda: bare(engine, "true", next(pauses["bare"])),
                "python": lambda: bare(engine, f"{sys.executable} -I -S -c pass", next(pauses["python"])),
            }
            taken = by_turns(rounds, ways)
    finally:
        os.environ["PATH"] = before
        engine.remove()
    title = f"{WORKERS} workers in a job of Slurm's: submitted, all ready"
    floor = f"a job with `srun` of {WORKERS} x `true`"
    idle = f"a job with `srun` of {WORKERS} x `python3 -I -S -c pass`"
    return [
        Figure(title, "s", taken["muster"], floor, taken["bare"], Target(LIMIT)),
        Figure(idle, "s", taken["python"], floor, taken["bare"]),
    ]


def settle(engine: Engine, pause: float) -> None:
    """Wait until Slurm has nothing to do, and for some seconds more."""
    states = ("sinfo", "-h", "-N", "-p", "main", "-o", "%T")
    eventually(lambda: {*engine.run(*states).split()} == {"idle"}, "all nodes are idle", 60)
    time.sleep(pause)


def muster(engine: Engine, pause: float) -> float:
    """Return the seconds from submitting workers, after a pause, until all have said hello."""
    folder = Path(tempfile.mkdtemp(prefix="muster-benchmark-"))
    run, session = Run(folder), StubSession()
    platform = SlurmPlatform()
    session.listen_for(platform)
    specs = [run.spec(f"worker-{number}", session=session.address) for number in range(WORKERS)]
    platform.shortages([spec.resources for spec in specs])
    settle(engine, pause)
    began = time.monotonic()
    platform.submit(specs, run.id)
    session.wait_for("hello", count=WORKERS)
    seconds = time.monotonic() - began
    for spec in specs:  # as every session does
        session.send(spec.name, "end")
    platform.close()
    session.close()
    engine.clean()
    run.remove()
    shutil.rmtree(folder)
    return seconds


def bare(engine: Engine, command: str, pause: float) -> float:
    """Return the seconds from submitting, after a pause, a job that runs a command as many times until it is done."""
    done = engine.folder / "done"
    settle(engine, pause)
    began = time.monotonic()
    engine.submit(f"--ntasks={WORKERS}", command=f"srun --ntasks={WORKERS} --mpi=none {command} && touch {done}")
    while not done.exists():
        time.sleep(0.005)
    seconds = time.monotonic() - began
    done.unlink()
    engine.clean()
    return seconds


if __name__ == "__main__":
    main("slurm_ready")
