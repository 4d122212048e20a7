"""A folder that is laid out on a worker, by itself: what is there already, what comes, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from muster.agent import wire
from muster.agent.project import Cache, ProjectCopy

SAME = b"a" * 3000
CONTENTS = {"a.py": SAME, "b/c.bin": os.urandom(9000), "b/d.bin": os.urandom(10), "copy.py": SAME, "e": b""}


def described(contents: dict[str, bytes]) -> list[Any]:
    return [
        [name, len(data), 0o755 if name.endswith(".py") else 0o600, hashlib.sha256(data).hexdigest()]
        for name, data in contents.items()
    ]


def copy_of(folder: Path, listing: Any, number: int, cache: Cache | None) -> ProjectCopy:
    """Return a worker's side of one folder."""
    lists = folder.with_name("lists")
    lists.mkdir(exist_ok=True)
    (lists / f"{number}.list").write_text(json.dumps(listing))
    return ProjectCopy(wire.Sync(number, "project", "scratch", f"{number}.list"), str(folder), str(lists), cache)


class Sender:
    """The session's side of one folder."""

    def __init__(self, folder: Path, listing: Any, number: int = 1, cache: Cache | None = None) -> None:
        self.folder = folder
        self.answers: list[Any] = []
        self.number = number
        self.copy = copy_of(folder, listing, number, cache)
        while self.copy.hash_slice():
            pass
        self.copy.begin(self.answer)

    def answer(self, message: Any, is_over: bool = False) -> None:
        self.answers.append(message)
        if is_over:
            self.copy.close()

    @property
    def lacks(self) -> int:
        """Bits of the contents that are missing."""
        return int.from_bytes(self.answers[0].payload, "little")

    def pieces(self, contents: dict[str, bytes], size: int) -> list[wire.Chunk]:
        """Return the missing contents, in pieces."""
        different = list(dict.fromkeys(contents.values()))
        stream = b"".join(data for number, data in enumerate(different) if self.lacks >> number & 1)
        starts = range(0, len(stream), size)
        return [wire.Chunk(self.number, start, stream[start : start + size]) for start in starts]

    def send(self, contents: dict[str, bytes], size: int = 700) -> None:
        for piece in self.pieces(contents, size):
            self.copy.write(piece, self.answer)


def below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_missing_comes_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "project"
    first = Sender(root, described(CONTENTS))
    assert first.lacks == 0b0111, "of four contents all but the empty one"
    first.send(CONTENTS)
    assert isinstance(first.answers[-1], wire.Synced)
    assert below(root) == CONTENTS
    assert [(root / name).stat().st_mode & 0o777 for name in ("copy.py", "b/c.bin")] == [0o755, 0o600]

    changed = {**CONTENTS, "b/d.bin": b"new", "f": CONTENTS["b/c.bin"]}
    second = Sender(root, described(changed), 2)
    assert second.lacks == 0b0100
    second.send(changed, 1)
    assert below(root) == changed


def test_two_workers_that_share_a_folder_do_not_hurt_each_other(tmp_path: Path) -> None:
    senders = [Sender(tmp_path / "project", described(CONTENTS), number) for number in (1, 2)]
    for pair in zip(*(sender.pieces(CONTENTS, 700) for sender in senders), strict=True):
        for sender, piece in zip(senders, pair, strict=True):
            sender.copy.write(piece, sender.answer)
    assert [type(sender.answers[-1]) for sender in senders] == [wire.Synced, wire.Synced]
    assert below(tmp_path / "project") == CONTENTS


def test_a_cache_is_used_checked_and_bounded(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"), 13_000)
    Sender(tmp_path / "first", described(CONTENTS), 1, cache).send(CONTENTS)
    kept = sorted((tmp_path / "cache").iterdir())
    assert len(kept) == 3
    again = Sender(tmp_path / "second", described(CONTENTS), 2, cache)
    assert again.lacks == 0
    assert below(tmp_path / "second") == CONTENTS

    spoilt = tmp_path / "cache" / hashlib.sha256(CONTENTS["b/c.bin"]).hexdigest()
    spoilt.write_bytes(b"x" * 9000)
    third = Sender(tmp_path / "third", described(CONTENTS), 3, cache)
    assert third.lacks == 0b0010, "what is in the cache is not what it should be"
    third.send(CONTENTS)
    assert below(tmp_path / "third") == CONTENTS
    assert spoilt.read_bytes() == CONTENTS["b/c.bin"]

    os.utime(spoilt, (1, 1))
    more = {"new": os.urandom(5000), "too large": os.urandom(20_000)}
    Sender(tmp_path / "fourth", described(more), 4, cache).send(more)
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= 13_000
    assert not spoilt.exists(), "what was not used for longest goes first"
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="not this user's"):
        Cache(str(tmp_path / "link"))


def test_what_is_no_file_in_a_cache_costs_time_only(tmp_path: Path) -> None:
    """The scripts of all containers can write there."""
    cache = Cache(str(tmp_path / "cache"), 13_000)
    pipe, folder = (tmp_path / "cache" / hashlib.sha256(data).hexdigest() for data in (SAME, CONTENTS["b/c.bin"]))
    os.mkfifo(pipe)
    folder.mkdir()
    size = folder.stat().st_size
    found: list[int] = []
    looking = threading.Thread(
        target=lambda: found.extend([cache.open(pipe.name, len(SAME)), cache.open(folder.name, size)]), daemon=True
    )
    looking.start()
    looking.join(5)
    assert found == [-1, -1]
    sender = Sender(tmp_path / "project", described(CONTENTS), 1, cache)
    sender.send(CONTENTS)
    assert below(tmp_path / "project") == CONTENTS


def test_a_cache_that_is_removed_meanwhile_costs_time_only(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"), 13_000)
    sender = Sender(tmp_path / "project", described(CONTENTS), 1, cache)
    pieces = list(sender.pieces(CONTENTS, 700))
    for piece in pieces[:-1]:
        sender.copy.write(piece, sender.answer)
    shutil.rmtree(tmp_path / "cache")
    sender.copy.write(pieces[-1], sender.answer)
    assert type(sender.answers[-1]) is wire.Synced
    assert below(tmp_path / "project") == CONTENTS


def test_what_changes_while_it_is_sent_or_does_not_fit_is_refused(tmp_path: Path) -> None:
    sender = Sender(tmp_path / "project", described({"a": b"12345", "b": b"67"}))
    with pytest.raises(OSError, match="changed while it was sent"):
        sender.copy.write(wire.Chunk(1, 0, b"12346"), sender.answer)
    sender.copy.close()
    assert below(tmp_path / "project") == {}, "not even a part of it is left"
    sender = Sender(tmp_path / "project", described({"a": b"12345"}), 2)
    for piece in (wire.Chunk(2, 1, b"1"), wire.Chunk(2, 0, b"123456")):
        with pytest.raises(OSError, match="not the next one"):
            sender.copy.write(piece, sender.answer)
    sender.copy.close()


@pytest.mark.parametrize(
    "listing",
    [
        {}, [7], [["a"]], [["a", 1, 2]], [["../a", 0, 0o600, "0" * 64]], [["/a", "b"]], [["a", -1, 0o600, "0" * 64]],
        [["a", 1, 0o4755, "0" * 64]], [["a", 1, 0o600, "short"]], [["a\0", "b"]], [["a", 5]],
    ],
)  # fmt: skip
def test_lists_that_make_no_sense_are_refused(tmp_path: Path, listing: Any) -> None:
    with pytest.raises((OSError, ValueError)):
        Sender(tmp_path / "project", listing)


def test_nothing_leads_out_of_the_folder(tmp_path: Path) -> None:
    Sender(tmp_path / "project", [["out", str(tmp_path)], *described({"e": b""})])
    assert os.readlink(tmp_path / "project" / "out") == str(tmp_path), "links stay what they are"
    with pytest.raises(OSError, match="symbolic links|Not a directory"):
        Sender(tmp_path / "project", described({"out/evil": b""}), 2)
    assert not (tmp_path / "evil").exists()
    Sender(tmp_path / "project", described({"out": b""}), 3)
    assert not (tmp_path / "project" / "out").is_symlink(), "it is replaced, and not followed"


@pytest.mark.parametrize("is_kept", [False, True], ids=["as it comes", "from the cache"])
def test_a_disk_without_room_for_all_copies_of_a_file_is_told_with_that_copy(
    tmp_path: Path, small_disk: Callable[[int], Path], is_kept: bool
) -> None:
    cache = Cache(str(tmp_path / "cache"))
    contents = dict.fromkeys(("first", "second"), os.urandom(50_000))
    if is_kept:
        Sender(tmp_path / "before", described(contents), cache=cache).send(contents)
    disk = small_disk(80)
    copy = copy_of(disk / "project", described(contents), 2, cache)
    with pytest.raises(OSError, match="No space left on device") as raised:
        while copy.hash_slice():
            pass
        copy.begin(lambda *_, **__: None)
        copy.write(wire.Chunk(2, 0, contents["first"]), lambda *_, **__: None)
    copy.close()
    assert raised.value.filename == str(disk / "project" / "second")
    assert below(disk / "project") == {"first": contents["first"]}
