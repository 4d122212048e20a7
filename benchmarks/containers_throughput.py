"""Measure the steps per second of LeNet, trained with Horovod in two containers.

Baseline: a bare horovodrun in two containers with the same image, mounts, limits and numbers of threads, each with an
sshd on port 2222; horovodrun is started in the first. Both run on the tests' own Podman, and then on their Docker.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import muster
from muster.platforms.containers.engine import connect
from muster.platforms.containers.images import own_folders, tiny_image
from muster.platforms.machine import ssh_server
from muster.security.ssh import generate_key_pair, write_private

from benchmarks.bare_horovod import PORT, SSHD_CONFIG, THREADS
from benchmarks.container_engines import bare_network, engines, name_of
from benchmarks.measuring import Figure, Target, by_turns, fresh, main, private_home
from benchmarks.training import SCRIPT, WORKERS
from tests.platforms.container_engine import ContainerEngine

STEPS = 50  # in an epoch; the first epoch is not counted
LIMIT = 0.98
MEMORY = 2  # GB
BENCHMARKS, SDK = SCRIPT.parent, Path(muster.__file__).parents[1]


def measure(quick: bool) -> list[Figure]:
    """Measure short runs by Muster and by a bare horovodrun, by turns, on each engine."""
    options = ("--steps", str(10 if quick else STEPS), "--epochs", str(2 if quick else 6))
    return [on(engine, 1 if quick else 12, *options) for engine in engines()]


def on(engine: ContainerEngine, rounds: int, *options: str) -> Figure:
    """Measure runs by Muster and by a bare horovodrun, by turns, on one engine."""
    with private_home(), tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        taken = by_turns(
            rounds,
            {
                "muster": lambda: fresh(by_muster, engine.url, *options),
                "bare": lambda: by_horovodrun(engine, Path(folder), *options),
            },
        )
    title = f"training LeNet with Horovod in {WORKERS} containers of {name_of(engine).title()}"
    target = Target(LIMIT, at_least=True)
    return Figure(title, "steps/s", taken["muster"], "bare `horovodrun` in as many", taken["bare"], target)


def by_muster(url: str, *options: str) -> float:
    """Return the steps per second of a run in containers by Muster; to be called in a new process."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        script = Path(folder, SCRIPT.name)
        script.write_bytes(SCRIPT.read_bytes())
        os.chdir(folder)
        found = muster.run_cluster(
            WORKERS, strategy="horovod", worker_script=script.name, args=["measured.json", *options], memory=MEMORY,
            platform="containers", engine=url, collect="measured.json",
        )  # fmt: skip
        os.chdir("/")
        return steps_per_second(found.cluster.run_dir / "collected" / "worker-0" / "measured.json")


def by_horovodrun(engine: ContainerEngine, folder: Path, *options: str) -> float:
    """Return the steps per second of the same training by a bare horovodrun."""
    out = folder / "measured.json"
    out.unlink(missing_ok=True)
    with bare_containers(engine, folder) as (first, addresses):
        where = ",".join(f"{address}:1" for address in addresses)
        command = ["horovodrun", "--gloo", "--disable-cache", "-np", str(WORKERS), "-H", where, "-p", str(PORT)]
        command += ["-i", str(folder / "identity"), "--network-interfaces", "eth0", sys.executable]
        inside = engine.command("exec", first, *command, str(SCRIPT), str(out), *options)
        done = subprocess.run(inside, env=engine.environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"horovodrun ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return steps_per_second(out)


@contextlib.contextmanager
def bare_containers(engine: ContainerEngine, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Run containers with an sshd each, and yield the first one's id, and all addresses."""
    key = generate_key_pair()
    write_private(folder / "identity", key.private)
    write_private(folder / "authorized_keys", key.public + "\n")
    write_private(folder / "sshd_config", SSHD_CONFIG.format(port=PORT, address="0.0.0.0", folder=folder))
    ssh = f"/usr/bin/ssh -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile={folder}/known_hosts"
    write_private(folder / "bin" / "ssh", f'#!/bin/sh\nexec {ssh} "$@"\n')
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), "/usr/bin:/bin"])
    environment = {"PATH": path, "PYTHONPATH": str(SDK), "CUDA_VISIBLE_DEVICES": "-1", "HOME": str(folder), **THREADS}
    limits = ["--cpus=1", f"--memory={MEMORY}g", f"--memory-swap={MEMORY}g", f"--shm-size={MEMORY}g"]
    seen = [f"--volume={each}:{each}:ro" for each in (*own_folders(), str(SDK), str(BENCHMARKS))]
    options = [*limits, *seen, f"--volume={folder}:{folder}", "--init", "--detach"]
    options += [f"--env={name}={value}" for name, value in environment.items()]
    sshd = [ssh_server().path, "-D", "-f", str(folder / "sshd_config")]
    image = tiny_image(connect(engine.url))
    with bare_network(engine) as network:
        ids = [engine.run("run", f"--network={network}", *options, image, *sshd).strip() for _ in range(WORKERS)]
        shown = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        yield ids[0], [engine.run("inspect", "--format", shown, name).strip() for name in ids]


def steps_per_second(out: Path) -> float:
    """Return the steps per second that the script measured."""
    return float(json.loads(out.read_text())["steps_per_second"])


if __name__ == "__main__":
    main("containers_throughput")
