"""Kinds of worker_script, and what is refused before anything starts."""

from __future__ import annotations

import functools
import json
import os
import pickle
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from muster.checks.interpreter import check, check_answers, probe
from muster.checks.planning import describe_job
from muster.checks.script import make_script
from muster.errors import InterpreterError, JobError, ScriptError
from muster.job import Job
from muster.run.check import check as check_request
from muster.run.request import RunRequest

from tests.plain import Plain


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


def test_the_source_that_goes_along_is_that_of_the_functions_code_as_it_is_now(tmp_path: Path) -> None:
    """It may be edited and loaded anew between two runs of a notebook; nothing else is sent, whatever it names."""
    file = tmp_path / "training.py"
    for value in ("1", "20"):
        file.write_text(f"def train(path):\n    return {value}\n")
        space = runpy.run_path(str(file), run_name="__main__")
        script = make_script(functools.partial(space["train"], json.__file__))
        assert pickle.loads(script.sources) == {str(file): ("", file.read_text())}


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


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("models/deep.py", "the module's name, models.deep or the file without --module, models/deep.py"),
        ("./train.py", "the module's name, train or the file without --module, train.py"),
        ("models/absent", "the module's name, models.absent"),
    ],
)
def test_a_path_given_as_a_module_names_the_module(folder: Path, given: str, advice: str) -> None:
    (folder / "models").mkdir()
    (folder / "models" / "deep.py").write_text("pass\n")
    with pytest.raises(ScriptError, match="neither a file nor a module") as caught:
        make_script(given, module=True)
    assert caught.value.advice == advice


@pytest.mark.parametrize("given", ["train.py", "train.main", "train.main.deeper"])
def test_a_script_is_not_run_to_look_for_a_module_in_it(folder: Path, given: str) -> None:
    (folder / "train.py").write_text(
        "open('was-run', 'w').close()\nimport argparse; argparse.ArgumentParser().error('')\n"
    )
    with pytest.raises(ScriptError, match=f"neither a file nor a module '{given}'"):
        make_script(given, module=True)
    assert not (folder / "was-run").exists()


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        ("processes", ["RANK", "TMPDIR", "MUSTER_WORKER"]),
        ("horovod", ["TMPDIR", "MUSTER_WORKER", "HOROVOD_RANK"]),
    ],
)
def test_environment_variables_without_effect_are_told_by_name(folder: Path, strategy: str, names: list[str]) -> None:
    given = {"RANK": "7", "TMPDIR": "/x", "MUSTER_WORKER": "me", "HOROVOD_RANK": "1", "LR": "0.1", "PYTHONPATH": "/y"}
    if strategy == "horovod":
        pytest.importorskip("horovod")
    remarks = check_request(RunRequest(script="train.py", n_workers=2, env=given, strategy=strategy)).without_effect()
    assert [remark.split()[2] for remark in remarks] == names
    assert "/x" not in str(remarks)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("tarin", "train.py"),
        ("Train.py", "train.py"),
        ("deep.py", "models/vision/deep.py"),
        ("deep", "models/vision/deep.py"),
        ("scripts/deep.py", "models/vision/deep.py"),
        ("models/vision/dep.py", "models/vision/deep.py"),
        ("models/visoin/dep.py", "models/vision/deep.py"),
        ("above/tutorial.py", "../above/tutorial.py"),
        ("nothing_like_it.py", None),
    ],
)
def test_a_wrong_path_names_the_file_that_is_near(folder: Path, given: str, meant: str | None) -> None:
    (folder / "models" / "vision").mkdir(parents=True)
    (folder / "models" / "vision" / "deep.py").write_text("pass\n")
    (folder.parent / "above").mkdir(exist_ok=True)
    (folder.parent / "above" / "tutorial.py").write_text("pass\n")
    with pytest.raises(ScriptError) as caught:
        make_script(given)
    assert caught.value.advice == (f"there is {Path(os.path.abspath(folder / meant))}" if meant else None)


def test_a_notebook_that_is_not_there_is_a_file(folder: Path) -> None:
    (folder / "train.ipynb").write_text("{}")
    for given, advice in (("trian.ipynb", f"there is {folder / 'train.ipynb'}"), ("other.ipynb", None)):
        with pytest.raises(ScriptError, match=f"{given} does not exist") as caught:
            make_script(given)
        assert caught.value.advice == advice


@pytest.mark.parametrize(("words", "advice"), [
    (["train.py", "--epochs", "3"], """worker_script="train.py", args=['--epochs', '3']"""),
    (["python3", "train.py"], 'worker_script="train.py"'),
])  # fmt: skip
def test_a_command_line_in_words_is_taken_apart(words: list[str], advice: str) -> None:
    with pytest.raises(ScriptError, match="worker_script is a list") as caught:
        make_script(cast(Any, words))
    assert caught.value.advice == advice


def test_a_url_is_not_fetched() -> None:
    with pytest.raises(ScriptError, match="is a URL, and nothing is fetched"):
        make_script("https://example.org/train.py")


def rated(rate: float = 0.1) -> float:
    return rate


def reads_argv(rate: float = 0.1) -> list[str]:
    return sys.argv


@pytest.mark.parametrize(("options", "is_told"), [
    ({"script": rated, "args": [0.1]}, True), ({"script": rated}, False), ({"script": reads_argv, "args": [1]}, False),
    ({"script": rated, "args": [0.1], "kwargs": {"rate": 1}}, False),
    ({"script": functools.partial(rated, rate=1), "args": [0.1]}, False),
    ({"script": test_a_url_is_not_fetched, "args": [0.1]}, False),
])  # fmt: skip
def test_args_of_a_function_with_parameters_are_told_to_give_it_none(options: dict[str, Any], is_told: bool) -> None:
    remarks = " ".join(check_request(RunRequest(**options, strategy="processes")).remarks())
    assert ("rated is given none of its arguments (rate)" in remarks) == is_told
    assert ("kwargs={'rate': ...}" in remarks) == is_told


def test_servers_without_script_and_parameter_server_are_told_to_be_idle() -> None:
    remarks = " ".join(check_request(RunRequest(n_workers=2)).remarks())
    assert "no script and no parameter server: 2 idle servers will wait" in remarks
    assert check_request(RunRequest(n_workers=2, n_ps=1)).without_effect() == []
    assert "idle" not in " ".join(check_request(RunRequest(n_workers=2, n_ps=1)).remarks())


def test_what_does_not_compile_is_refused_with_its_line(folder: Path) -> None:
    (folder / "broken.py").write_text("x = 1\nif x\n    pass\n")
    with pytest.raises(ScriptError, match="line 2"):
        make_script("broken.py")


def test_a_function_with_the_wrong_arguments_is_refused() -> None:
    with pytest.raises(ScriptError, match="takes 1 argument that nobody gives it: x") as of_one:
        make_script(lambda x: x)
    assert of_one.value.advice == "kwargs={'x': ...}; what args= has is in sys.argv"
    with pytest.raises(ScriptError) as of_two:
        make_script(lambda cluster, server: None)
    assert "run(cluster, server, task_index)" in str(of_two.value.advice)  # it may be meant for parameter servers


def test_interpreters_are_asked_what_they_are_and_have() -> None:
    interpreter = probe(sys.executable, ["json", "no_such_package"])
    assert interpreter.version == sys.version_info[:3]
    assert interpreter.has("json")
    assert not interpreter.has("no_such_package")


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("tensorflow", "on gpu1 {python} -m pip install tensorflow, or python= another interpreter"),
        ("horovod", "on gpu1 in a clone of Muster's repository, which has the script that compiles Horovod: {python}"),
    ],
)
def test_what_another_machine_lacks_is_installed_as_it_can_be_there(missing: str, advice: str) -> None:
    answer = json.dumps({"version": sys.version_info[:3], "packages": {missing: None}})
    with pytest.raises(InterpreterError, match=f"on gpu1 has no {missing}") as raised:
        check_answers(sys.executable, Job(None, 1), {"gpu1": (0, answer)})
    assert advice.format(python=sys.executable) in str(raised.value)


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
    path.write_text("x = 1\ndef f(:\n")
    with pytest.raises(ScriptError) as caught:
        make_script(path)
    assert caught.value.details == "    def f(:\n          ^"


@pytest.mark.parametrize(
    ("script", "advice"),
    [
        ("train.py --epochs 3", "\"train.py\" alone, and the rest as args=['--epochs', '3']"),
        ("python3 train.py", '"train.py" alone'),
        ({"loss": 1}, "the function without calling it"),
    ],
)
def test_what_people_give_in_place_of_a_script(
    script: Any, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("pass\n")
    with pytest.raises(ScriptError) as caught:
        make_script(script)
    assert advice in str(caught.value.advice)


REFUSED_FILES = [
    ("a.ipynb", b'{"cells": [], "metadata": {}, "nbformat": 4}', "is a notebook", "nbconvert --to script"),
    ("start.sh", b"#!/bin/sh\necho up\n", "may not be executed", "chmod +x"),
    ("start", b"\x7fELF\x02\x01\x01\0\0", "may not be executed", "chmod +x"),
    ("start.sh", b"echo up\n", "may not be executed", "chmod +x"),
    ("config.json", b"{}", "is no Python file", "chmod +x"),
    ("latin.py", "x = 'caf\xe9'\n".encode("latin-1"), "is not UTF-8", "coding: latin-1"),
    ("wide.py", "x = 1\n".encode("utf-16"), "is not UTF-8", "save it as UTF-8"),
    ("odd.py", b"# -*- coding: no-such-code -*-\nx = 1\n", "unknown encoding", "save it as UTF-8"),
    ("empty.py", b"", "has nothing to run", "save"),
    ("notes.py", b"# to be written\n\n", "has nothing to run", "save"),
]


@pytest.mark.parametrize(("name", "content", "words", "advice"), REFUSED_FILES)
def test_files_that_no_worker_could_run_are_refused_with_what_to_do(
    folder: Path, name: str, content: bytes, words: str, advice: str
) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ScriptError) as caught:
        make_script(f"./{name}")
    assert words in caught.value.message
    assert name in caught.value.message
    assert advice in str(caught.value)


def test_a_folder_is_refused_with_the_scripts_that_are_in_it(folder: Path) -> None:
    with pytest.raises(ScriptError, match="is a folder") as caught:
        make_script(folder)
    assert "train.py" in str(caught.value)


def test_what_is_no_script_at_all_is_refused_by_its_type() -> None:
    for given in (5, ["train.py"], {"script": "train.py"}, b"train.py"):
        with pytest.raises(ScriptError, match=f"worker_script is .*{type(given).__name__}"):
            make_script(given)  # type: ignore[arg-type]


def train(where: str, rate: float = 1.0) -> str:
    return f"{where} {rate}"


@functools.lru_cache
def cached(where: str) -> str:
    return where


class Trainer:
    """Its representation gives its password away, as that of a dataclass would."""

    def __init__(self, password: str = "secret") -> None:
        self.password = password

    def __repr__(self) -> str:
        return f"Trainer({self.password!r})"

    def __call__(self) -> str:
        return "called"

    def train(self) -> str:
        return "trained"

    def fails(self, missing: int) -> None:
        raise NotImplementedError


class Step(functools.partial):  # type: ignore[type-arg]
    """A kind of partial of one's own."""


FUNCTIONS: list[tuple[Callable[..., Any], str]] = [
    (functools.partial(train, "secret", rate=0.5), "train"),
    (functools.partial(functools.partial(train, "secret"), rate=0.5), "train"),
    (Step(Step(train, "secret"), rate=0.5), "train"),
    (functools.partial(Trainer("secret").train), "Trainer.train"),
    (functools.partial(Trainer("secret")), "Trainer"),
    (functools.partial(cached, "secret"), "cached"),
    (Trainer("secret"), "Trainer"),
    (Trainer("secret").train, "Trainer.train"),
    (lambda: "secret", "lambda"),
]


@pytest.mark.parametrize(("function", "name"), FUNCTIONS)
def test_a_function_is_known_by_its_name_without_what_it_is_called_with(
    function: Callable[..., Any], name: str
) -> None:
    script = make_script(function)
    assert script.target.replace("<lambda>", "lambda").endswith(name)
    assert script.name == name.rpartition(".")[2]
    assert "secret" not in f"{script} {describe_job(Job(script, 1), Plain())} {RunRequest(function)}"


@pytest.mark.parametrize(
    "function",
    [
        Trainer("secret").fails,
        functools.partial(cast(Any, train), "secret", "of", "too", "many"),
        functools.partial(cast(Any, train), "secret", lock=threading.Lock()),
        functools.partial(cast(Any, train), "secret", threading.Lock()),
    ],
)
def test_a_function_is_refused_without_what_it_is_called_with(function: Callable[..., Any]) -> None:
    with pytest.raises(ScriptError) as caught:
        make_script(function)
    assert "secret" not in str(caught.value)


def test_functions_that_would_only_be_promised_are_refused() -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    for function, word in ((coroutine, "asyncio.run"), (generator, "loop over")):
        with pytest.raises(ScriptError, match=word):
            make_script(function)


def test_a_keyword_without_a_value_is_missed_before_the_start() -> None:
    def needs(*, rate: float) -> None: ...

    with pytest.raises(ScriptError, match="rate") as caught:
        make_script(needs)
    assert "kwargs=" in str(caught.value)


def test_a_function_takes_keyword_arguments() -> None:
    script = make_script(train, kwargs={"where": "secret", "rate": 0.5})
    assert pickle.loads(script.pickled)() == "secret 0.5"
    assert "secret" not in repr(script)


@pytest.mark.parametrize(
    ("given", "kwargs", "words"),
    [
        (train, {"where": "x", "rat": 1}, "no argument 'rat'.*\nTry: rate"),
        (train, {"rate": 1}, "where"),
        (train, {"where": "x", 5: 1}, "names"),
        (train, ["x"], "dict"),
        (
            "train.py",
            {"rate": 1},
            "kwargs are for a function, and train.py is a file or a module.\nTry: args=.*'--rate', '...'",
        ),
    ],
)
def test_keyword_arguments_that_do_not_fit_are_refused(folder: Path, given: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(ScriptError, match=words):
        make_script(given, kwargs=kwargs)


def test_the_name_of_a_script_is_short(folder: Path) -> None:
    assert make_script("train.py").name == "train"
    assert make_script("json.tool").name == "tool"


def test_a_link_to_what_is_gone_is_not_proposed_in_its_own_place(folder: Path) -> None:
    (folder / "dead.py").symlink_to(folder / "gone.py")
    with pytest.raises(ScriptError, match="does not exist") as caught:
        make_script("dead.py")
    assert caught.value.advice is None or "dead.py" not in caught.value.advice


def test_a_package_is_run_by_its_main_file_as_python_does_it(folder: Path) -> None:
    package = folder / "trained_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    with pytest.raises(ScriptError, match="package trained_package has no __main__.py"):
        make_script("trained_package", module=True)
    (package / "__main__.py").write_text("print(1)\n")
    assert make_script("trained_package", module=True).kind == "module"
    (package / "__init__.py").write_text("def run(cluster, server, task_index): ...\n")
    assert make_script("trained_package", module=True).is_task


def test_a_module_that_is_not_found_is_looked_for_by_its_whole_path(folder: Path) -> None:
    with pytest.raises(ScriptError, match="neither a file nor a module") as caught:
        make_script("absent_package.deep", module=True)
    assert caught.value.advice == "run it from the folder that has absent_package/deep.py, or give the file's path"
