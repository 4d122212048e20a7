"""Runs are shown, or are at least run, whatever stands in the place of standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys
import muster

class OnlyWrites:
    def __init__(self, file):
        self.write = file.write

class Fails:
    def write(self, text):
        raise RuntimeError("of the user's")

    flush = write

class NoQuestions(OnlyWrites):
    isatty = False

def train():
    return "trained"

if __name__ == "__main__":
    out = sys.stdout
    {change}
    run = muster.run_cluster(1, strategy="processes", worker_script=train)
    print(run.values, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("change", "is_shown"),
    [
        ("sys.stdout = OnlyWrites(out)", True),
        ("sys.stdout = NoQuestions(out)", True),
        ("sys.stdout = Fails()", False),
        ("sys.stdout = None", False),
        ("out.close()", False),
    ],
)
def test_a_run_needs_no_standard_output(tmp_path: Path, change: str, is_shown: bool) -> None:
    (tmp_path / "session.py").write_text(RUN.format(change=change))
    environment = {**os.environ, "MUSTER_DASHBOARD": ""}
    command = [sys.executable, "session.py"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "['trained']" in ended.stderr, ended.stderr
    assert ("succeeded after" in ended.stdout) == is_shown
