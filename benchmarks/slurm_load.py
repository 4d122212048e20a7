"""Measure the load that a session puts on Slurm while a run lives, with 10, 100 and 1,000 workers.

With 10 workers everything is real: tasks on the tests' Slurm of two nodes. With more, the agents are simulated
(``simulated_agents.py``), and stand-ins that only answer take the place of Slurm's commands; the session is a real one,
with a cluster's journal. Each command that is run is counted, from the moment when all workers are connected.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from muster.job import Job, Resources, WorkerSpec
from muster.platforms.base import Storage
from muster.platforms.slurm.platform import SlurmPlatform
from muster.run.cluster import Cluster
from muster.security.ssh import write_private

from benchmarks.idle import Idle
from benchmarks.measuring import Figure, Target, Unavailable, fresh, main, private_home
from benchmarks.simulated_agents import PROGRESS, send_specs, simulated_agents
from tests.platforms.slurm_engine import Engine, fetch, why_not
from tests.platforms.slurm_stand_in import StandIn

REAL = 10
CPUS = 8  # on each of two nodes
MOST = 0.5  # commands a second: one poll every two seconds
START_SECONDS = 600.0


def measure(quick: bool) -> list[Figure]:
    """Measure the commands a second for each number of workers."""
    seconds = 4 if quick else 60
    with private_home():
        asked = {REAL: fresh(real, REAL, seconds)}
        for workers in (100,) if quick else (100, 1000):
            asked[workers] = fresh(simulated, workers, seconds)
    kinds = {REAL: "real", 100: "simulated agents", 1000: "simulated agents"}
    return [
        Figure(
            f"{workers:,} workers on Slurm ({kinds[workers]}): commands while they run",
            "1/s",
            [found],
            target=Target(MOST, "1/s"),
        )
        for workers, found in asked.items()
    ]


def real(workers: int, seconds: float) -> float:
    """Return the commands a second with tasks on a real Slurm."""
    root = None if why_not() else fetch()
    if root is None:
        raise Unavailable(why_not() or "Debian's packages of Slurm cannot be fetched here")
    engine = Engine(root, cpus=CPUS)
    try:
        with on_the_path(engine.path):
            return asked_a_second(SlurmPlatform(), workers, seconds, engine.asked)
    finally:
        engine.remove()


def simulated(workers: int, seconds: float) -> float:
    """Return the commands a second with simulated agents, which only speak the protocol with the session."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, simulated_agents(workers, PROGRESS) as channels:
        slurm = StandIn(Path(folder, "slurm"))
        slurm.has_a_job()
        with on_the_path(slurm.path):
            return asked_a_second(Simulated(channels), workers, seconds, slurm.asked)


def asked_a_second(platform: SlurmPlatform, workers: int, seconds: float, asked: Callable[[], Sequence[str]]) -> float:
    """Return the commands a second within ``seconds`` seconds, once all workers are connected."""
    job = Job(None, workers, resources=Resources(1, 0.1))
    with (
        contextlib.closing(platform),
        Cluster(job, strategy=Idle(), platform=platform, timeout_seconds=START_SECONDS),
    ):
        before = len(asked())
        while len(asked()) == before:  # begin just after a command, or a short time could seem to have one too many
            time.sleep(0.01)
        before, began = len(asked()), time.monotonic()
        time.sleep(seconds)
        return (len(asked()) - before) / (time.monotonic() - began)


class Simulated(SlurmPlatform):
    """A Slurm platform whose tasks report their nodes at once, and whose agents are simulated."""

    def __init__(self, channels: Sequence[Connection], **options: str) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.storage = Storage.ALL  # nothing has to be sent
        self._channels = channels

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Submit the workers, and write the reports that their tasks would write."""
        handles = super().submit(specs, run_key)
        for task, handle in enumerate(handles):
            news: Mapping[str, object] = {"node": "n1", "address": "127.0.0.1", "pid": 1, "at": time.time()}
            write_private(Path(handle.partition("@")[2], f"worker-{task}.news"), f"{json.dumps(news)}\n")
        send_specs(self._channels, [(spec.name, spec.session) for spec in specs if spec.session])
        return handles


@contextlib.contextmanager
def on_the_path(path: str) -> Iterator[None]:
    """Set ``PATH`` to another search path within the block."""
    before = os.environ["PATH"]
    os.environ["PATH"] = path
    try:
        yield
    finally:
        os.environ["PATH"] = before


if __name__ == "__main__":
    main("slurm_load")
