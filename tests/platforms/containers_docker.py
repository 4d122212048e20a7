"""A Docker of the tests' own: Debian's packages, fetched once, unpacked into a cache."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.platforms.container_engine import ContainerEngine, find, mount_disk

PACKAGES = ("docker.io", "containerd", "docker-registry", "tini")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster"
FETCH_SECONDS, START_SECONDS = 120, 60


def why_not() -> str:
    """Return why there can be no Docker here; an empty string if there can be one."""
    if os.geteuid():
        return "a Docker of the tests' own needs root"
    missing = [program for program in ("apt-get", "apt-cache", "dpkg", "runc", "iptables") if not find(program)]
    return f"{missing[0]} is not installed here" if missing else ""


@functools.lru_cache(maxsize=1)
def fetch() -> Path | None:
    """Return the folder in which Debian's packages are unpacked, or None if they cannot be fetched or do not run."""
    shown = subprocess.run(["apt-cache", "policy", PACKAGES[0]], capture_output=True, text=True).stdout
    version = shown.partition("Candidate:")[2].split()
    if not version or version[0] == "(none)":
        return None
    root = CACHE / f"docker-{version[0].replace('/', '_')}"
    if not root.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="docker-", dir=CACHE) as made:
            folder = Path(made)
            try:
                fetched = ["apt-get", "download", "-q", *PACKAGES]
                subprocess.run(fetched, cwd=folder, check=True, capture_output=True, timeout=FETCH_SECONDS)
            except subprocess.SubprocessError:
                return None
            for package in folder.glob("*.deb"):
                subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True)
            with contextlib.suppress(OSError):  # other tests were quicker
                (folder / "root").rename(root)
    tried = subprocess.run([root / "usr/sbin/dockerd", "--version"], capture_output=True)
    return None if tried.returncode else root


class Docker(ContainerEngine):
    """A Docker daemon that answers on a socket of its own, with all its state in one folder.

    Args:
        root: the folder in which its packages are unpacked.
        disk: size of a disk for its images and containers, such as ``24m``; if empty, they are on the machine's disk.

    Attributes:
        root: folder of its images and containers.
    """

    def __init__(self, root: Path, disk: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="muster-docker-", dir="/var/tmp"))  # not an overlay on an overlay
        self.root = self.folder / "data"
        self._has_disk = bool(disk)
        if disk:
            mount_disk(self.root, disk, self.folder)
            # Where Docker cannot write down a network, it leaves its bridge on this machine.
            (self.folder / "network").mkdir()
            (self.root / "network").symlink_to(self.folder / "network")
        self.url = f"unix://{self.folder}/docker.sock"
        self._root = root
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "DOCKER"))}
        folders = f"{root}/usr/sbin:{root}/usr/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        self.environment = {**own, "PATH": folders, "DOCKER_HOST": self.url, "DOCKER_CONFIG": str(self.folder)}
        self._daemon: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the daemon, and wait until it answers."""
        options = ["--data-root", str(self.root), "--exec-root", f"{self.folder}/exec", "-H", self.url]
        # The machine's settings stay as they are: rules of its firewall, bridges and forwarding.
        options += ["--pidfile", f"{self.folder}/pid", "--bridge=none", "--iptables=false", "--ip-masq=false"]
        self._daemon = self._run("dockerd", *options, "--ip-forward=false", "--shutdown-timeout=3")
        deadline = time.monotonic() + START_SECONDS
        while subprocess.run(["docker", "version"], env=self.environment, capture_output=True).returncode:
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "dockerd.log").read_text()[-500:]
                self.remove()
                pytest.skip(f"Docker does not start here: {said}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the daemon, which ends the containers."""
        _end(self._daemon)
        self._daemon = None

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a command of docker's, to be run with ``environment``."""
        return ["docker", *arguments]

    def remove(self) -> None:
        """End the containers and the daemon, and remove the folder."""
        if self._daemon is not None and self._daemon.poll() is None:
            for line in self.run("ps", "--all", "--quiet").split():
                self.run("rm", "--force", "--volumes", line)
            self.run("network", "prune", "--force")
        self.stop()
        # Docker mounts the machine's own network there for containers that have it, and leaves it mounted.
        for mounted in (self.folder / "exec" / "netns" / "default", *([self.root] if self._has_disk else [])):
            subprocess.run(["umount", "--lazy", str(mounted)], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command[0]}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """End a daemon, and kill it if it does not end within ``START_SECONDS``."""
    if process is None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
