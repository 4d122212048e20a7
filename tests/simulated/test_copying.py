"""Copies between the session and workers that share its files: nothing in them holds it up or fills the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from muster.run.copying import copy

pytestmark = pytest.mark.timeout(60)


def test_files_and_folders_are_copied_with_their_permissions_and_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "a\nb").write_bytes(b"x" * 3_000_000)
    (source / "inner" / "a\nb").chmod(0o750)
    (source / "link").symlink_to("inner")
    target = copy(source, tmp_path / "new" / "target")
    assert (target / "inner" / "a\nb").stat().st_mode & 0o777 == 0o750
    assert (target / "link").readlink() == Path("inner")
    copy(source / "inner" / "a\nb", target / "inner" / "a\nb")
    copy(source / "inner" / "a\nb", target)
    assert (target / "a\nb").read_bytes() == b"x" * 3_000_000
    assert copy(target, target) == target


@pytest.mark.parametrize("odd", ["pipe", "device", "huge"])
def test_what_is_no_file_or_has_no_room_is_refused_and_the_others_of_its_folder_come(tmp_path: Path, odd: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    if odd == "pipe":
        os.mkfifo(source / "odd")
    elif odd == "device":
        (source / "odd").symlink_to("/dev/zero")
    else:
        with (source / "odd").open("wb") as file:
            file.truncate(1 << 43)  # it takes no room
    (source / "a file").write_text("a file")
    with pytest.raises(OSError, match="no regular file|room for"):
        copy(source / "odd", tmp_path / "odd")
    assert not (tmp_path / "odd").exists()
    if odd == "device":  # which stays a link
        copy(source, tmp_path / "target")
    else:
        with pytest.raises(OSError, match=r"source/odd: .*(no regular file|room for)"):
            copy(source, tmp_path / "target")
    assert (tmp_path / "target" / "a file").read_text() == "a file"


@pytest.mark.parametrize("is_device", [True, False])
def test_what_is_in_the_place_of_a_copy_and_is_no_file_is_not_written_to(tmp_path: Path, is_device: bool) -> None:
    (tmp_path / "a file").write_text("a file")
    place = tmp_path / "place"
    place.symlink_to("/dev/null") if is_device else os.mkfifo(place)
    with pytest.raises(OSError, match="no regular file"):
        copy(tmp_path / "a file", place)


def test_nothing_is_copied_onto_itself(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a file").write_text("a file")
    copy(source / "a file", source)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "a file").symlink_to("../source/a file")
    copy(source, tmp_path / "linked")
    copy(source / "a file", tmp_path / "linked")
    assert (source / "a file").read_text() == "a file"
    for _ in range(2):
        copy(source, source / "inner" / "most")
        assert sorted(os.listdir(source / "inner" / "most")) == ["a file", "inner"]
        assert os.listdir(source / "inner" / "most" / "inner") == []


def test_a_folder_is_copied_again_with_what_its_links_name_by_then(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.h5").write_text(str(number))
        (source / "latest").unlink(missing_ok=True)
        (source / "latest").symlink_to(f"{number}.h5")
        assert copy(source, tmp_path / "target") / "latest" == tmp_path / "target" / "latest"
        assert (tmp_path / "target" / "latest").read_text() == str(number)
        assert (tmp_path / "target" / "latest").is_symlink()


def test_what_a_link_of_an_earlier_copy_names_is_left_alone(tmp_path: Path) -> None:
    source, target, other = tmp_path / "source", tmp_path / "target", tmp_path / "other"
    source.mkdir()
    other.mkdir()
    (source / "ckpt-1").write_text("one")
    (source / "latest").symlink_to("ckpt-1")
    (source / "folder").symlink_to(other)
    copy(source, target)
    for name in ("latest", "folder"):
        (source / name).unlink()
    (source / "latest").write_text("two")
    (source / "folder").mkdir()
    (source / "folder" / "a file").touch()
    copy(source, target)
    assert [(target / name).read_text() for name in ("ckpt-1", "latest")] == ["one", "two"]
    assert (os.listdir(other), os.listdir(target / "folder")) == ([], ["a file"])
    (source / "ckpt-1").unlink()
    (source / "ckpt-1").symlink_to("latest")
    copy(source, target)
    assert (target / "ckpt-1").is_symlink()
