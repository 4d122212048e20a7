"""Measure how long it takes until eight workers in containers are ready.

Baseline: eight bare ``podman run --detach``, or ``docker run --detach``, at the same time. The time of Muster is from
creating the platform until every agent has connected to the session; that of a bare container, until its program has
started. Both use a tiny image into which this machine's ``/usr`` is mounted, on the tests' own Podman and Docker.
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

from benchmarks.container_engines import default_network, engines, name_of, remove_containers
from benchmarks.measuring import Figure, Target, by_turns, main, private_home
from tests.platforms.container_engine import ContainerEngine
from tests.support import Run, StubSession

COUNT = 8
LIMIT = 1.3
SECONDS = 120.0  # in which all must be ready


def measure(quick: bool) -> list[Figure]:
    """Measure Muster and bare containers by turns, on each engine."""
    compileall.compile_dir(AGENT, quiet=2)  # as an installation has it; otherwise each agent compiles its own source
    return [on(engine, 1 if quick else 5) for engine in engines()]


def on(engine: ContainerEngine, rounds: int) -> Figure:
    """Measure Muster and bare containers by turns, on one engine."""
    image = tiny_image(connect(engine.url))
    with private_home(), default_network(engine) as network:
        taken = by_turns(rounds, {"muster": lambda: muster(engine), "bare": lambda: bare(engine, image, network)})
    command = name_of(engine)
    title = f"{COUNT} containers of {command.title()} from call to ready"
    beside = f"{COUNT} x `{command} run --detach` at once"
    return Figure(title, "s", taken["muster"], beside, taken["bare"], Target(LIMIT))


def muster(engine: ContainerEngine) -> float:
    """Return the seconds from creating a platform until all its workers have said hello."""
    folder = Path(tempfile.mkdtemp(prefix="muster-benchmark-"))
    run, session = Run(folder), StubSession()
    began = time.monotonic()
    platform = ContainersPlatform(engine=engine.url)
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


def bare(engine: ContainerEngine, image: str, network: str) -> float:
    """Return the seconds that as many bare containers take to start at the same time."""
    options = ("--detach", "--init", "--network", network, "--volume", "/usr:/usr:ro")
    command = engine.command("run", *options, image, "/usr/bin/sleep", "600")
    began = time.monotonic()
    for started in [subprocess.Popen(command, env=engine.environment, stdout=subprocess.DEVNULL) for _ in range(COUNT)]:
        started.wait()
    seconds = time.monotonic() - began
    remove_containers(engine)
    return seconds


if __name__ == "__main__":
    main("containers_ready")
