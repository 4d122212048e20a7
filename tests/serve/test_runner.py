"""Code of served workers: run in IPython, whose failures count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from muster.workbench.workers import IPYTHON_RUNNER


def run(path: Path, code: str) -> tuple[int, str]:
    """The exit status and the output of a file with that code."""
    path.write_text(code)
    command = [sys.executable, "-u", "-W", "error", str(IPYTHON_RUNNER), str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=path.parent)
    return done.returncode, done.stdout


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path / "train.py"


def test_commands_magics_and_top_level_await_work(file: Path) -> None:
    code = (
        "word = 'hello'\n!echo {word} $word\n%env NAME=value\n!echo $NAME | tr a-z A-Z\nimport asyncio\n"
        "await asyncio.sleep(0)\nlines = !printf '1\\n2'\nprint(lines)\n"
    )
    assert run(file, code) == (0, "hello hello\nenv: NAME=value\nVALUE\n['1', '2']\n")


def test_a_file_is_the_main_program(file: Path) -> None:
    (file.parent / "beside.py").write_text("value = 5")
    code = "import sys, beside\nprint(__name__, __file__, sys.argv, beside.value)\nassert __name__ in sys.modules"
    assert run(file, code) == (0, f"__main__ {file} ['{file}'] 5\n")


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("!exit 7", 7, "CommandFailed: !exit 7 exited with status 7"),
        ("!kill -9 $$", 137, "CommandFailed: !kill -9 $$ exited with status -9"),
        ("command = 'no-such-command'\n!{command} now", 127, "!no-such-command now exited with status 127"),
        ("%%bash\nexit 3", 1, "returned non-zero exit status 3"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("x = (", 1, "SyntaxError"),
        ("%no_such_magic", 1, "UsageError"),
        ("import sys\nsys.exit(4)", 4, ""),
        ("import sys\nsys.exit('the reason')", 1, "the reason"),
        ("exit(5)", 5, ""),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
    ],
)
def test_what_fails_ends_it_with_a_status_and_says_why(file: Path, code: str, status: int, said: str) -> None:
    found, output = run(file, f"print('before')\n{code}\nprint('after')" if "%%" not in code else code)
    assert found == status
    assert said in output
    assert "after" not in output.splitlines()


def test_a_failure_that_is_meant_is_none(file: Path) -> None:
    assert run(file, "!false || true\nprint('after')") == (0, "after\n")


def test_a_traceback_names_the_file_and_its_lines(file: Path) -> None:
    _, output = run(file, "def f():\n    raise ValueError('why')\n\n!true\nf()\n")
    assert f"File {file}:5" in output
    assert f"File {file}:2, in f()" in output
    assert "ValueError: why" in output
