"""A Podman of the tests' own, whose images, networks and containers are separate from those of the machine's."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.platforms.container_engine import ContainerEngine, find, mount_disk

# Podman's default ulimits cannot be set where the hard limits are low, nor its default cgroup manager be used where
# systemd does not run.
CONFIG = """
[containers]
default_ulimits = []
volumes = {volumes}
[network]
network_config_dir = "{folder}/networks"
[engine]
runtime = "{runtime}"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
"""
# As Docker takes registries of its own machine.
REGISTRIES = """
[[registry]]
location = "127.0.0.1"
insecure = true
"""
START_SECONDS = 20


@functools.lru_cache(maxsize=1)
def why_not() -> str:
    """Return why there can be no Podman here; an empty string if there can be one."""
    if os.geteuid():
        return "containers of the tests' own need root"
    missing = [
        program for program in ("podman", "netavark", "aardvark-dns", "catatonit", "iptables") if not find(program)
    ]
    if missing:
        return f"{missing[0]} is not installed here"
    return "" if find("runc") or find("crun") else "neither runc nor crun is installed here"


class Podman(ContainerEngine):
    """A Podman service that answers on a socket of its own.

    Args:
        disk: size of a disk for its images and containers, such as ``4m``; if empty, they are on the machine's disk.
        images: folder with the images of another Podman, which it only reads.
        volumes: folders of this machine that all containers have, at the same path.

    Attributes:
        root: folder of its images and containers.
    """

    at_once = ("--force", "--time", "0")

    def __init__(self, disk: str = "", images: Path | None = None, volumes: Sequence[Path] = ()) -> None:
        self._options = ("--storage-opt", f"additionalimagestore={images}") if images else ()
        self.folder = Path(tempfile.mkdtemp(prefix="muster-podman-"))
        self.root = self.folder / "root"
        self._has_disk = bool(disk)
        if disk:
            mount_disk(self.root, disk, self.folder)
        self.url = f"unix://{self.folder}/podman.sock"
        (self.folder / "containers.conf").write_text(
            CONFIG.format(
                folder=self.folder,
                runtime="runc" if find("runc") else "crun",
                volumes=json.dumps([f"{folder}:{folder}" for folder in volumes]),
            )
        )
        (self.folder / "registries.conf").write_text(REGISTRIES)
        # Without the variables of whichever test is first: that test's leftovers are found by them.
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "CONTAINER"))}
        (self.folder / "tmp").mkdir()  # Podman leaves a copy of each image that it imports there
        self.environment = {
            **own,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
            "TMPDIR": str(self.folder / "tmp"),
        }
        self._service: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the service, and wait until it listens."""
        with (self.folder / "service.log").open("ab") as log:
            self._service = subprocess.Popen(
                self.command("system", "service", "--time=0", self.url),
                cwd=self.folder,  # Podman leaves a file there when the kernel ends a container for its memory
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while not (self.folder / "podman.sock").exists():
            if self._service.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"Podman does not start here: {(self.folder / 'service.log').read_text()[-500:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the service; containers go on."""
        if self._service is not None:
            self._service.terminate()
            self._service.wait()
            self._service = None
            (self.folder / "podman.sock").unlink(missing_ok=True)

    def remove(self) -> None:
        """End the containers and the service, and remove the folder."""
        try:
            self.run("rm", "--all", *self.at_once, "--volumes")
            self.run("network", "prune", "--force")
        finally:
            self.stop()
            for mounted in (self.root / "overlay", *([self.root] if self._has_disk else [])):
                subprocess.run(["umount", "--lazy", str(mounted)], stderr=subprocess.DEVNULL)
            shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a command of podman's, to be run with ``environment``."""
        own = ("--root", str(self.root), "--runroot", str(self.folder / "runroot"), *self._options)
        return ["podman", *own, "--tmpdir", str(self.folder / "tmp"), *arguments]
