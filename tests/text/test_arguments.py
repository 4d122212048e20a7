"""Texts that name arguments: in Python's words, in those of the command line, and in records."""

import copy
import json
import pickle
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from muster.commands.main import main
from muster.commands.run import as_options
from muster.errors import JobError, MusterError, RunTimeout
from muster.events import Event, EventKind
from muster.records import folders, lookup, runs
from muster.records.result import Result
from muster.text.arguments import Argument, ArgumentText, Command, listed

ADVICE = ArgumentText(
    "a longer ", Argument("timeout_seconds"), ", ", Argument("nvidia_gpu", 2), " or ", Argument("python", "")
)


@pytest.mark.parametrize(
    ("text", "python", "options"),
    [
        (ADVICE, "a longer timeout_seconds, nvidia_gpu=2 or python=", "a longer --timeout, --gpus 2 or --python"),
        (ArgumentText(Argument("memory", 6.0)), "memory=6", "--memory 6"),
        (ArgumentText(Argument("strategy", "a b")), 'strategy="a b"', "--strategy 'a b'"),
        (ArgumentText(Argument("worker_script", ""), " a file"), "worker_script= a file", "SCRIPT a file"),
        (ArgumentText(Argument("observers", "")), "observers=", "observers="),  # nothing that a command line can say
        (ArgumentText("its ", listed(["slots", "mpi_args"])), "its slots, mpi_args", "its --slots, --mpi-args"),
        (ArgumentText("see ", Command("f(1)", "f 1"), "; ", Argument("n_ps")), "see f(1); n_ps", "see f 1; --ps"),
        ("a text with memory=4 in it", "a text with memory=4 in it", "a text with memory=4 in it"),
    ],
)  # fmt: skip
def test_a_text_is_written_for_python_and_for_the_command_line(text: str, python: str, options: str) -> None:
    assert (str(text), as_options(text)) == (python, options)


def test_an_error_keeps_the_arguments_of_its_message_and_advice() -> None:
    error = JobError(ArgumentText(Argument("n_ps"), " is\x1b[2J 0."), advice=ADVICE)
    assert str(error) == f"n_ps is 0.\nTry: {ADVICE}"
    assert (as_options(error.message), as_options(error.advice or "")) == ("--ps is 0.", as_options(ADVICE))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda text: pickle.loads(pickle.dumps(text))])
def test_copies_name_the_same_arguments(again: Callable[[ArgumentText], ArgumentText]) -> None:
    assert again(ADVICE).parts == ADVICE.parts


def test_commands_are_kept_in_records() -> None:
    text = ArgumentText("see ", Command("run.stacks()", "muster stacks ID"), " and ", Argument("n_ps", 1))
    assert ArgumentText.from_json(json.loads(json.dumps(text.to_json()))).parts == text.parts


def record(error: MusterError, home: Path, monkeypatch: pytest.MonkeyPatch) -> runs.Run:
    """A recorded run that ended with this error."""
    monkeypatch.setenv("MUSTER_HOME", str(home))
    folder = folders.make_run_folder("train")
    started = Event(EventKind.RUN_REQUESTED, data={"job": {"name": "train"}, "run": folder.name})
    (folder / "events.jsonl").write_text(started.to_json() + "\n")
    (folder / "result.json").write_text(json.dumps(Result("failed", folder.name, folder, error=error).to_dict()))
    return lookup.open_run(folder.name)


def test_what_is_recorded_is_told_in_the_words_of_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record(RunTimeout("It took too long.", advice=ADVICE), tmp_path, monkeypatch)
    assert f"Try: {ADVICE}" in run.explain()
    for command in ("explain", "show"):
        told = CliRunner().invoke(main, [command, run.run_id])
        assert "Try: a longer --timeout, --gpus 2 or --python" in told.output, (shlex.join([command, run.run_id]), told)
    told = CliRunner().invoke(main, ["explain", run.run_id, "--json"])
    assert json.loads(told.output)["advice"] == as_options(ADVICE)


def test_advice_that_names_no_argument_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record(RunTimeout("It took too long.", advice="say memory=4 and so on"), tmp_path, monkeypatch)
    assert "Try: say memory=4 and so on" in CliRunner().invoke(main, ["explain", run.run_id]).output
