"""Measure how long it takes until eight workers in containers are ready.

Baseline: eight bare ``podman run --detach`` at the same time. The time of Muster is from creating the platform until
every agent has connected to the session; that of a bare container, until its program has started. Both use a tiny image
into which this machine's ``/usr`` is mounted, on the tests' own Podman (``tests/platforms/containers_podman.py``).
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from muster.agent.places import symbol
from muster.platforms.containers.engine import connect
from muster.platforms.containers.images import tiny_image
from muster.platforms.containers.platform import ContainersPlatform
from muster.platforms.containers.worker import AGENT

from benchmarks.measuring import Figure, Target, Unavailable, by_turns, main, private_home
from tests.platforms.containers_podman import Podman, why_not
from tests.support import Run, StubSession

COUNT = 8
LIMIT = 1.3
SECONDS = 120.0  # in which all must be ready


def measure(quick: bool) -> list[Figure]:
    """Measure Muster and bare containers by turns."""
    if why_not():
        raise Unavailable(why_not())
    compileall.compile_dir(AGENT, quiet=2)  # as an installation has it; otherwise each agent compiles its own source
    podman = Podman()
    image = tiny_image(connect(podman.url))
    try:
        with private_home():
            taken = by_turns(1 if quick else 5, {"muster": lambda: muster(podman), "bare": lambda: bare(podman, image)})
    finally:
        podman.remove()
    title = f"{COUNT} containers from call to ready"
    return [
        Figure(title, "s", taken["muster"], f"{COUNT} x `podman run --detach` at once", taken["bare"], Target(LIMIT))
    ]


def muster(podman: Podman) -> float:
    """Return the seconds from creating a platform until all its workers have said hello."""
    folder = Path(tempfile.mkdtemp(prefix="muster-benchmark-"))
    run, session = Run(folder), StubSession()
    began = time.monotonic()
    platform = ContainersPlatform(engine=podman.url)
    session.listen_for(platform)
    places: dict[str, Any] = {
        "cwd": symbol("project"),
        "log": PurePosixPath(symbol("run"), "log"),
    }  # as in whole runs: no path of this machine
    specs = [
        run.spec(f"worker-{number}", session=session.address, scratch=PurePosixPath(symbol("scratch")), **places)
        for number in range(COUNT)
    ]
    with ThreadPoolExecutor() as threads:  # answers agents while others start: one that gets no answer in time gives up
        heard = threads.submit(session.wait_for, "hello", count=COUNT, timeout=SECONDS)
        platform.submit(specs, run.id)
        heard.result()
    seconds = time.monotonic() - began
    platform.close()
    session.close()
    run.remove()
    shutil.rmtree(folder)
    return seconds


def bare(podman: Podman, image: str) -> float:
    """Return the seconds that as many bare containers take to start at the same time."""
    command = podman.command("run", "--detach", "--init", "--volume", "/usr:/usr:ro", image, "/usr/bin/sleep", "600")
    began = time.monotonic()
    for started in [subprocess.Popen(command, env=podman.environment, stdout=subprocess.DEVNULL) for _ in range(COUNT)]:
        started.wait()
    seconds = time.monotonic() - began
    podman.run("rm", "--all", "--force", "--time", "0")
    return seconds


if __name__ == "__main__":
    main("containers_ready")
