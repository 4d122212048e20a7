"""Scratch folders: which of them a session removes that others have left."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from muster.agent.removal import OWNER
from muster.checks.script import make_script
from muster.errors import PlatformError
from muster.job import Job
from muster.records import scratch, sessions
from muster.records.scratch import sweep
from muster.run.cluster import Cluster

from tests.plain import Plain

GONE = {"pid": 1 << 22, "started": 1}  # no process has that id


@pytest.mark.parametrize(
    ("changes", "is_kept"),
    [
        ({}, True),
        (GONE, False),
        ({**GONE, "boot": "another"}, False),
        ({**GONE, "boot": "another", "host": "another"}, True),  # of a machine that shares it
        ({**GONE, "host": "another"}, False),  # this machine has been given another name
        ({**GONE, "pids": 1}, True),  # of a container that shares this folder: its session may well be alive
        ({"pids": 1, "boot": "another"}, False),
    ],
)
def test_only_what_is_certainly_left_is_removed(tmp_path: Path, changes: dict[str, Any], is_kept: bool) -> None:
    folder = tmp_path / "muster-a"
    folder.mkdir()
    (folder / OWNER).write_text(json.dumps({**sessions.this_session(), **changes}))
    sweep(tmp_path)
    assert folder.exists() is is_kept


@pytest.mark.parametrize(
    "make",
    [
        lambda path: os.mkfifo(path, 0o666),  # to open it waits for somebody who writes
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.mkdir(),
        lambda path: path.write_text("[" * 100_000),
    ],
    ids=["pipe", "device", "folder", "nonsense"],
)
@pytest.mark.timeout(20)
def test_what_anybody_may_put_into_a_shared_folder_holds_up_nobody(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    folder = tmp_path / "muster-b"
    folder.mkdir()
    make(folder / OWNER)
    sweep(tmp_path)
    assert folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that are somebody else's")
def test_what_is_another_users_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "muster-c"
    folder.mkdir()
    (folder / OWNER).write_text(json.dumps({**sessions.this_session(), **GONE}))
    for path in (folder, folder / OWNER):
        os.chown(path, 65534, 65534)
    sweep(tmp_path)
    assert folder.exists()


def test_folders_of_sessions_that_were_killed_before_they_could_say_whose_they_are(tmp_path: Path) -> None:
    """Or when all but the folder was removed. What anything is in stays: it may be anybody's."""
    names = ["muster-ab12cd_4", "muster-ab12cd_5", "muster-ab12cd_6", "muster-training2"]
    empty, full, new, named = folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir(mode=0o700)
    (full / "file").touch()
    for folder in (empty, full, named):
        os.utime(folder, (1.0, 1.0))
    sweep(tmp_path)
    assert [folder.exists() for folder in (empty, full, new, named)] == [False, True, True, True]


def test_a_folder_that_cannot_be_claimed_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed: list[Path] = []

    def full(folder: Path) -> None:
        claimed.append(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "claim", full)
    with pytest.raises(OSError, match="No space"):
        scratch.make_scratch()
    assert [folder.exists() for folder in claimed] == [False]


@pytest.mark.parametrize(("of", "left"), [("scratch", 0), ("scratch", 8), ("home", 0), ("home", 16)])  # KiB
def test_a_disk_that_is_full_before_the_workers_start_is_named_without_a_traceback(
    of: str, left: int, tmp_path: Path, small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk(64)
    (disk / "ballast").write_bytes(bytes((64 - left) << 10))
    if of == "home":
        monkeypatch.setenv("MUSTER_HOME", str(disk))
    else:
        monkeypatch.setattr(scratch, "_temporary_folder", lambda: str(disk))
    script = tmp_path / "train.py"
    script.write_text("pass")
    with pytest.raises(PlatformError) as raised, Cluster(Job(make_script(script), 1), strategy=Plain()) as cluster:
        cluster.wait()
    error = raised.value
    assert f"{disk}/" in error.message
    assert error.message.endswith(": No space left on device.")
    assert "make room" in str(error.advice)
    assert error.details is None
    assert not [*disk.glob("muster-*")]
