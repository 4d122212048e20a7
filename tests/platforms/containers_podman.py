"""A Podman of the tests' own, with images, networks and containers apart from those of the machine's."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from muster.platforms.containers.guard import HOMES, homes_of
from muster.platforms.session_guard import is_orphaned, owner

# Where the hard limits are low, Podman's own defaults cannot be set; and cgroups v1 know no systemd without systemd.
CONFIG = """
[containers]
default_ulimits = []
[network]
network_config_dir = "{folder}/networks"
[engine]
runtime = "{runtime}"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
"""
PATH = "/usr/bin:/bin"
START_SECONDS = 20


@functools.lru_cache(maxsize=1)
def why_not() -> str:
    """Return why there can be no Podman here; nothing where there can be."""
    if os.geteuid():
        return "containers of the tests' own need root"
    missing = [
        program for program in ("podman", "netavark", "aardvark-dns", "catatonit", "iptables") if not find(program)
    ]
    if missing:
        return f"{missing[0]} is not installed here"
    return "" if find("runc") or find("crun") else "neither runc nor crun is installed here"


def find(program: str) -> str | None:
    """The path of a program, also of one that only Podman looks for."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/usr/lib/podman:/usr/libexec/podman")


def pack_python(target: Path) -> None:
    """Write the system's Python as the content of an image: its standard library, what that links to, and a shell."""
    python = Path("/usr/bin/python3").resolve()
    library = Path("/usr/lib") / python.name
    if not python.exists() or not library.exists():
        pytest.skip("the system has no Python of its own here")
    programs = [python, Path("/bin/sh").resolve(), *sorted((library / "lib-dynload").glob("*.so"))]
    listed = subprocess.run(["ldd", *programs], check=True, stdout=subprocess.PIPE, text=True).stdout
    linked = {line.split()[-2] for line in listed.splitlines() if line.startswith("\t") and "/" in line}
    with tarfile.open(target, "w") as tar:
        for name in ("bin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
        for name in ("tmp", "proc", "sys", "dev", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        tar.add(python, "usr/bin/python3")
        tar.add("/bin/sh", "usr/bin/sh")
        tar.add(Path("/bin/sh").resolve(), f"usr/bin/{Path('/bin/sh').resolve().name}")
        tar.add(library, str(library)[1:], filter=lambda member: None if "/test" in member.name else member)
        threads = Path(min(linked)).parent / "libgcc_s.so.1"  # loaded where a thread is cancelled
        for path in sorted({*linked, str(threads)}):
            tar.add(Path(path).resolve(), f"usr/{path.lstrip('/').removeprefix('usr/')}")


def homes_left() -> list[str]:
    """Return what is there of containers' homes, but for those of other sessions that live."""
    found = [path.name for path in homes_of("").parent.glob(f"{HOMES}*")]
    owners = {name: name.removeprefix(HOMES).rpartition(".")[0] for name in found}
    return [f"home {name}" for name, label in owners.items() if label == owner() or is_orphaned(label)]


class Podman:
    """A service that answers on a socket of its own.

    Args:
        disk: how large its disk is, such as ``4m``; empty where it is the machine's.
        images: a folder with images of another Podman's, which it only reads.

    Attributes:
        url: address of the socket.
        folder: holds everything that is its own.
        root: holds its images and containers.
        environment: what its commands need.
    """

    def __init__(self, disk: str = "", images: Path | None = None) -> None:
        self._options = ("--storage-opt", f"additionalimagestore={images}") if images else ()
        self.folder = Path(tempfile.mkdtemp(prefix="muster-podman-"))
        self.root = self.folder / "root"
        self.root.mkdir()
        self._has_disk = bool(disk)
        if disk:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={disk}", "tmpfs", str(self.root)]
            if subprocess.run(mount, capture_output=True).returncode:
                shutil.rmtree(self.folder)
                pytest.skip("root may mount no disk here")
        self.url = f"unix://{self.folder}/podman.sock"
        (self.folder / "containers.conf").write_text(
            CONFIG.format(folder=self.folder, runtime="runc" if find("runc") else "crun")
        )
        # Not that of the test which happens to be the first: what it leaves behind is looked for by it.
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "CONTAINER"))}
        (self.folder / "tmp").mkdir()  # where it leaves a copy of each image that it imports
        self.environment = {
            **own,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "TMPDIR": str(self.folder / "tmp"),
        }
        self._service: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the service, and wait until it listens."""
        with (self.folder / "service.log").open("ab") as log:
            self._service = subprocess.Popen(
                self.command("system", "service", "--time=0", self.url),
                cwd=self.folder,  # where it leaves a file when the kernel ends a container for its memory
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
        """End the service alone: containers go on."""
        if self._service is not None:
            self._service.terminate()
            self._service.wait()
            self._service = None
            (self.folder / "podman.sock").unlink(missing_ok=True)

    def run(self, *arguments: str) -> str:
        """Run a command of podman's, and return what it prints."""
        command = self.command(*arguments)
        return subprocess.run(command, env=self.environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def add_python(self) -> str:
        """Make an image of the system's Python alone, unless it is there, and return its name."""
        name = "localhost/muster-tests-python"
        if subprocess.run(self.command("image", "exists", name), env=self.environment).returncode:
            archive = self.folder / "python.tar"
            pack_python(archive)
            self.run("import", "--change", f"ENV PATH={PATH}", str(archive), name)
            archive.unlink()
        return name

    def add_empty(self) -> str:
        """Make an image with an empty folder, unless it is there, and return its name."""
        name = "localhost/muster-tests-empty"
        archive = self.folder / "empty.tar"
        with tarfile.open(archive, "w") as tar:
            folder = tarfile.TarInfo("tmp")
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(folder)
        self.run("import", str(archive), name)
        return name

    def add_not_executable(self) -> str:
        """Make an image whose Python may not be executed, and return its name."""
        name = "localhost/muster-tests-not-executable"
        archive = self.folder / "not-executable.tar"
        with tarfile.open(archive, "w") as tar:
            python = tarfile.TarInfo("usr/bin/python3")
            python.mode = 0o644
            tar.addfile(python)
        self.run("import", "--change", f"ENV PATH={PATH}", str(archive), name)
        return name

    def left_behind(self) -> Sequence[str]:
        """Return what is there of containers, networks, volumes and containers' homes."""
        containers = self.run("ps", "--all", "--noheading", "--format", "container {{.Names}}").splitlines()
        networks = self.run("network", "ls", "--noheading", "--format", "network {{.Name}}").splitlines()
        volumes = self.run("volume", "ls", "--noheading", "--format", "volume {{.Name}}").splitlines()
        return [line for line in (*containers, *networks, *volumes, *homes_left()) if line != "network podman"]

    def remove(self) -> None:
        """End everything and remove it."""
        try:
            self.run("rm", "--all", "--force", "--time", "0", "--volumes")
            self.run("network", "prune", "--force")
        finally:
            self.stop()
            for mounted in (self.root / "overlay", *([self.root] if self._has_disk else [])):
                subprocess.run(["umount", "--lazy", str(mounted)], stderr=subprocess.DEVNULL)
            shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *arguments: str) -> list[str]:
        """The command line of a command of podman's, to be run with ``environment``."""
        own = ("--root", str(self.root), "--runroot", str(self.folder / "runroot"), *self._options)
        return ["podman", *own, "--tmpdir", str(self.folder / "tmp"), *arguments]
