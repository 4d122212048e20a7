"""Measure how long it takes until eight workers of this machine are ready for a launcher.

A worker is ready when its address is known and an sshd listens on it. Baseline: eight bare Python processes that
connect to the session and report. Beside it: eight Dask workers and eight IPython engines, until their session knows
all of them. Libraries are imported before the clock starts, and each turn has a new interpreter. Also measured are
whole runs of two workers that have nothing to do, from the call to its return: the first run of a session, and the
following ones. With ``--beside CHECKOUT`` only these are measured, in turn with those of another checkout of Muster.
"""

from __future__ import annotations

import itertools
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from muster.events import Event
from muster.job import Job, Resources
from muster.run.cluster import Cluster

from benchmarks.idle import Idle
from benchmarks.measuring import (
    HERE,
    Figure,
    Target,
    by_turns,
    commit_of,
    environment_of,
    fresh,
    main,
    other_checkout,
    private_home,
)

WORKERS = 8
CONNECT_BACK = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).sendall(b'ready')"
PHASES = ("preparing", "launching", "connecting")
LIMIT = 2
FOLLOWING = 5  # runs of a session after its first


def measure(quick: bool) -> list[Figure]:
    """Measure Muster and the floor by turns, then Dask and ipyparallel, which take seconds, in fewer rounds.

    With ``--beside`` only whole runs are measured, those of the other checkout as well.
    """
    if other := other_checkout():
        return whole_runs(quick, other)
    with private_home():
        pairs = by_turns(1 if quick else 20, {"muster": lambda: fresh(muster), "bare": lambda: {"ready": bare()}})
        peers = by_turns(
            1 if quick else 5,
            {
                "muster": lambda: fresh(muster)["ready"],
                "dask": lambda: fresh(dask),
                "ipyparallel": lambda: fresh(ipyparallel),
            },
        )
    ready = [seconds["ready"] for seconds in pairs["muster"]]
    floor = [seconds["ready"] for seconds in pairs["bare"]]
    title = f"{WORKERS} local workers ready"
    return [
        Figure(f"{title}, sshd on each", "s", ready, f"{WORKERS} bare Python processes", floor, Target(LIMIT)),
        *(Figure(f"of that, {phase}", "s", [seconds[phase] for seconds in pairs["muster"]]) for phase in PHASES),
        Figure(title, "s", peers["muster"], f"Dask `LocalCluster(n_workers={WORKERS})`", peers["dask"]),
        Figure(title, "s", peers["muster"], f"ipyparallel `Cluster(n={WORKERS})`", peers["ipyparallel"]),
        *whole_runs(quick),
    ]


def whole_runs(quick: bool, other: Path | None = None) -> list[Figure]:
    """Return figures of runs of two workers that have nothing to do: of this checkout, and of another one, if given."""
    contenders = {checkout: partial(session, checkout) for checkout in (HERE, *([other] if other else []))}
    by_turns(1, contenders)  # so that all modules are compiled
    taken = by_turns(1 if quick else 10, contenders)

    def figure(what: str, key: str) -> Figure:
        values = {checkout: [found[key] for found in sessions] for checkout, sessions in taken.items()}
        beside = (f"commit {commit_of(other)}", values[other], Target(1)) if other else ()
        return Figure(f"2 local workers with nothing to do: {what}", "s", values[HERE], *beside)

    return [
        figure("first run of a session", "first"),
        figure("following runs", "following"),
        figure("CPU of the first run, with all that it starts", "first_cpu"),
        figure("CPU of following runs", "following_cpu"),
    ]


def session(checkout: Path) -> dict[str, float]:
    """Return the seconds and CPU seconds of a session's first run, and their medians of the following runs."""
    program = Path(__file__).with_name("startup_session.py")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as home:
        environment = environment_of(checkout, Path(home))
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as with installed packages, which are compiled
        command = [sys.executable, str(program), str(1 + FOLLOWING)]
        done = subprocess.run(command, env=environment, cwd=home, stdout=subprocess.PIPE, check=True)
    first, *following = json.loads(done.stdout)
    of_following = {key: statistics.median(run[key] for run in following) for key in ("seconds", "cpu")}
    return {
        "first": first["seconds"],
        "first_cpu": first["cpu"],
        "following": of_following["seconds"],
        "following_cpu": of_following["cpu"],
    }


def muster(platform: str = "local") -> dict[str, float]:
    """Return the seconds from ``Cluster.start`` until all agents have said hello, in all and by phase."""
    entered: dict[str, float] = {}

    def observe(event: Event) -> None:
        if event.kind == "run_phase":
            entered.setdefault(event.data["phase"], event.time)

    job = Job(None, WORKERS, resources=Resources(memory=0.5))
    cluster = Cluster(job, strategy=Idle(needs_ssh=True), platform=platform, observers=[observe])
    started = time.time()
    cluster.start()
    cluster.stop()
    moments = [started, *(entered[phase] for phase in ("launching", "connecting", "starting"))]
    seconds = dict(zip(PHASES, (after - before for before, after in itertools.pairwise(moments)), strict=True))
    return {"ready": moments[-1] - started, **seconds}


def bare() -> float:
    """Return the seconds until eight bare Python processes have connected back."""
    with socket.create_server(("127.0.0.1", 0), backlog=WORKERS) as listener:
        command = [sys.executable, "-c", CONNECT_BACK, str(listener.getsockname()[1])]
        started = time.perf_counter()
        processes = [subprocess.Popen(command) for _ in range(WORKERS)]
        for _ in processes:
            connection, _ = listener.accept()
            with connection:
                connection.recv(16)
        seconds = time.perf_counter() - started
    for process in processes:
        process.wait()
    return seconds


def dask() -> float:
    """Return the seconds until eight Dask workers are connected to their scheduler."""
    from distributed import Client, LocalCluster

    started = time.perf_counter()
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(n_workers=WORKERS, **options) as cluster, Client(cluster) as client:
        client.wait_for_workers(WORKERS)
        return time.perf_counter() - started


def ipyparallel() -> float:
    """Return the seconds until eight IPython engines are ready."""
    from ipyparallel import Cluster as Engines

    started = time.perf_counter()
    with Engines(n=WORKERS, log_level=40) as client:
        client.wait_for_engines(WORKERS, interactive=False)
        return time.perf_counter() - started


if __name__ == "__main__":
    main("startup")
