"""The folder of checkpoints, by itself: what is in it when, and in what order it reaches the disk."""

import os

import pytest
from muster.training.store import Store, latest


def save(store, total):
    store.prepare(total)
    for name in ("manifest.json", "rank-0.npz"):
        (store.unfinished(total) / name).write_text(str(total))
    store.publish(total)


def test_only_the_newest_are_kept(tmp_path):
    store = Store(tmp_path / "checkpoints", keep=2)
    assert (store.newest(), latest(store.folder)) == (-1, None)
    for total in (99_999_999, 5, 100_000_000):  # one of which has more digits than the others
        save(store, total)
    assert sorted(os.listdir(store.folder)) == ["step-100000000", "step-99999999"]
    assert (store.newest(), latest(store.folder)) == (100_000_000, store.path(100_000_000))


def test_what_was_never_finished_does_not_count_and_is_cleared_away(tmp_path):
    store = Store(tmp_path, keep=1)
    store.prepare(7)
    assert store.newest() == -1
    save(store, 8)
    assert os.listdir(tmp_path) == ["step-00000008"]


@pytest.fixture
def calls(monkeypatch):
    """What is synchronised and renamed, by its name, in the order in which that happens."""
    noted = []
    fsync, rename = os.fsync, os.rename

    def noting_fsync(descriptor):
        noted.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def noting_rename(before, after):
        noted.append(("rename", os.path.basename(after)))
        rename(before, after)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "rename", noting_rename)
    return noted


def test_a_power_cut_leaves_the_last_good_one(tmp_path, calls):
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
