"""Eight workers of this machine, ready for a launcher: addresses known, and an sshd listening on each.

Floor: eight bare Python processes that connect back and say so. Beside it, eight Dask workers and eight IPython
engines, until each is known to its session. Libraries are imported before the clock starts; the interpreter is a new
one each time.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time

from muster.events import Event
from muster.job import Job, Resources
from muster.run.cluster import Cluster

from benchmarks.idle import Idle
from benchmarks.measuring import Figure, Target, by_turns, fresh, main, private_home

WORKERS = 8
CONNECT_BACK = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).sendall(b'ready')"
PHASES = ("preparing", "launching", "connecting")
LIMIT = 2


def measure(quick: bool) -> list[Figure]:
    """All of them by turns; the peers, which take seconds, in fewer rounds."""
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
    ]


def muster(platform: str = "local") -> dict[str, float]:
    """Seconds from ``Cluster.start`` until all agents have said hello, and those of each phase on the way there."""
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
    """Seconds until eight Python processes have connected back."""
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
    """Seconds until eight Dask workers are connected to their scheduler."""
    from distributed import Client, LocalCluster

    started = time.perf_counter()
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(n_workers=WORKERS, **options) as cluster, Client(cluster) as client:
        client.wait_for_workers(WORKERS)
        return time.perf_counter() - started


def ipyparallel() -> float:
    """Seconds until eight IPython engines are ready."""
    from ipyparallel import Cluster as Engines

    started = time.perf_counter()
    with Engines(n=WORKERS, log_level=40) as client:
        client.wait_for_engines(WORKERS, interactive=False)
        return time.perf_counter() - started


if __name__ == "__main__":
    main("startup")
