"""Logs of a rank whose disk is full, or which somebody has removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from muster.agent.logfile import RankLog


class Full(RankLog):
    """A log whose disk takes nothing until it is told to."""

    takes = False

    def append(self, data: bytes) -> bool:
        return super().append(data) if self.takes else False


def test_lines_that_a_full_disk_does_not_take_wait(tmp_path: Path) -> None:
    log = Full(str(tmp_path / "worker-0.log"), 1 << 24)
    rank = RankLog(str(tmp_path / "ranks" / "rank-0.log"), 1 << 24)
    lines = b"".join(b"line %06d\n" % number for number in range(50_000))
    os.write(rank.descriptor, lines)
    for _ in range(3):
        rank.copy_to(log)
    log.takes = True
    rank.copy_to(log, is_over=True)
    assert (tmp_path / "worker-0.log").read_bytes() == lines
    rank.close()
    log.close()


def test_a_log_that_somebody_has_removed_says_so_once(tmp_path: Path) -> None:
    log = RankLog(str(tmp_path / "log"), cap=1000)
    log.append(b"x" * 2000 + b"\n")
    (tmp_path / "log").unlink()
    for _ in range(20):  # looks of the agent's, ten a second
        log.rotate_when_full(wait_for_reader=False)
        log.rotate_when_full(wait_for_reader=False)  # nothing has been printed
        log.append(b"more\n")
    said = log.read().count("cannot be emptied: No such file or directory")
    log.close()
    assert said == 1


def test_a_remark_is_a_line_of_its_own_where_a_process_has_printed_half_a_line(tmp_path: Path) -> None:
    log = RankLog(str(tmp_path / "log"), cap=1000)
    os.write(log.descriptor, b"half a line")
    log.write("first")
    log.write("second")
    shown = log.read()
    log.close()
    assert shown == "half a line\n[muster] first\n[muster] second\n"


def test_a_remark_on_a_disk_that_fails_is_shown_and_nothing_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    log = RankLog(str(tmp_path / "log"), cap=1000)
    os.write(log.descriptor, b"half a line")
    with monkeypatch.context() as broken:
        for name in ("pread", "write", "fstat"):
            broken.setattr(os, name, fail)
        log.write("first")
    shown = log.read() + log.read()
    log.close()
    assert "[muster] first\n" in shown


def test_a_remark_that_is_shown_alone_breaks_the_line_that_is_shown(tmp_path: Path) -> None:
    log = Full(str(tmp_path / "log"), cap=1000)
    os.write(log.descriptor, b"half a line")
    shown = log.read()
    log.write("first")
    log.write("second")
    shown += log.read() + log.read()
    log.close()
    assert shown == "half a line\n[muster] first\n[muster] second\n"


def test_a_line_whose_end_is_lost_is_not_joined_with_another(tmp_path: Path) -> None:
    log = RankLog(str(tmp_path / "log"), cap=10)
    os.write(log.descriptor, b"half a line")
    shown = log.read()
    os.write(log.descriptor, b" of many words that are not read\n" * 2)
    log.rotate_when_full(wait_for_reader=True)
    os.write(log.descriptor, b"another line\n")
    while text := log.read():
        shown += text
    log.close()
    first, *remarks, last = shown.splitlines()
    assert (first, last) == ("half a line", "another line")
    assert {remark.partition(" ")[0] for remark in remarks} == {"[muster]"}
