"""What may be given as worker_script, and what is refused before anything starts."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from muster.checks.interpreter import check, probe
from muster.checks.script import make_script
from muster.errors import InterpreterError, JobError, ScriptError
from muster.job import Job


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "task.py").write_text("def run(cluster, server, task_index):\n    pass\n")
    return tmp_path


@pytest.mark.parametrize("given", ["train.py", "train", "./train.py"])
def test_a_file_may_be_given_with_and_without_its_ending(folder: Path, given: str) -> None:
    script = make_script(given)
    assert (script.kind, Path(script.target), script.is_task) == ("file", folder / "train.py", False)


def test_a_top_level_run_makes_a_task(folder: Path) -> None:
    assert make_script("task.py").is_task
    assert make_script("task", module=True).is_task


def test_a_module_is_found_where_there_is_no_file() -> None:
    script = make_script("json.tool")
    assert (script.kind, script.target) == ("module", "json.tool")


def test_a_module_is_looked_up_where_it_will_run(folder: Path, tmp_path: Path) -> None:
    site, python = tmp_path / "site", tmp_path / "python"
    site.mkdir()
    (site / "only_there.py").write_text("def run(cluster, server, task_index): pass\n")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')  # -S: no installed packages
    python.chmod(0o755)

    assert make_script("only_there", python=python).is_task
    assert make_script("task", python=python).is_task, "of the working directory"
    with pytest.raises(ScriptError, match="neither a file nor a module 'only_there'"):
        make_script("only_there")
    with pytest.raises(ScriptError, match=f"neither a file nor a module 'click' for {python}"):
        make_script("click", python=python)


def test_functions_are_pickled_by_value() -> None:
    script = make_script(lambda: 42)
    assert script.kind == "function"
    assert script.pickled

    def run(cluster: Any, server: Any, task_index: int) -> None: ...

    assert make_script(run).is_task


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("missing.py", "does not exist"),
        ("tain.py", "there is"),  # advice names train.py
        ("no_such_module", "neither a file nor a module"),
        ("", "empty"),
        (".", "is a folder"),
    ],
)
def test_what_is_not_there_is_refused(folder: Path, given: str, words: str) -> None:
    with pytest.raises(ScriptError) as caught:
        make_script(given)
    assert words in str(caught.value)


def test_what_does_not_compile_is_refused_with_its_line(folder: Path) -> None:
    (folder / "broken.py").write_text("x = 1\nif x\n    pass\n")
    with pytest.raises(ScriptError, match="line 2"):
        make_script("broken.py")


def test_what_cannot_be_pickled_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(ScriptError, match="cannot be sent"):
        make_script(lambda: lock.acquire())


def test_a_function_with_the_wrong_arguments_is_refused() -> None:
    with pytest.raises(ScriptError, match="takes 1 arguments"):
        make_script(lambda x: x)


def test_interpreters_are_asked_what_they_are_and_have() -> None:
    interpreter = probe(sys.executable, ["json", "no_such_package"])
    assert interpreter.version == sys.version_info[:3]
    assert interpreter.has("json")
    assert not interpreter.has("no_such_package")


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InterpreterError, match="no interpreter"):
        probe(str(tmp_path / "python"))
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho this is no python >&2; exit 3\n")
    fake.chmod(0o755)
    with pytest.raises(InterpreterError, match="this is no python"):
        probe(str(fake))


def test_a_missing_package_is_named_before_anything_starts() -> None:
    with pytest.raises(InterpreterError, match="has no no_such_package"):
        check(Job(None, 1), ["no_such_package"])


def test_a_function_does_not_cross_python_versions(other_python: str) -> None:
    with pytest.raises(InterpreterError, match="cannot be sent"):
        check(Job(make_script(lambda: 1), 1, python=other_python), [])


def test_job_errors_are_value_errors() -> None:
    assert issubclass(JobError, ValueError)


def test_what_only_the_compiler_refuses_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("print('up')\nreturn 1\n")
    with pytest.raises(ScriptError, match=r"train\.py, line 2, does not compile: 'return' outside function"):
        make_script(path)
