"""Nothing that a script or a host has said steers a terminal by an error, and no record leads to a log elsewhere."""

from __future__ import annotations

from pathlib import Path

from muster.errors import RunFailed
from muster.records.result import Result

STEERS = "\x1b[2J\x1b]0;title\x07\u202e\x9b31m"


def test_nothing_in_an_error_steers_a_terminal() -> None:
    error = RunFailed(f"it {STEERS}failed", advice=f"try {STEERS}again", details=f"Traceback\n{STEERS}ValueError: no")
    assert str(error) == "it failed\n\nTraceback\nValueError: no\n\nTry: try again"


def test_the_log_of_a_recorded_error_is_in_its_run(tmp_path: Path) -> None:
    for worker in ("../../secret", "/etc/passwd", f"w{STEERS}", ".."):
        told = {"status": "failed", "error": "RunFailed", "reason": "no", "worker": worker}
        error = Result.from_dict(told, "run", tmp_path).error
        assert error is not None
        assert error.log == tmp_path / "logs"
        assert "\x1b" not in f"{error} {error.worker}"
