"""The images of workers: the one that the user names, or a tiny one into which the session's Python is mounted.

The tiny image holds empty folders, links and a list of users, and nothing else. The session's Python, its packages and
the system's files that they need are mounted into it read-only: nothing is copied and nothing is pulled.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

from muster.errors import PlatformError
from muster.platforms.base import Cleaned
from muster.platforms.containers.engine import Engine
from muster.platforms.containers.refusals import asking

# Links into usr/ on most systems, folders on others. sbin is not among them, as Docker mounts its init there.
SYSTEM = ("bin", "lib", "lib32", "lib64", "libx32")
EMPTY = (
    *("dev", "etc", "home", "muster", "proc", "root", "run", "run/sshd", "sbin", "sys", "tmp", "usr", "var"),
    *("var/empty", "var/tmp"),
)
# In /etc. Of ssl only the public files: containers that run as root could read the machine's private keys beside them.
OF_SYSTEM = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "mpich", "openmpi"),
    *("ssl/certs", "ssl/openssl.cnf"),
)
TINY = "localhost/muster-tiny-"  # followed by a hash of the image's content
STEP = 10  # percent of a pull between two reports
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tiny_image(engine: Engine) -> str:
    """Return the name of the tiny image, making it where the engine does not have it yet.

    Raises:
        PlatformError: the engine cannot make it.
    """
    from docker.errors import ImageNotFound

    archive = tiny_archive()
    name = f"{TINY}{hashlib.sha256(archive).hexdigest()[:12]}:latest"
    with asking(engine, "The image of the workers could not be made"):
        try:
            engine.client.inspect_image(name)
        except ImageNotFound:
            repository = name.rpartition(":")[0]
            engine.client.import_image_from_data(archive, repository, "latest", changes=[f"ENV PATH={PATH}"])
    return name


def remove_tiny_images(engine: Engine) -> Cleaned:
    """Remove the tiny images that no container uses.

    Raises:
        PlatformError: the engine does not list its images.
    """
    removed, left = [], []
    with asking(engine, "The images could not be listed"):
        images = engine.client.images()
    for name in sorted(tag for image in images for tag in image.get("RepoTags") or () if tag.startswith(TINY)):
        try:
            with asking(engine, f"{name} could not be removed"):
                engine.client.remove_image(name)
        except PlatformError as error:
            left.append(error.message)
        else:
            removed.append(name)
    return Cleaned(removed, left)


def has_image(engine: Engine, name: str) -> bool:
    """Return whether the engine has an image already. Raises PlatformError."""
    from docker.errors import ImageNotFound

    with asking(engine, f"The image {name} could not be looked for"):
        try:
            engine.client.inspect_image(name)
        except ImageNotFound:
            return False
    return True


def pull(engine: Engine, name: str, tell: Callable[[str], object]) -> None:
    """Have the engine pull an image.

    Args:
        engine: the engine.
        name: name of the image, as ``docker pull`` takes it.
        tell: called with the progress, in words, every now and then.

    Raises:
        PlatformError: it cannot be pulled.
    """
    from docker.errors import APIError
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(name)
    layers: dict[str, tuple[int, int]] = {}
    to_come: set[str] = set()  # layers whose size is not known yet, as few are pulled at once
    told = -1
    error = ""
    tell(f"pulling the image {name}")
    with asking(engine, f"The image {name} could not be pulled"):
        for news in engine.client.pull(repository, tag or "latest", stream=True, decode=True):
            error = news.get("error") or error  # reading goes on to the end, so that the connection is released
            layer, status, detail = news.get("id", ""), news.get("status"), news.get("progressDetail") or {}
            if status == "Pulling fs layer":
                to_come.add(layer)
            elif status == "Downloading" and detail.get("total"):
                layers[layer] = int(detail.get("current") or 0), int(detail["total"])
                to_come.discard(layer)
            elif status == "Download complete":
                if layer in layers:
                    layers[layer] = (layers[layer][1],) * 2
                to_come.discard(layer)
            done, total = (sum(amounts) for amounts in zip(*layers.values(), strict=True)) if layers else (0, 0)
            percent = 100 * done // total // STEP * STEP if total else told
            if percent != told and not (percent == 100 and to_come):
                told = percent
                size = f"{total / 1e6:.1f} MB" if total < 1e8 else f"{total / 1e9:.1f} GB"
                tell(f"pulling the image {name}: {told} % of {size}")
        if error:
            raise APIError(error, explanation=error)


def tiny_archive() -> bytes:
    """Return the content of the tiny image as a tar, the same each time on the same system."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in EMPTY:
            archive.addfile(folder(name, mode=0o1777 if name.endswith("tmp") else 0o755))
        for name in SYSTEM:
            if os.path.islink(f"/{name}"):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, os.readlink(f"/{name}")
                archive.addfile(link)
            elif os.path.isdir(f"/{name}"):
                archive.addfile(folder(name))
        for path, text in (("etc/passwd", _passwd()), ("etc/group", _group())):
            archive.addfile(*file(path, text.encode()))
    return packed.getvalue()


def _passwd() -> str:
    lines = ["root:x:0:0:root:/root:/bin/sh", "sshd:x:101:65534::/run/sshd:/usr/sbin/nologin"]
    if os.getuid():
        lines.append(f"user:x:{os.getuid()}:{os.getgid()}::/muster/home:/bin/sh")
    return "".join(f"{line}\n" for line in lines)


def _group() -> str:
    return "root:x:0:\nnogroup:x:65534:\n" + (f"user:x:{os.getgid()}:\n" if os.getgid() else "")


def folder(name: str, mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> tarfile.TarInfo:
    """Return the tar entry of a folder."""
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    info.uid, info.gid = owner
    return info


def file(
    name: str, data: bytes, mode: int = 0o644, owner: tuple[int, int] = (0, 0)
) -> tuple[tarfile.TarInfo, io.BytesIO]:
    """Return the tar entry of a file, and its content."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    info.uid, info.gid = owner
    return info, io.BytesIO(data)


def own_folders() -> list[str]:
    """Return the folders that a worker with the session's Python needs, without those inside others of them."""
    paths = [
        "/usr",
        *(f"/etc/{name}" for name in OF_SYSTEM),
        *(f"/{name}" for name in SYSTEM if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")),
    ]
    paths += [sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))]
    paths += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    paths += python_path()
    return outermost([path for path in [*paths, *map(os.path.realpath, paths)] if os.path.exists(path)])


def python_path() -> list[str]:
    """Return the absolute folders of this process's ``PYTHONPATH``, for workers with the session's Python."""
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths without those inside others of them, and without the root folder."""
    found: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths} - {"/"}, key=lambda path: (path.count("/"), path)):
        if not any(Path(path).is_relative_to(other) for other in found):
            found.append(path)
    return found
