"""Measure how long it takes to log in to eight hosts and have a worker ready on each.

Baseline: eight bare ``ssh HOST true`` at the same time. The time of Muster is from creating the platform until every
agent has reported its address. The hosts are network namespaces of this machine with real sshds
(``tests/platforms/hosts_network.py``), so that all of them share this machine's processors.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from muster.job import Status
from muster.platforms.hosts.platform import HostsPlatform

from benchmarks.measuring import Figure, Target, Unavailable, by_turns, main, private_home
from tests.platforms.hosts_network import Network, can_have_networks
from tests.support import Run

HOSTS = tuple(f"h{number}" for number in range(1, 9))
LIMIT = 2


def measure(quick: bool) -> list[Figure]:
    """Measure Muster and bare logins by turns."""
    if not can_have_networks():
        raise Unavailable("hosts need root, ip, unshare and sshd")
    network = Network(HOSTS)
    before = os.environ["PATH"]
    os.environ["PATH"] = network.path
    try:
        with private_home():
            taken = by_turns(1 if quick else 10, {"muster": muster, "bare": bare})
    finally:
        os.environ["PATH"] = before
        network.remove()
    title = f"{len(HOSTS)} hosts over ssh: logged in to, a worker ready on each"
    return [
        Figure(title, "s", taken["muster"], f"{len(HOSTS)} x `ssh HOST true` at once", taken["bare"], Target(LIMIT))
    ]


def muster() -> float:
    """Return the seconds from creating a platform until all its workers run."""
    folder = Path(tempfile.mkdtemp(prefix="muster-benchmark-"))
    run = Run(folder)
    began = time.monotonic()
    platform = HostsPlatform(hosts=HOSTS)
    platform.reach()
    handles = platform.submit([run.spec(f"worker-{number}") for number in range(len(HOSTS))], run.id)
    while any(worker.status is not Status.RUNNING for worker in platform.poll(handles)):
        time.sleep(0.005)
    seconds = time.monotonic() - began
    platform.close()
    run.remove()
    shutil.rmtree(folder)
    return seconds


def bare() -> float:
    """Return the seconds that as many bare logins take at the same time."""
    began = time.monotonic()
    for login in [subprocess.Popen(["ssh", host, "true"], stdin=subprocess.DEVNULL) for host in HOSTS]:
        login.wait()
    return time.monotonic() - began


if __name__ == "__main__":
    main("hosts_ready")
