"""Common parts of the tests' own Docker and Podman: commands, and images that are made when they are needed."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from muster.agent.owners import is_orphaned, owner
from muster.platforms.containers.guard import HOMES, homes_of

PATH = "/usr/bin:/bin"
NETWORKS_OF_ITS_OWN = ("bridge", "host", "none", "podman")


class ContainerEngine(ABC):
    """A container engine of the tests' own.

    Attributes:
        url: address of its socket.
        folder: folder of all its files.
        root: folder of its images and containers.
        environment: environment that its commands need.
        at_once: options of ``rm`` that make it kill running containers.
    """

    url: str
    folder: Path
    root: Path
    environment: Mapping[str, str]
    at_once: tuple[str, ...] = ("--force",)

    @abstractmethod
    def command(self, *arguments: str) -> list[str]:
        """Return the command line of one of its commands, to be run with ``environment``."""

    @abstractmethod
    def start(self) -> None:
        """Start the process that answers on the socket, and wait until it does."""

    @abstractmethod
    def stop(self) -> None:
        """End the process that answers on the socket."""

    @abstractmethod
    def remove(self) -> None:
        """End everything, and remove the folder."""

    def run(self, *arguments: str) -> str:
        """Run a command, and return what it prints."""
        command = self.command(*arguments)
        return subprocess.run(command, env=self.environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    @contextlib.contextmanager
    def given_to(self, user: int, group: int = 0) -> Iterator[None]:
        """Let another user, or a group, use the socket as well."""
        socket = Path(self.url.removeprefix("unix://"))
        mode = socket.stat().st_mode
        self.folder.chmod(0o711)
        os.chown(socket, user, group)
        socket.chmod(0o660)
        try:
            yield
        finally:
            os.chown(socket, 0, 0)
            socket.chmod(mode)
            self.folder.chmod(0o700)

    def containers(self) -> list[str]:
        """Return the names of running containers."""
        return self.run("ps", "--format", "{{.Names}}").split()

    def add_python(self, name: str = "localhost/muster-tests-python") -> str:
        """Make an image with the system's Python alone, unless there is one, and return its name."""
        if not self.run("images", "--quiet", name).strip():
            archive = self.folder / "python.tar"
            pack_python(archive)
            self._import(archive, name)
        return name

    def add_layer(self, base: str, name: str, content: bytes, target: str, *changes: str) -> None:
        """Make an image that is another one with a file more, in a layer of its own.

        Args:
            base: the other image.
            name: name of the file, which is in the root folder.
            content: content of the file.
            target: the image's name.
            changes: instructions of a Dockerfile that the image is to have as well.
        """
        (self.folder / name).write_bytes(content)
        container = self.run("create", base, "sh").strip()
        self.run("cp", str(self.folder / name), f"{container}:/{name}")
        self.run("commit", *(f"--change={change}" for change in changes), container, target)
        self.run("rm", container)

    def add_empty(self) -> str:
        """Make an image with an empty folder, and return its name."""
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        return self._import(self._packed(folder), "localhost/muster-tests-empty")

    def add_not_executable(self) -> str:
        """Make an image whose Python may not be executed, and return its name."""
        python = tarfile.TarInfo("usr/bin/python3")
        python.mode = 0o644
        return self._import(self._packed(python), "localhost/muster-tests-not-executable")

    def left_behind(self) -> Sequence[str]:
        """Return the names of all containers, networks of runs, volumes, and containers' homes."""
        containers = self.run("ps", "--all", "--format", "container {{.Names}}").splitlines()
        networks = self.run("network", "ls", "--format", "{{.Name}}").split()
        volumes = self.run("volume", "ls", "--format", "volume {{.Name}}").splitlines()
        of_runs = [f"network {name}" for name in networks if name not in NETWORKS_OF_ITS_OWN]
        return [*containers, *of_runs, *volumes, *homes_left()]

    def _import(self, archive: Path, name: str) -> str:
        self.run("import", "--change", f"ENV PATH={PATH}", str(archive), name)
        archive.unlink()
        return name

    def _packed(self, member: tarfile.TarInfo) -> Path:
        archive = self.folder / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.addfile(member, io.BytesIO())
        return archive


def pack_python(target: Path) -> None:
    """Write the content of an image: the system's Python, its standard library, the libraries it needs, and a shell."""
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
        threads = Path(min(linked)).parent / "libgcc_s.so.1"  # loaded when a thread is cancelled
        for path in sorted({*linked, str(threads)}):
            tar.add(Path(path).resolve(), f"usr/{path.lstrip('/').removeprefix('usr/')}")


def homes_left() -> list[str]:
    """Return the homes of containers, except for those of other sessions that still run."""
    found = [path.name for path in homes_of("").parent.glob(f"{HOMES}*")]
    owners = {name: name.removeprefix(HOMES).rpartition(".")[0] for name in found}
    return [f"home {name}" for name, label in owners.items() if label == owner() or is_orphaned(label)]


def mount_disk(target: Path, size: str, around: Path) -> None:
    """Mount a disk of this size; where that is not allowed, remove the folder ``around`` it and skip the test."""
    target.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(target)]
    if subprocess.run(mount, capture_output=True).returncode:
        shutil.rmtree(around)
        pytest.skip("root may mount no disk here")


def find(program: str) -> str | None:
    """Return the path of a program, even if it is in a folder that only engines search; None if there is none."""
    path = "/usr/sbin:/usr/lib/podman:/usr/libexec/podman"
    return shutil.which(program) or shutil.which(program, path=path)
