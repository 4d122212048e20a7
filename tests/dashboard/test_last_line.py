"""The last line of a worker's output that its row shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from muster.dashboard.last_line import LastLine
from muster.dashboard.replay import replay

from tests.dashboard.recording import record

REPORT = """step 100
Fatal Python error: Segmentation fault

Thread 0x00007f5556f236c0 (most recent call first):
  File "/home/ann/load.py", line 4 in fetch
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f55583bdb80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/tmp/muster-39redykq/lib/muster/training/progress.py", line 12 in progress
  File "/home/ann/train.py", line 3 in step
  File "/home/ann/train.py", line 6 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "/tmp/muster-39redykq/lib/runner.py", line 154 in run_program
  File "/tmp/muster-39redykq/lib/runner.py", line 591 in <module>

Extension modules: numpy.core._multiarray_umath, numpy.linalg._umath_linalg (total: 2)
"""


@pytest.mark.parametrize("size", [1, 7, 100, 10000])
def test_of_a_crash_it_is_the_innermost_call_of_the_script(size: int) -> None:
    line = LastLine()
    for start in range(0, len(REPORT), size):
        line.read(REPORT[start : start + size])
    assert line.shown == 'File "/home/ann/train.py", line 3 in step'
    assert line.read("restarted\n") == "restarted"


def test_a_long_report_is_read_from_its_beginning() -> None:
    outer = '  File "/tmp/muster-39redykq/lib/runner.py", line 591 in <module>\n'
    assert LastLine().read(REPORT.replace(outer, outer * 100)) == 'File "/home/ann/train.py", line 3 in step'


def test_of_a_crash_in_compiled_code_alone_it_is_what_happened() -> None:
    assert LastLine().read(REPORT.replace("Current thread", "Thread")) == "Fatal Python error: Segmentation fault"


def test_lines_that_are_indented_are_shown_where_nothing_has_crashed() -> None:
    assert LastLine().read('Traceback:\n  File "a.py", line 1, in f\n') == 'File "a.py", line 1, in f'


def test_a_recorded_run_shows_it_too(tmp_path: Path) -> None:
    calls = '  File "/tmp/muster-39redykq/lib/runner.py", line 591 in <module>\n'
    report = REPORT.replace(calls, calls * 30)
    run = record(tmp_path, text=f"print({report!r})", n_workers=1)
    assert replay(run).workers["worker-0"].last_line == 'File "/home/ann/train.py", line 3 in step'
