"""A log that cannot be emptied, as somebody has removed it, ends nothing, and says so once."""

from __future__ import annotations

from pathlib import Path

from muster.agent.logfile import RankLog


def test_a_log_that_somebody_has_removed_says_so_once(tmp_path: Path) -> None:
    log = RankLog(str(tmp_path / "log"), cap=1000)
    log.append(b"x" * 2000 + b"\n")
    (tmp_path / "log").unlink()
    for _ in range(20):  # looks of the agent's, ten a second; nothing is printed meanwhile
        log.rotate_when_full(wait_for_reader=False)
    said = log.read().count("cannot be emptied: No such file or directory")
    log.close()
    assert said == 1
