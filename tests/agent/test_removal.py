"""Removing folders, whatever is in them."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from muster.agent import removal
from muster.agent.removal import OWNER, lock, remove_folder, remove_unused

DEEP = (
    3000  # folders in one another: more than Python calls functions in one another, or than a process has descriptors
)
NOBODY = 65534


def deepen(folder: Path) -> None:
    """Make folders in one another, each with a file, whose paths are longer than any call takes."""
    around = os.open(folder, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=around)
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=around))
        inner = os.open("d", os.O_RDONLY, dir_fd=around)
        os.close(around)
        around = inner
    os.close(around)


@pytest.mark.slow
def test_however_deep_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    deepen(folder)
    assert remove_folder(folder)
    assert os.listdir(tmp_path) == []


def test_folders_beside_one_another_and_odd_files(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    for inner in ("a/b/c", "a/b/d", "a/e", "f", ".hidden/g"):
        (folder / inner).mkdir(parents=True)
        (folder / inner / "file").write_text("text")
    os.mkfifo(folder / "a" / "pipe")
    os.mkdir(os.fsencode(folder) + b"/\xff")
    (folder / "line\nend").mkdir()
    assert remove_folder(str(folder))
    assert os.listdir(tmp_path) == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("text")
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    for link in (folder / "link", folder / "inner" / "link"):
        link.symlink_to(kept)
    (tmp_path / "link").symlink_to(kept)
    assert remove_folder(folder)
    assert not remove_folder(tmp_path / "link")
    assert (kept / "file").read_text() == "text"


def test_what_is_not_there_is_removed(tmp_path: Path) -> None:
    assert remove_folder(tmp_path / "none")


def test_folders_that_their_owner_has_closed(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:  # as root, to whom nothing is closed, becomes somebody else in it
        try:
            os.chdir(tmp_path)
            if os.geteuid() == 0:
                os.chown(".", NOBODY, NOBODY)
                os.setuid(NOBODY)
            os.makedirs("folder/a/b/c")
            for path, mode in (("a/b/c", 0), ("a/b", 0o500), ("a", 0o300), ("", 0o500)):
                os.chmod("folder/" + path, mode)
            os._exit(0 if remove_folder("folder") else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert os.listdir(tmp_path) == []


def test_what_says_whose_it_is_goes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that is cut off leaves nothing of which nobody knows whose it is."""
    folder = tmp_path / "folder"
    (folder / "inner" / OWNER).mkdir(parents=True)
    for name in (OWNER, "a", "z"):
        (folder / name).touch()
    left: list[list[str]] = []
    rmdir = os.rmdir
    unlink = os.unlink

    def note(path: str, *, dir_fd: int | None = None) -> None:
        left.append(sorted(os.listdir(folder)))
        (unlink if path in (OWNER, "a", "z") else rmdir)(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", note)
    assert remove_folder(folder)
    assert left[-1] == [OWNER]
    assert all(OWNER in names for names in left)


def made(around: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="muster-agent-", dir=around))
    (folder / "file").touch()
    return folder


def test_of_folders_alike_those_are_removed_that_nobody_uses(tmp_path: Path) -> None:
    own, used, unused, other = (made(tmp_path) for _ in range(4))
    kept = lock(str(used))
    named = tmp_path / "muster-agent-training2"
    open_to_all = tmp_path / "muster-agent-training"
    for folder in (named, open_to_all):
        folder.mkdir()
    if os.geteuid() == 0:
        os.chown(other, NOBODY, NOBODY)
    target = tmp_path / "target"
    target.mkdir(0o700)
    (target / "file").touch()
    link = tmp_path / "muster-agent-abcdefgh"
    link.symlink_to(target)
    remove_unused(str(own))
    assert not unused.exists()
    assert other.exists() is (os.geteuid() == 0)
    assert all(folder.exists() for folder in (own, used, named, open_to_all, link, target / "file"))
    os.close(kept)
    remove_unused(str(own))
    assert not used.exists()


def test_a_folder_that_cannot_be_listed_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("muster.agent.removal.os.listdir", refuse)
    remove_unused(str(tmp_path / "muster-agent-abcdefgh"))


def test_where_there_are_no_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    own, other = made(tmp_path), made(tmp_path)
    os.close(lock(str(own)))
    remove_unused(str(own))
    assert other.exists()


def test_removing_what_others_have_left_takes_no_longer_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "SWEEP_SECONDS", -1.0)
    own, other = made(tmp_path), made(tmp_path)
    remove_unused(str(own))
    assert other.exists()
