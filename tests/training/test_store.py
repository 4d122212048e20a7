"""The folder of checkpoints, by itself: what is in it when, and in what order it reaches the disk."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from muster.training.store import Store, latest, write_durably


def save(store: Store, total: int) -> None:
    store.prepare(total)
    for name in ("manifest.json", "rank-0.npz"):
        (store.unfinished(total) / name).write_text(str(total))
    store.publish(total)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "checkpoints", keep=2)
    assert (store.newest(), latest(store.folder)) == (-1, None)
    for total in (99_999_999, 5, 100_000_000):  # one of which has more digits than the others
        save(store, total)
    assert sorted(os.listdir(store.folder)) == ["step-100000000", "step-99999999"]
    assert (store.newest(), latest(store.folder)) == (100_000_000, store.path(100_000_000))


def test_what_was_never_finished_does_not_count_and_is_cleared_away(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=1)
    store.prepare(7)
    assert store.newest() == -1
    save(store, 8)
    assert os.listdir(tmp_path) == ["step-00000008"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """List what is synchronised and renamed, by its name, in the order in which that happens."""
    noted = []
    fsync, rename, replace = os.fsync, os.rename, os.replace

    def noting_fsync(descriptor: int) -> None:
        noted.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def noting_rename(before: str | Path, after: str | Path) -> None:
        noted.append(("rename", os.path.basename(after)))
        rename(before, after)

    def noting_replace(before: str | Path, after: str | Path) -> None:
        noted.append(("replace", os.path.basename(after)))
        replace(before, after)

    monkeypatch.setattr(os, "replace", noting_replace)
    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "rename", noting_rename)
    return noted


def test_a_power_cut_leaves_the_last_good_one(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    """A name is given only to what is on the disk, and taken away only when the next one is."""
    store = Store(tmp_path / "checkpoints", keep=1)
    save(store, 1)
    calls.clear()
    save(store, 2)
    assert sorted(calls[:2]) == [("sync", "manifest.json"), ("sync", "rank-0.npz")]
    assert calls[2:] == [
        ("sync", ".step-00000002.part"),
        ("rename", "step-00000002"),
        ("sync", "checkpoints"),
        ("rename", ".step-00000001.old"),
    ]


@pytest.fixture
def pin() -> Iterator[Callable[[Path], None]]:
    """Makes files that cannot be removed, as NFS does of those that somebody has open: something is mounted on them."""
    pinned = []

    def pin(path: Path) -> None:
        if os.geteuid() or subprocess.run(["mount", "--bind", "/dev/null", path], capture_output=True).returncode:
            pytest.skip("only root may mount, and not everywhere")
        pinned.append(path.name)

    yield pin
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in mounts:
        if os.path.basename(mount) in pinned:
            subprocess.run(["umount", mount], check=True)


def test_a_checkpoint_that_is_published_is_no_failure_where_an_old_one_cannot_be_removed(
    tmp_path: Path, pin: Callable[[Path], None]
) -> None:
    store = Store(tmp_path / "checkpoints", keep=1)
    save(store, 1)
    pin(store.path(1) / "rank-0.npz")
    for total in (2, 3):
        save(store, total)
        assert store.newest() == total
        assert [name for name in os.listdir(store.folder) if not name.startswith(".")] == [f"step-0000000{total}"]


def test_what_was_never_finished_and_cannot_be_removed_does_not_stand_in_the_way(
    tmp_path: Path, pin: Callable[[Path], None]
) -> None:
    store = Store(tmp_path / "checkpoints", keep=1)
    store.prepare(1)
    (store.unfinished(1) / "nfs").touch()
    pin(store.unfinished(1) / "nfs")
    save(store, 1)
    assert store.newest() == 1


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    path = tmp_path / "model.keras"
    write_durably(path, lambda beside: beside.write_text("1"))
    assert [name for _, name in calls] == [f".{os.getpid()}.model.keras", "model.keras", tmp_path.name]
    assert os.listdir(tmp_path) == ["model.keras"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    path.write_text("old")

    def fails(beside: Path) -> None:
        beside.write_text("half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_durably(path, fails)
    assert (os.listdir(tmp_path), path.read_text()) == (["model.keras"], "old")
