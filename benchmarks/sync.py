"""Measure how long it takes to send a project of 50 MB to four workers: the first time, and again unchanged.

Baseline: four ``rsync -a`` at once, over ssh to an sshd of this machine; and the same once more. Muster's workers share
no files with the session, and each has a cache of its own. Its time is from the moment when all agents are connected,
as rsync needs no agents, until the first script has started.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from muster.events import Event, EventKind
from muster.job import Resources
from muster.platforms.base import Storage
from muster.platforms.local import LocalPlatform
from muster.run.cluster import Cluster
from muster.run.request import RunRequest

from benchmarks.measuring import Figure, Target, Unavailable, by_turns, main, private_home

WORKERS = 4
SMALL, LARGE = 1000, 8  # files: of 10 kB, and of 5 MB
FIRST, AGAIN = Target(1.2), Target(1)
SSHD = "/usr/sbin/sshd"


def measure(quick: bool) -> list[Figure]:
    """Measure Muster and rsync by turns, each time into new folders."""
    for program in ("rsync", "ssh", "ssh-keygen", SSHD):
        if not shutil.which(program):
            raise Unavailable(f"{program} is not installed")
    if os.geteuid():
        raise Unavailable("only root can give workers a view of the files of their own")
    with private_home(), tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, _sshd(Path(folder)) as command:
        project = Path(folder, "project")
        _write(project, 40 if quick else 1)
        measured = by_turns(
            1 if quick else 5,
            {"muster": lambda: muster(project, Path(folder)), "rsync": lambda: rsync(project, Path(folder), command)},
        )
    title = f"50 MB in {SMALL + LARGE} files to {WORKERS} workers that share none"
    floor = f"{WORKERS} parallel `rsync -a -e ssh`"
    first, again = ([seconds[number] for seconds in measured["muster"]] for number in (0, 1))
    floor_first, floor_again = ([seconds[number] for seconds in measured["rsync"]] for number in (0, 1))
    return [
        Figure(title, "s", first, floor, floor_first, FIRST),
        Figure("the same again, with nothing changed", "s", again, floor, floor_again, AGAIN),
    ]


def muster(project: Path, folder: Path) -> tuple[float, float]:
    """Return the seconds that Muster takes to send the project, and to find that all of it is there already."""
    with tempfile.TemporaryDirectory(dir=folder) as caches:
        return _send(project, Path(caches)), _send(project, Path(caches))


class Elsewhere(LocalPlatform):
    """A local platform whose workers see neither the session's files nor one another's; each has its own cache."""

    storage = Storage.NOTHING
    caches = Path()

    def _config(self, *arguments: object) -> dict[str, object]:
        config = super()._config(*arguments)  # type: ignore[arg-type]
        return {**config, "cache": {"folder": str(self.caches / config["name"]), "bytes": 1 << 30}}


def _send(project: Path, caches: Path) -> float:
    times: list[float] = []

    def observe(event: Event) -> None:
        if event.kind == EventKind.TRANSFER or (
            event.kind == EventKind.RUN_PHASE and event.data["phase"] == "starting"
        ):
            times.append(event.time)
        elif event.kind == EventKind.PROCESS_STARTED:
            started.append(event.time)

    started: list[float] = []
    platform = Elsewhere()
    platform.caches = caches
    request = RunRequest(
        script=project / "train.py", n_workers=WORKERS, resources=Resources(0.25, 0.2), strategy="processes",
        platform=platform,
    )  # fmt: skip
    cluster = Cluster.of(request, [observe])
    try:
        cluster.start()
        cluster.wait()
    finally:
        cluster.stop()
        platform.close()
    return min(started) - times[0]


def rsync(project: Path, folder: Path, command: str) -> tuple[float, float]:
    """Return the same for four rsyncs at once."""
    with tempfile.TemporaryDirectory(dir=folder) as hosts:
        targets = [f"127.0.0.1:{hosts}/{number}/" for number in range(WORKERS)]
        return _rsync(project, targets, command), _rsync(project, targets, command)


def _rsync(project: Path, targets: list[str], command: str) -> float:
    started = time.perf_counter()
    processes = [subprocess.Popen(["rsync", "-a", "-e", command, f"{project}/", target]) for target in targets]
    statuses = [process.wait() for process in processes]
    if any(statuses):
        raise Unavailable("rsync has failed")
    return time.perf_counter() - started


def _write(project: Path, divisor: int) -> None:
    """Write the project's files, whose contents cannot be compressed."""
    noise = random.Random(0)
    for number in range(SMALL // divisor):
        path = project / f"package{number % 20}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise.randbytes(10_000))
    for number in range(LARGE):
        (project / f"data{number}.bin").write_bytes(noise.randbytes(5_000_000 // divisor))
    (project / "train.py").write_text("pass\n")


@contextlib.contextmanager
def _sshd(folder: Path) -> Iterator[str]:
    """Run an sshd on loopback that accepts one key, and yield the ssh command that logs in to it."""
    os.makedirs("/run/sshd", exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    port = 20000 + os.getpid() % 20000
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 100\nPidFile none\n"
    )
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=subprocess.DEVNULL)
    command = (
        f"ssh -p {port} -i {folder}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
        "-o IdentitiesOnly=yes -o LogLevel=ERROR"
    )
    try:
        deadline = time.monotonic() + 10
        while subprocess.run([*command.split(), "127.0.0.1", "true"], capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise Unavailable("an sshd of its own does not come up")
            time.sleep(0.1)
        yield command
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main("sync")
