"""An ordinary user of this machine: a user id, a home, and Python programs that run with its rights."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support import IMPORT_PATH

UID = 54321
TREE = Path(__file__).resolve().parents[2]
PLACES = ("/tmp", "/var/tmp", "/dev/shm")


@contextlib.contextmanager
def home_of_user() -> Iterator[Path]:
    """Make the user's home, which others may look into, and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="mst-"))
    try:
        folder.chmod(0o755)
        os.chown(folder, UID, UID)
        yield folder
    finally:
        shutil.rmtree(folder)


def run_as_user(
    home: Path, program: str, *arguments: str, groups: str = "", has_account: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python program in the user's home, with the user's rights.

    It has a view of the files of its own, in which it may read this interpreter and this tree at their usual paths.

    Args:
        home: the user's home.
        program, arguments: the program, and its arguments.
        has_account: whether the user is in ``/etc/passwd``.
        groups: ids of groups that the user is in besides its own, with commas between them.
        variables: its environment, besides the usual.
    """
    become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", f"--groups={groups}" if groups else "--clear-groups"]
    own = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": IMPORT_PATH}
    command = shlex.join([*become, sys.executable, "-", *arguments])
    with tempfile.TemporaryDirectory(prefix="mst-") as covers:
        commands = _readable(Path(covers))
        if has_account:
            account = f"somebody:x:{UID}:{UID}::{home}:/bin/sh\n"
            Path(covers, "passwd").write_text(Path("/etc/passwd").read_text() + account)
            commands.append(f"mount --bind {covers}/passwd /etc/passwd")
        script = "\n".join(["set -e", "mount --make-rprivate /", *commands, f"exec {command}"])
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            input=program, cwd=home, env={**own, **variables}, capture_output=True, text=True,
        )  # fmt: skip


def _readable(covers: Path) -> list[str]:
    """Return the commands that put another folder over those that only root may look into, with what is needed."""
    covers.chmod(0o755)
    commands: list[str] = []
    closed: dict[Path, list[Path]] = {}
    for path in (Path(sys.base_prefix), Path(sys.prefix), TREE):
        for ancestor in reversed(path.parents):
            if not ancestor.stat().st_mode & 0o001:
                closed.setdefault(ancestor, []).append(path)
                break
    for number, (folder, needed) in enumerate(closed.items()):
        for path in needed:
            place = covers / str(number) / path.relative_to(folder)
            commands += [f"mkdir -p {place}", f"mount --bind {path} {place}"]
        commands.append(f"mount --rbind {covers / str(number)} {folder}")
    return commands


def left_of_user() -> list[str]:
    """Return the user's processes, and its files in the folders for temporary ones, but for the cache of projects."""
    processes = [
        f"process {process.info['name']}"  # which is asked for with the rest, as it may end at any moment
        for process in psutil.process_iter(["name", "uids"])
        if process.info["uids"].real == UID
    ]
    return [
        *processes,
        *(
            str(path)
            for place in PLACES
            for path in Path(place).iterdir()
            if _owner_of(path) == UID and path.name != f"muster-projects-{UID}"
        ),
    ]


def _owner_of(path: Path) -> int | None:
    """Return the id of a file's owner; None if it has just been removed, as those of other tests may be."""
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None
