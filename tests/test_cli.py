"""The ``muster`` command. Runs are real ones, of plain Python programs (``tests.dashboard.recording``)."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from muster import errors, platforms
from muster.commands import meanwhile
from muster.commands.logs import Tail
from muster.commands.main import exit_code, main
from muster.commands.run import as_options
from muster.commands.run import run as run_command
from muster.commands.wrapping import wrapped
from muster.dashboard import NoDashboard
from muster.errors import JobError
from muster.events import Event
from muster.job import Resources
from muster.options.fields import option
from muster.platforms import machine
from muster.platforms.base import Cleaned
from muster.platforms.local import LocalPlatform
from muster.records import folders, lookup, runs, sessions
from muster.run.check import check
from muster.run.checked import CheckedRun
from muster.run.request import RunRequest
from muster.runtime.background import on_background_thread
from muster.strategies import STRATEGIES
from muster.strategies.horovod import Horovod
from muster.text.arguments import Argument, ArgumentText
from muster.text.cleaning import clean

from tests.dashboard.recording import TRAINING
from tests.support import CLI, environment, needs_horovod


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MUSTER_DASHBOARD", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run the script as a plain program, which needs no TensorFlow."""
    monkeypatch.setitem(STRATEGIES, "parameter_server", "plain:Plain")


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(TRAINING)
    return "train.py"


@pytest.fixture
def task(tmp_path: Path) -> str:
    (tmp_path / "task.py").write_text("def run(cluster, server, task_index):\n    pass\n")
    return "task.py"


def muster(*arguments: str) -> Result:
    """Run the command with these arguments. A traceback of ours fails the test."""
    result = CLI.invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def in_terminal(*arguments: str, **environment: str) -> str:
    """What the command writes to a terminal, without colours, and without what it has removed again."""
    return re.sub(
        r"\x1b\[[\d;]*m|checking[^\n]*\x1b\[K|looking[^\n]*\x1b\[K", "", raw_in_terminal(*arguments, **environment)
    )


def raw_in_terminal(*arguments: str, **environment: str) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "muster", *arguments]
    variables = {**os.environ, "TERM": "xterm", **environment}
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        subprocess.run(command, stdout=theirs, stderr=theirs, check=False, env=variables)
        os.close(theirs)
        return terminal.read(65536).decode().replace("\r", "")


def recorded(name: str = "mnist", *, days_ago: float = 0, **result: object) -> runs.Run:
    """A run of known content."""
    path = folders.make_run_folder(name)
    request = Event(
        "run_requested", data={"job": {"name": name, "strategy": "horovod"}}, time=time.time() - days_ago * 86400
    )
    (path / "events.jsonl").write_text(request.to_json() + "\n")
    folders.write_json(path / "plan.json", {"processes": {"worker-0": {}, "worker-1": {}}})
    folders.write_json(path / "result.json", {"status": "succeeded", "seconds": 2.0, **result})
    return runs.Run(path)


def under_way(name: str) -> runs.Run:
    """A run of this very process that has not ended."""
    run = recorded(name)
    (run.run_dir / "result.json").unlink()
    requested = Event("run_requested", data={"job": {"name": name}, "session": sessions.this_session()})
    (run.run_dir / "events.jsonl").write_text(requested.to_json() + "\n")
    folders.write_json(run.run_dir / "control.json", {})
    return run


class TestOptions:
    @needs_horovod
    def test_become_a_job_and_a_strategy(self, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
        made = []

        def remember(asked: RunRequest) -> CheckedRun:
            made.append(check(asked))
            return made[0]

        monkeypatch.setattr("muster.run.check.check", remember)
        monkeypatch.setenv("SECRET", "from here")

        muster(
            "plan", "-s", "horovod", "-n", "3", "--slots", "2", "--cpu", "1.5", "--memory", "4", "--gpus", "1",
            "--env", "A=b=c", "--env", "SECRET", "--env", "EMPTY=", "--name", "mine",
            script, "--epochs", "5", "--", "-n", "9",
        )  # fmt: skip

        job, strategy = made[0].job, made[0].strategy
        assert job.script is not None
        assert (job.script.kind, Path(job.script.target).name) == ("file", script)
        assert (job.n_workers, job.n_ps, job.name) == (3, 0, "mine")
        assert job.resources == Resources(cpu=1.5, memory=4, gpu=1)
        assert job.args == ("--epochs", "5", "-n", "9")
        assert job.env == {"A": "b=c", "SECRET": "from here", "EMPTY": ""}
        assert strategy == Horovod(slots=2)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "Missing argument 'SCRIPT'"),
            (["-n", "0", "task.py"], "-n"),
            (["-s", "magic", "task.py"], "magic"),
            (["--env", "MUSTER_TEST_NOT_SET", "task.py"], "MUSTER_TEST_NOT_SET is not set here"),
            (["--env", "=x", "task.py"], "has no name"),
            (["--unknown", "task.py"], "--unknown"),
            (["absent.py"], "absent.py does not exist"),
            (["--memory", "4GB", "task.py"], "memory is given in GB: 4"),
            (["-s", "processes", "python", "task.py"], "the script itself; --python names an interpreter"),
            (["--slots", "2", "task.py"], "no such option"),
            (["-m", "no.such.module"], "no.such.module"),
            (["--ps", "1", "-s", "horovod", "train.py"], "no parameter servers.\nTry: --ps 0, or --strategy param"),
            (["-n", "20000", "task.py"], "--workers is 20000"),
        ],
    )
    def test_that_describe_no_job_exit_with_2(
        self, arguments: list[str], message: str, script: str, task: str, home: Path
    ) -> None:
        for command in ("run", "plan"):
            result = muster(command, *arguments)

            assert result.exit_code == 2
            assert message in result.stderr
        assert not home.exists()


class TestPlan:
    def test_parameter_servers(self, task: str, home: Path) -> None:
        result = muster("plan", "-n", "2", "--ps", "1", "--env", "KEY=hidden", task, "--rate", "0.1")

        assert result.exit_code == 0
        assert "worker     <worker-0>:2323, <worker-1>:2323" in result.stdout
        assert result.stdout.count("task.py --rate 0.1") == 2
        assert "KEY='<redacted>'" in result.stdout
        assert "hidden" not in result.stdout
        assert not home.exists()

    @needs_horovod
    def test_horovod(self, script: str) -> None:
        result = muster("plan", "-s", "horovod", "-n", "2", "--slots", "2", script)

        assert result.stdout.startswith(
            "workers run on this machine, and reach this session at 127.0.0.1, on any free port\n\n"
        )
        assert "horovodrun --gloo" in result.stdout
        assert "worker-1 (rank 2, 3): cpu 1, memory 2 GB, gpu 0, sshd on port 2222\n" in result.stdout
        assert result.stdout.count(f"program {Path(script).absolute()}\n") == 3  # both workers, and horovodrun
        assert "hostfile\n  <worker-0> slots=2\n  <worker-1> slots=2" in result.stdout

    def test_workers_that_have_to_share_the_machine_are_warned_of(self, script: str) -> None:
        cores, memory = len(machine.cores()), machine.memory_bytes() / 1e9
        half = f"{memory / 2:.2f}"
        options = ["-s", "processes", "-n", "4", "--cpu", f"{cores / 2:g}", "--memory", half]
        result = muster("plan", *options, script)
        assert f"Warning: 4 workers x {cores / 2:g} core" in result.stdout
        assert f"Warning: 4 x {float(half):g} GB of this machine's {memory:.1f} GB" in result.stdout
        assert len(json.loads(muster("plan", "--json", *options, script).stdout)["warnings"]) == 2
        served = ["-n", "1", "--ps", "1", "--cpu", f"{cores}", "--memory", "1", "--ps-cpu", "0.5"]
        result = muster("plan", *served, script)
        assert "ps-0: cpu 0.5, memory 1 GB" in result.stdout
        assert f"workers x {cores} + 1 worker x 0.5 cores on this machine's {cores}" in result.stdout

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--memory", "0.001"], "--memory is 0.001 GB, less than a Python"),
            (["--memory", "1000000"], "each worker asks for 1000000.0 GB"),
            (["--cpu", "5000"], "each worker asks for 5000.0 cores"),
            (["--cpu", "5000"], f"Try: --cpu {len(machine.cores())} at most"),
            (["--memory", "999424"], "at most"),
            (["--gpus", "9"], "ask for 18 GPUs"),
        ],
    )
    def test_what_no_machine_could_grant_is_refused(self, options: list[str], words: str, script: str) -> None:
        for command in ("plan", "run"):
            result = muster(command, "-s", "processes", "-n", "2", *options, script)
            assert result.exit_code == 2
            assert words in result.stderr

    def test_takes_every_option_of_run(self, script: str) -> None:
        limits = ["--timeout", "90", "--run-timeout", "1h", "--stall", "60", "--restarts", "2", "--from-scratch", "-q"]
        result = muster("plan", "-s", "processes", script, *limits)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "--run-timeout" not in result.stdout, "nothing of it is for the script"
        of_run, of_plan = ({option.name for option in main.commands[name].params} for name in ("run", "plan"))
        assert of_run <= of_plan

    def test_json(self, task: str) -> None:
        plan = json.loads(muster("plan", "--json", "-n", "2", task).stdout)

        assert (plan["platform"], plan["session_address"]) == ("local", ["127.0.0.1", 0])
        assert plan["cluster_spec"] == {"worker": ["<worker-0>:2323", "<worker-1>:2323"]}
        assert plan["processes"]["worker-1"]["argv"][-1].endswith("task.py")


OUTCOME = [
    "id", "name", "status", "strategy", "platform", "host", "started_at", "seconds", "detached_until", "path",
    "timings", "metrics", "exit_codes", "error", "reason", "advice", "worker", "notes", "attempts", "workers",
]  # fmt: skip


def test_every_key_that_is_printed_as_json_is_documented() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "json.md").read_text()
    for key in (*OUTCOME, "details", "first_step", "explanation", "findings", "is_fine", "warnings", "cluster_spec"):
        assert f"`{key}`" in guide


@pytest.mark.usefixtures("programs")
class TestRun:
    def test_success(self, script: str) -> None:
        result = muster("run", "-n", "2", script)

        run = lookup.open_run("last")
        assert result.exit_code == 0
        assert result.stderr == ""
        assert "worker-1 succeeded" in result.stdout
        assert "test_accuracy 0.97" in result.stdout
        assert result.stdout.endswith(f"] logs: muster logs {run.run_id}\n")
        assert run.status == "succeeded"

    def test_failure_is_1_and_says_why_without_a_traceback_of_ours(self, script: str) -> None:
        result = muster("run", script, "--fail")

        assert result.exit_code == 1
        assert "failed first: ValueError: the shard is empty" in result.stderr
        assert "failed first" not in result.stdout
        assert "worker-0.log" in result.stderr
        assert "cluster.py" not in result.stderr

    def test_json(self, script: str) -> None:
        printed = json.loads(muster("run", "--json", "-n", "2", script).stdout)

        assert list(printed) == OUTCOME
        assert (printed["status"], printed["error"], printed["metrics"]["test_accuracy"]) == ("succeeded", None, 0.97)
        assert printed["id"] == lookup.open_run("last").run_id
        assert [worker["name"] for worker in printed["workers"]] == ["worker-0", "worker-1"]
        assert printed["workers"][0] | {"address": ""} == {
            "name": "worker-0", "status": "succeeded", "address": "", "reason": "", "exit_code": 0, "signal": None,
            "step": 2, "steps": 2, "epoch": 3, "epochs": 3,
        }  # fmt: skip
        assert printed == json.loads(muster("show", "--json").stdout)

    def test_json_of_a_failure(self, script: str) -> None:
        result = muster("run", "--json", script, "--fail")

        assert result.exit_code == 1
        assert "the shard is empty" in result.stderr
        printed = json.loads(result.stdout)
        assert (printed["status"], printed["error"], printed["worker"]) == ("failed", "ScriptFailed", "worker-0")
        explained = json.loads(muster("explain", "--json").stdout)
        assert list(explained) == [*OUTCOME[:-1], "details", "first_step", "explanation"]
        assert "ValueError: the shard is empty" in explained["details"]
        assert explained["explanation"] == lookup.open_run("last").explain()

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            (["run", "absent.py"], "does not exist"),
            (["plan", "absent.py"], "does not exist"),
            (["show", "absent"], "no run 'absent'"),
            (["explain", "absent"], "no run 'absent'"),
            (["run", "-s", "processes", "train.py", "--memory", "1000000"], "1000000.0 GB"),
        ],
        ids=" ".join,
    )
    def test_json_of_what_cannot_be_tells_why(self, command: list[str], words: str, script: str) -> None:
        result = muster(*command, "--json")
        assert result.exit_code == 2
        assert words in result.stderr
        printed = json.loads(result.stdout)
        assert list(printed) == ["status", "error", "reason", "advice", "worker", "details"]
        assert printed["status"] == "refused"
        assert words in printed["reason"]

    def test_json_advises_in_words_of_the_command_line(self, script: str) -> None:
        result = muster("run", "-p", "hosts", "-s", "processes", script, "--json")
        advice = json.loads(result.stdout)["advice"]
        assert advice.startswith("--hosts such as")
        assert f"Try: {advice}" in result.stderr

    @pytest.mark.parametrize(
        ("words", "warning"),
        [
            (["--strategi", "horovod"], "--strategi is no option of muster and goes to the script. Try: --strategy"),
            (["--worker=3"], "--worker is no option of muster and goes to the script. Try: --workers"),
            (["-n2"], "-n2 is no option of muster and goes to the script. Try: -n 2"),
            (["--epochs", "3", "-v", "--", "--strategi", "x"], ""),
            (["--memori", "3"], ""),
        ],
        ids=" ".join,
    )
    def test_misspelt_options_behind_the_script_are_warned_of(
        self, words: list[str], warning: str, tmp_path: Path, programs: None
    ) -> None:
        (tmp_path / "own.py").write_text("import sys\nprint(sys.argv[1:])\n# its own: --memori\n")
        result = muster("run", "-q", "own.py", *words)
        assert result.exit_code == 0
        assert result.stderr == (f"Warning: {warning}\n" if warning else "")
        given = [word for word in words if word != "--"]
        assert lookup.open_run("last").logs("worker-0") == f"{given}\n"

    def test_quiet_says_nothing_but_errors(self, script: str) -> None:
        assert muster("run", "-q", script).output == ""
        failed = muster("run", "-q", script, "--fail")
        assert failed.stdout == ""
        assert "the shard is empty" in failed.stderr

    @pytest.mark.parametrize("limit", ["--run-timeout", "--stall"])
    def test_too_long_is_124(self, limit: str, tmp_path: Path) -> None:
        (tmp_path / "hang.py").write_text("import time\ntime.sleep(60)\n")

        assert muster("run", limit, "0.5", "hang.py").exit_code == 124

    def test_a_cluster_that_does_not_come_up_is_3(self, script: str) -> None:
        result = muster("run", "--timeout", "0.001", script)

        assert result.exit_code == 3
        assert "a longer --timeout" in result.stderr  # whatever it was that took too long
        assert "a longer --timeout" in muster("explain").stdout

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("number", "said"),
        [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "by SIGTERM"), (signal.SIGHUP, "by SIGHUP")],
    )
    def test_interrupted_is_130_and_leaves_nothing(self, number: int, said: str, tmp_path: Path) -> None:
        (tmp_path / "hang.py").write_text("import time\nprint('hangs', flush=True)\ntime.sleep(60)\n")
        program = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which is ignored where these tests run under nohup
from muster.commands import main as cli
from muster.strategies import STRATEGIES
STRATEGIES["parameter_server"] = "plain:Plain"
cli.main()
"""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", program, "run", "hang.py"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        for line in process.stdout:
            if "training" in line:
                break
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)

        assert process.returncode == 130
        assert stderr == "Interrupted.\n"
        run = lookup.open_run("last")
        assert run.status == "stopped"
        assert f"({said})" in run.explain()
        assert processes_of(run.run_id) == []

    def test_the_view_is_told_before_the_run_goes_on(self, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else a second Ctrl-C, after which nobody is waited for, would leave it without the end."""
        told: list[tuple[str, bool]] = []

        class View(NoDashboard):
            def __call__(self, event: Event) -> None:
                told.append((event.kind, on_background_thread()))

        monkeypatch.setattr("muster.dashboard.choose", View)
        assert muster("run", script).exit_code == 0
        assert told[-1] == ("run_ended", True)
        assert all(at_once for _, at_once in told)

    def test_help_says_what_the_exit_status_means(self) -> None:
        assert "124  the run took too long, or stalled" in muster("--help").stdout

    @pytest.mark.parametrize(("columns", "width"), [("", 100), ("60", 60), ("140", 140)])
    def test_help_is_as_wide_as_the_terminal(self, columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", columns)
        for command in ((), ("run",)):
            program = [sys.executable, "-m", "muster", *command, "--help"]
            done = subprocess.run(program, capture_output=True, text=True, check=True)  # through a pipe
            lengths = [len(line) for line in done.stdout.splitlines() if " " in line.strip() and "|" not in line]
            assert width - 25 < max(lengths) <= width, command

    def test_a_terminal_that_does_not_know_its_size_is_wide_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "get_terminal_size", lambda fallback: os.terminal_size((0, 0)))  # on Python 3.10
        here, there = pty.openpty()
        with open(there, "w") as terminal:
            assert [len(line) for line in wrapped("word " * 30, terminal).splitlines()] == [79, 69]
        os.close(here)

    def test_help_has_room_for_what_each_command_does(self) -> None:
        commands = muster("--help").stdout.partition("\nCommands:\n")[2]
        assert "  runs " in commands
        assert "..." not in commands


def processes_of(run: str) -> list[str]:
    """Ids of the processes that belong to a run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MUSTER_RUN_ID={run}".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ScriptFailed, 1), (errors.LauncherFailed, 1), (errors.WorkerOutOfMemory, 1), (errors.MusterError, 1),
        (errors.InterpreterError, 2), (errors.ResourceError, 2), (errors.RunNotFound, 2),
        (errors.PlatformUnsupported, 2), (errors.LaunchRefused, 3), (errors.WorkersMissing, 3),
        (errors.ServersNotListening, 3),
        (errors.RunTimeout, 124), (errors.RunStalled, 124), (errors.RunStopped, 130),
    ],
)  # fmt: skip
def test_exit_codes(kind: type[errors.MusterError], code: int) -> None:
    assert exit_code(kind("message")) == code


class TestRuns:
    def test_newest_first(self) -> None:
        older, newer = recorded("older", days_ago=1), recorded("newer", status="failed")
        lines = muster("runs").stdout.splitlines()

        assert [line.split()[-1] for line in lines] == [newer.run_id, older.run_id]
        assert lines[0].startswith("✗ failed ")
        assert "horovod" in lines[0]

    @pytest.mark.parametrize(
        ("width", "titles"),
        [(80, "status took strategy run"), (70, "status took run"), (57, "status run"), (30, "")],
    )
    def test_a_terminal_of_any_width_shows_ids_whole(self, width: int, titles: str) -> None:
        run = recorded("a-name-that-is-long-enough", status="lost")
        lines = in_terminal("runs", COLUMNS=str(width)).splitlines()

        assert (titles == "") == (lines[0] == run.run_id)
        assert (lines[0].split() if titles else []) == titles.split()
        assert run.run_id in " ".join(lines).split()
        assert "? lost" in lines[1]
        assert all(len(line) <= width or line == run.run_id for line in lines)

    def test_none(self) -> None:
        result = muster("runs")

        assert (result.exit_code, result.stdout) == (0, "")
        assert "No run has been recorded" in result.stderr

    def test_json(self) -> None:
        run = recorded()
        (data,) = json.loads(muster("runs", "--json").stdout)

        assert data == {
            "id": run.run_id, "name": "mnist", "status": "succeeded", "strategy": "horovod",
            "platform": None, "host": None, "started_at": run.started_at, "seconds": 2.0, "detached_until": None,
            "path": str(run.run_dir),
        }  # fmt: skip

    def test_limit_and_filters(self) -> None:
        made = [recorded(f"mnist-{number}", days_ago=number) for number in range(3)]
        other = recorded("cats", days_ago=5, status="failed")

        def listed(*options: str) -> list[str]:
            return [line.split()[-1] for line in muster("runs", *options).stdout.splitlines() if "older" not in line]

        assert listed("--limit", "2") == [made[0].run_id, made[1].run_id]
        assert muster("runs", "--limit", "3").stdout.endswith("… and 1 older\n")
        assert listed("--name", "mnist-1") == [made[1].run_id]
        assert listed("--name", "mnist*") == [run.run_id for run in made]
        assert listed("--status", "failed", "--status", "lost") == [other.run_id]
        assert [run["id"] for run in json.loads(muster("runs", "--json", "--limit", "1").stdout)] == [made[0].run_id]
        nothing = muster("runs", "--name", "dogs")
        assert (nothing.exit_code, nothing.stdout) == (0, "")
        assert "No recorded run is like that" in nothing.stderr
        assert muster("runs", "--prune", "--status", "failed").exit_code == 2

    def test_names_that_ids_cannot_tell_stand_beside_them(self) -> None:
        plain, russian = recorded("mnist"), recorded("обучение")
        lines = muster("runs").stdout.splitlines()
        assert {line.split("  ")[-1].strip() for line in lines} == {plain.run_id, f"{russian.run_id} (обучение)"}

    def test_prune(self) -> None:
        runs_of_days = [recorded(days_ago=days) for days in range(4)]
        result = muster("runs", "--prune", "--keep", "1", "--older-than", "1.5")

        assert result.stdout.splitlines() == [
            runs_of_days[2].run_id,
            runs_of_days[3].run_id,
            "2 runs deleted, 2 left.",
            "Never deleted: the newest 1 (--keep), all of the last 1.5 days (--older-than), those under way, and those "
            "lost less than a day ago.",
        ]
        assert len(lookup.list_runs()) == 2


class TestExplainAndShow:
    def test_explain_is_what_the_run_says_made_safe(self) -> None:
        run = recorded(status="failed", reason="it \x1b[2Jbroke", advice="fix it")

        assert muster("explain", run.run_id[:-2]).stdout == run.explain().replace("\x1b[2J", "") + "\n"

    def test_show_paints_the_last_view(self) -> None:
        run = recorded()
        with (run.run_dir / "events.jsonl").open("a") as file:
            for name in ("worker-0", "worker-1"):
                file.write(Event("worker_state", name, {"status": "succeeded"}).to_json() + "\n")
            file.write(Event("run_ended", None, {"status": "succeeded"}).to_json() + "\n")
        (run.run_dir / "logs" / "worker-1.log").write_text("the last line\n")

        lines = muster("show").stdout.splitlines()
        assert lines[0].startswith("✓ mnist  horovod  succeeded")
        assert lines[-1].split() == ["worker-1", "✓", "succeeded", "the", "last", "line"]

    def test_no_such_run(self) -> None:
        run = recorded()
        for command in ("explain", "show", "logs"):
            result = muster(command, "nist")

            assert result.exit_code == 2
            assert run.run_id in result.stderr


class TestLogs:
    def test_of_all_workers(self) -> None:
        run = recorded()
        (run.run_dir / "logs" / "worker-0.log.1").write_text("older\n")
        (run.run_dir / "logs" / "worker-0.log").write_bytes(b"\x1b[31mred\x1b[0m \xff\nno line end")
        (run.run_dir / "logs" / "launcher.log").write_text("launched\n")

        assert muster("logs", "last").stdout.splitlines() == [
            "worker-0 | older", "worker-0 | red \ufffd", "worker-0 | no line end", "launcher | launched",
        ]  # fmt: skip

    def test_of_one(self) -> None:
        (recorded().run_dir / "logs" / "worker-1.log").write_text("a\n\nb\n")

        assert muster("logs", "last", "worker-1").stdout == "a\n\nb\n"
        silent = muster("logs", "last", "worker-0")
        assert (silent.stdout, silent.stderr) == ("", "worker-0 has printed nothing.\n")
        assert muster("logs", "last", "worker-1").stderr == ""
        assert muster("logs", "last", "worker-9").exit_code == 2
        assert muster("logs", "last", "worker-1", "-n", "1").stdout == "b\n"

    def test_lines_that_need_no_cleaning_are_not_cleaned_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cleaned: list[str] = []

        def counted(text: str) -> str:
            cleaned.append(text)
            return clean(text)

        monkeypatch.setattr("muster.commands.logs.clean", counted)
        plain = [f"{number} \u00e4 \u4e2d" for number in range(20_000)]
        log = recorded().run_dir / "logs" / "worker-1.log"
        log.write_text("\n".join([*plain, "\x1b[31mred\x1b[0m\t1", "half\rall", ""]) + "\n")

        expected = [*plain, "red\t1", "half", "all", ""]
        assert muster("logs", "last", "worker-1").stdout.split("\n") == [*expected, ""]
        assert muster("logs", "last").stdout.split("\n") == [*(f"worker-1 | {line}" for line in expected), ""]
        assert len(cleaned) < 20

    def test_follow_goes_on_until_the_run_has_ended(self) -> None:
        run = recorded()
        result = (run.run_dir / "result.json").read_text()
        (run.run_dir / "result.json").unlink()
        request = Event("run_requested", data={"job": {}, "session": sessions.this_session()})
        (run.run_dir / "events.jsonl").write_text(request.to_json() + "\n")
        log = run.run_dir / "logs" / "worker-0.log"
        log.write_text("first\n")

        def go_on() -> None:
            with log.open("a") as file:
                file.write("sec")
                file.flush()
                time.sleep(0.5)
                file.write("ond\n")
            (run.run_dir / "result.json").write_text(result)

        writer = threading.Thread(target=go_on)
        writer.start()
        followed = muster("logs", "last", "worker-0", "--follow")
        writer.join()

        assert followed.stdout == "first\nsecond\n"

    @pytest.mark.parametrize("option", [(), ("--tail", "1")])
    def test_a_log_may_be_larger_than_the_memory(self, option: tuple[str, ...]) -> None:
        """A script can make it as large as it likes without writing anything."""
        with (recorded().run_dir / "logs" / "worker-1.log").open("w") as file:
            file.truncate(1 << 29)
            file.seek(0, os.SEEK_END)
            file.write("\nend\n")
        shell = "ulimit -v 500000; exec {} -m muster logs last worker-1 {} | tail -c 4"
        command = ["sh", "-c", shell.format(sys.executable, " ".join(option))]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("end\n", "")

    def test_following_survives_that_the_log_is_moved_and_begun_anew(self, tmp_path: Path) -> None:
        log = tmp_path / "worker-0.log"
        tail = Tail(log)
        assert [*chain(*tail.pieces())] == []
        log.write_bytes(b"1\n2\n")
        assert [*chain(*tail.pieces())] == [b"1", b"2"]
        (tmp_path / "worker-0.log.1").write_bytes(b"1\n2\n3\nunfini")
        log.write_bytes(b"sh\n")

        assert [*chain(*tail.pieces())] == [b"3", b"unfinish"]
        log.write_bytes(b"sh\nend")
        assert [*chain(*tail.pieces())] == []
        assert [*chain(*tail.pieces(at_end=True))] == [b"end"]

    def test_following_survives_that_the_new_log_has_grown_past_the_old_one(self, tmp_path: Path) -> None:
        log = tmp_path / "worker-0.log"
        tail = Tail(log)
        log.write_bytes(b"1\n2\n")
        assert [*chain(*tail.pieces())] == [b"1", b"2"]
        (tmp_path / "worker-0.log.1").write_bytes(b"1\n2\n3\n")
        log.write_bytes(b"4\n5\n6\n7\n")
        assert [*chain(*tail.pieces())] == [b"3", b"4", b"5", b"6", b"7"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["runs --limit 5000", "runs --json", "logs last", "explain last", "show last"])
def test_nothing_fails_behind_head(command: str) -> None:
    run = recorded()
    for number in range(300 if command.startswith("runs") else 0):
        shutil.copytree(run.run_dir, run.run_dir.with_name(f"20200101-000000-run-{number:04x}"))
    for worker in ("worker-0", "worker-1"):
        (run.run_dir / "logs" / f"{worker}.log").write_text("a line that fills pipes and buffers\n" * 10_000)
    plan: dict[str, dict[str, Any]] = {"processes": {f"worker-{number}": {} for number in range(800)}}
    folders.write_json(run.run_dir / "plan.json", plan)
    with (run.run_dir / "events.jsonl").open("a") as file:
        for worker in plan["processes"]:
            file.write(Event("worker_state", worker, {"status": "succeeded"}).to_json() + "\n")
    reason = "\n".join(f"for reason {number}" for number in range(5_000))
    folders.write_json(run.run_dir / "result.json", {"status": "failed", "seconds": 1, "reason": reason})

    line = f"set -o pipefail; {sys.executable} -m muster {command} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_a_failure_is_still_one_behind_head(tmp_path: Path) -> None:
    line = f"set -o pipefail; {sys.executable} -m muster plan absent.py | head -n 1"
    assert subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=False).returncode == 2


@pytest.mark.parametrize("command", ["--help", "--version", "runs", "runs --json", "logs last", "explain last"])
def test_output_that_cannot_be_written_is_an_error(command: str) -> None:
    run = recorded()
    (run.run_dir / "logs" / "worker-0.log").write_text("a line\n")
    line = f"{sys.executable} -m muster {command} > /dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "Error: The output cannot be written: No space left on device.\n",
    )


def test_output_that_cannot_be_written_hides_no_other_error() -> None:
    line = f"{sys.executable} -m muster plan --json absent.py > /dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "absent.py" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("environment", "begin"),
    [
        ({"TERM": "xterm"}, "\x1b[31m\x1b[1mError: \x1b[0m"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "\x1b[1mError: \x1b[0m"),
        ({"TERM": "dumb"}, "Error: There"),
        ({"TERM": ""}, "Error: There"),
    ],
)
def test_errors_have_colours_where_these_are_shown(environment: dict[str, str], begin: str) -> None:
    assert raw_in_terminal("show", "absent", **{"NO_COLOR": "", **environment}).startswith(begin)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("ps", "Did you mean 'runs'?"),
        ("status last", "Did you mean 'show'?"),
        ("kill last", "Did you mean 'stop'?"),
        ("expalin", "Did you mean 'explain'?"),
        ("no-such", "No such command 'no-such'"),
        ("show --html", "requires an argument: --html FILE"),
        ("show --html last", "and last is a run. Try: muster show last --html run.html"),
        ("logs worker-1", "Try: muster logs last worker-1\n"),
        ("attach worker-1", "Try: muster logs last worker-1\n"),
        ("logs worker-9", "There is no run 'worker-9'"),
        ("stacks worker-1", "Try: muster stacks last worker-1\n"),
        ("exec worker-1 ls", "Try: muster exec last worker-1\n"),
        ("forward 1 worker-0 80", "Try: muster forward last 1\n"),
        ("stacks", "has ended: succeeded"),
    ],
)
def test_what_people_type_instead_is_answered_with_what_they_mean(typed: str, words: str, tmp_path: Path) -> None:
    recorded()
    result = muster(*typed.split())
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert not (Path.cwd() / "last").exists()


def test_advice_names_a_flag_without_a_value() -> None:
    assert as_options(ArgumentText(Argument("from_scratch", True))) == "--from-scratch"


def test_an_option_of_several_words_is_advised_as_it_is_typed() -> None:
    advice = ArgumentText(Argument("sbatch_args", ("--exclusive", "--nice=100")))
    for text in (advice, ArgumentText.from_json(json.loads(json.dumps(advice.to_json())))):
        assert as_options(text) == "--sbatch-args '--exclusive --nice=100'"


def test_errors_are_broken_between_words_in_a_narrow_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "muster", "run", "train.py"]
    environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
        os.close(theirs)
        said = terminal.read(65536).decode()
    plain = re.sub(r"checking[^\n]*\x1b\[K|\x1b\[[\d;]*m", "", said.replace("\r", ""))
    assert done.returncode == 2
    lines = [line.partition(str(tmp_path))[2] or line for line in plain.splitlines()]  # a path may be longer
    assert [line for line in lines if len(line) > 60] == []
    assert "The strategy of parameter servers, the default," in " ".join(plain.split())
    assert "\nTry: --strategy processes, which runs it on every" in plain


@pytest.mark.parametrize(
    ("term", "seconds", "shown"), [("xterm", 0.3, "checking ...\r\x1b[K"), ("xterm", 0, ""), ("dumb", 0.3, "")]
)
def test_what_takes_long_before_a_run_is_said_at_a_terminal(
    term: str, seconds: float, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meanwhile, "SECONDS", 0.1)
    monkeypatch.setenv("TERM", term)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with meanwhile.saying("checking ..."):
            time.sleep(seconds)
        print("done", file=stream, flush=True)
        said = b""
        while not said.endswith(b"done\r\n"):  # a read returns what has been written by one call, or by more
            said += terminal.read(100)
    assert said.decode() == f"{shown}done\r\n"


def test_a_line_that_points_at_another_is_left_out_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    traceback = "  File 'train.py', line 1\n    fit(model(data))\n        ^^^^^^^^^^^\nValueError: no data"
    monkeypatch.setenv("COLUMNS", "40")
    assert wrapped(traceback, terminal) == traceback
    monkeypatch.setenv("COLUMNS", "18")
    assert "^" not in wrapped(traceback, terminal)


@pytest.mark.parametrize(
    "arguments",
    [
        ("stop", "mnist"),
        ("attach",),
        ("run", "-s", "procesess", "train.py"),
        ("plan", "--workrs", "2", "train.py"),
        ("plan", "--detach", "8x", "train.py"),
        ("run", "-s", "processes", "missing.py", "--epoch", "2", "--memry", "3"),
    ],
)
def test_sentences_are_broken_between_words_in_a_narrow_terminal(arguments: tuple[str, ...]) -> None:
    recorded("mnist")
    lines = in_terminal(*arguments, COLUMNS="40").splitlines()
    assert len(lines) > 1
    assert [line for line in lines if len(line) > 40 and " " in line.strip()] == []


def test_a_run_whose_lines_cannot_be_written_says_so_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "works.py").write_text("print('works')\n")
    line = f"{sys.executable} -m muster run -s processes works.py > /dev/full"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "The output cannot be written: No space left on device. The run goes on without it.\n" in done.stderr


def test_the_doctor_breaks_no_line_in_a_pipe_and_no_path_off_in_a_terminal(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    command = ("doctor", "--no-launch", "-s", "processes", script)
    (found,) = (line for line in muster(*command).stdout.splitlines() if script in line)
    assert "compiles" in found
    assert found == found.rstrip()
    shown = in_terminal(*command, COLUMNS="30")
    assert "…" not in shown
    assert script in re.sub(r"\s", "", shown)


class Shell:
    """A bash in a terminal, with completion of ``muster`` on."""

    def __init__(self, folder: Path) -> None:
        self.terminal, theirs = pty.openpty()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "TERM": "dumb", "PS1": "", "INPUTRC": os.devnull, "COLUMNS": "200"}
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
            env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.type('bind "set show-all-if-ambiguous on"; bind "set bell-style none"; ')
        self.type('eval "$(_MUSTER_COMPLETE=bash_source muster)"')
        self.type("; echo re''ady\n")
        self.read_until("ready")

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def read_until(self, *words: str) -> str:
        text, deadline = "", time.monotonic() + 20
        while not all(word in text for word in words):
            assert time.monotonic() < deadline, text
            if select.select([self.terminal], [], [], 0.1)[0]:
                text += os.read(self.terminal, 65536).decode()
        return text

    def completes(self, line: str, *words: str) -> str:
        """Type a line, complete it, and return what is shown; the line is dropped then."""
        self.type(f"{line}\t")
        shown = self.read_until(*words)
        self.type("\x15\x0b")
        return shown

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self.terminal)


def test_a_run_that_is_queued_is_listed_so_until_a_worker_has_a_place() -> None:
    waiting = under_way("the-queued")
    journal = waiting.run_dir / "events.jsonl"

    def told(worker: str, status: str) -> str:
        return told_of(Event("worker_state", worker, {"status": status, "reason": "4 jobs come first"}))

    def told_of(event: Event) -> str:
        with journal.open("a") as file:
            file.write(event.to_json() + "\n")
        return muster("runs", "--limit", "1").stdout

    assert "queued" not in muster("runs", "--limit", "1").stdout.replace(waiting.run_id, "")
    assert f"{waiting.run_id}  (queued, here" in told("worker-0", "scheduling")
    assert "(queued)" not in told("worker-0", "starting")
    assert "(queued)" not in told_of(Event("run_attempt", None, {"attempt": 2, "reason": "a node was lost"}))
    assert f"{waiting.run_id}  (queued, here" in told("worker-0", "scheduling")
    assert "(queued)" not in told("worker-0", "running")


@pytest.mark.slow
def test_bash_completes_files_runs_and_workers(tmp_path: Path) -> None:
    (tmp_path / "train_mnist.py").write_text("pass\n")
    (tmp_path / "training data").mkdir()
    older, newer = recorded("older", days_ago=1), recorded("newer")
    living = under_way("the-newest")
    (newer.run_dir / "logs" / "launcher.log").write_text("launched\n")
    shell = Shell(tmp_path)
    try:
        shell.completes("muster run -n 2 train_m", "train_mnist.py ")
        shell.completes("muster plan train", "train_mnist.py", "training data")
        shell.completes("muster run --python train_m", "train_mnist.py ")
        shell.completes("muster run train_mnist.py --data trai", "train_mnist.py", "training data")
        shell.completes("muster doctor -s horo", "horovod ")
        shell.completes("muster run --strategy=pr", "--strategy=processes ")
        shell.completes("muster run --platform=", "kubernetes", "slurm")
        shell.completes("muster explain ", older.run_id, newer.run_id, "last")
        shell.completes(f"muster show {newer.run_id[:-3]}", newer.run_id)
        shell.completes("muster logs la", "last ")
        assert "launcher" in shell.completes(f"muster logs {newer.run_id} ", "worker-0", "worker-1")
        shell.completes("muster logs last worker-1", "worker-1 ")
        assert older.run_id not in shell.completes("muster stop ", living.run_id, "last")
        shell.completes(f"muster stacks {living.run_id[:-3]}", living.run_id)
    finally:
        shell.close()


def test_version_and_module() -> None:
    result = subprocess.run([sys.executable, "-m", "muster", "--version"], capture_output=True, text=True, check=True)

    assert result.stdout.startswith("muster 0.")


def test_help_is_instant() -> None:
    program = "import sys; sys.argv[1:] = ['--help']; sys.stdout = sys.stderr\n"
    program += "try:\n from muster.commands.main import main; main()\n"
    program += "except SystemExit: sys.stdout = sys.__stdout__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert not {"tensorflow", "horovod", "ipywidgets", "paramiko", "requests", "rich", "cryptography"} & set(loaded)


def test_clean_says_where_nothing_is_kept() -> None:
    done = muster("clean", "-p", "local")
    assert (done.exit_code, done.output) == (0, "Nothing is kept for later runs on platform local.\n")


def test_clean_fails_where_something_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = Cleaned(["h1: 2 MB"], ["h2: it could not be removed"])
    monkeypatch.setattr(LocalPlatform, "clean", lambda self: cleaned)
    done = muster("clean", "-p", "local")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "Removed: h1: 2 MB\n", "h2: it could not be removed\n")


def test_a_platform_of_ones_own_is_said_to_be_given_in_python(script: str) -> None:
    result = CLI.invoke(main, ["run", "-p", "acme", script])
    assert result.exit_code == 2
    assert "'acme' is not one of 'local'" in result.stderr
    assert "given in Python, as an object." in result.stderr


def test_no_option_of_a_strategy_or_a_platform_is_one_of_every_run() -> None:
    own = {name for parameter in run_command.params for name in (parameter.name, *parameter.opts)}
    for declared in run_command.declared_options():
        assert own.isdisjoint((declared.name, *declared.opts)), declared.name


def test_a_number_without_a_limit_is_shown_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Own:
        niceness: int = option(0, "How much workers give way")
        share: float = option(0.5, "How much of a core")

    monkeypatch.setattr(platforms, "PLATFORMS", {"own": ""})
    monkeypatch.setattr(platforms, "platform_class", lambda name: Own)
    assert "x<=" not in CliRunner().invoke(main, ["clean", "--help"]).output


def test_clean_has_the_options_of_platforms_alone() -> None:
    shown = muster("clean", "--help").output
    assert "--hosts" in shown
    assert "Options of strategies" not in shown
    done = muster("clean", "-p", "hosts")
    assert done.exit_code == 2
    assert "No hosts are given.\nTry: --hosts" in done.output + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_process_without_standard_streams_runs_as_any_other(closed: str, tmp_path: Path) -> None:
    (tmp_path / "works.py").write_text("print('here')\n")
    line = f"{sys.executable} -m muster run -s processes works.py {closed}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert muster("logs", "last").stdout == "worker-0 | here\n"


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    line = f"cd gone && rmdir ../gone && {sys.executable} -m muster run -s processes works.py"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: The working directory is not there any more.\nTry: change into a folder that is\n"


def test_ctrl_c_during_imports_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "muster", "runs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")
    environment["_MUSTER_COMPLETE"] = "bash_complete"  # into the line that is being typed
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_run_is_found_by_its_name_and_its_last_letters() -> None:
    older, newer = recorded("older", days_ago=1), recorded("newer")
    for name in ("newer", newer.run_id[-4:], "LAST"):
        assert muster("explain", "--json", name).exit_code == 0
        assert lookup.open_run(name).run_id == newer.run_id
    wrong = newer.run_id[:14] + ("0" if newer.run_id[14] != "0" else "1")
    likely = (f"Try: {newer.run_id}, {older.run_id}\n", f"Try: {newer.run_id}\n")
    assert muster("explain", wrong).stderr.endswith(likely)
    recorded("newer")
    assert "2 runs are called 'newer'" in muster("stop", "newer").stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "--keep", "3"], "--prune is not given"),
        (["runs", "--older-than", "1"], "--prune is not given"),
        (["plan", "-s", "processes", "--env", "A-B=1", "train.py"], "A-B can be no name of a variable"),
        (["plan", "-s", "processes", "--name", "", "train.py"], "it is empty"),
        (["plan", "-s", "processes", "--project", "/nope", "train.py"], "There is no /nope"),
        (["plan", "-s", "processes", "--project", "/nope", "train.py"], "Try: --project a folder, or a list of files"),
        (
            ["run", "-s", "processes", "--detach", "0m", "train.py"],
            "'--detach': 0.0 is not in the range x>0; a",
        ),
        (["plan", "-n", "two", "train.py"], "'two' is not a valid whole number"),
        (["plan", "-s", "Horovd", "train.py"], "Did you mean 'horovod'?"),
        (["plan", "-s", "ps", "train.py"], "Did you mean 'parameter_server'?"),
        (["plan", "-s", "torchrun", "train.py"], "Did you mean 'processes'?"),
        (["plan", "-p", "docker", "train.py"], "Did you mean 'containers'?"),
        (["clean", "-p", "K8s"], "Did you mean 'kubernetes'?"),
        (["run", "-p", "ssh", "train.py"], "Did you mean 'hosts'?"),
        (["plan", "--memry", "2", "train.py"], "--memory"),
        (["run", "--stall-seconds", "2", "train.py"], "Did you mean --stall?"),
        (["run", "--reuse", "train.py"], "reuse= is for Python alone"),
        (["run", "--epochs", "1"], "No such option '--epochs', and SCRIPT is missing: options after SCRIPT"),
        (["run", "-x"], "No such option '-x', and SCRIPT is missing"),
        (["plan", "--epochs", "1", "train.py"], "No such option '--epochs': options after SCRIPT are the script's own"),
        (["run", "-s", "processes", "--timeout", "soon", "train.py"], "in seconds, or such as 90m, 8h or 1d"),
        (["doctor", "--run-timeout", "0h", "train.py"], "in seconds, or such as"),
        (["run", "--detach", "8", "hours", "train.py"], "'hours' stands where SCRIPT does. Try: --detach 8h"),
        (["run", "--stall=10", "Minutes", "train.py"], "Try: --stall 10m"),
        (
            ["run", "-s", "processes", "--detach", "soon", "train.py"],
            "'soon' is not a valid time span; a time",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused(arguments: list[str], words: str, script: str) -> None:
    result = muster(*arguments)
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr


def test_time_limits_have_the_units_of_detach(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RunRequest] = []

    def remember(asked: RunRequest) -> CheckedRun:
        made.append(asked)
        raise JobError("seen")

    monkeypatch.setattr("muster.run.check.check", remember)
    for options in (["--timeout", "1m", "--queue-timeout", "1h30m"], ["--timeout", "0", "--run-timeout", "1e3"]):
        assert "seen" in muster("run", *options, "--stall", "90", script).stderr
    assert [(run.timeout_seconds, run.queue_timeout, run.run_timeout, run.stall_seconds) for run in made] == [
        (60.0, 5400.0, None, 90.0), (0.0, None, 1000.0, 90.0),
    ]  # fmt: skip


def test_a_file_may_be_called_like_a_unit(tmp_path: Path, script: str) -> None:
    (tmp_path / "hours").write_text("print('trained')\n")
    assert muster("plan", "-s", "processes", "-n", "8", "hours", script).exit_code == 0
    assert "Try: --detach" not in muster("run", "-s", "processes", "--detach", "0", "hours", script).stderr


def test_a_unit_that_would_go_to_the_script_is_warned_of(script: str) -> None:
    arguments = ["doctor", "--no-launch", "-s", "processes", script, "--run-timeout=8", "hours"]
    assert "Warning: hours goes to the script. Try: --run-timeout 8h\n" in muster(*arguments).stderr


def test_a_terminal_gets_the_last_state_of_a_progress_bar_and_as_many_lines_as_asked(tmp_path: Path) -> None:
    run = recorded()
    (run.run_dir / "logs" / "worker-0.log").write_bytes(b"first\n 10 %\r 20 %\r100 %\r\nlast\n")
    assert muster("logs", "last", "worker-0").stdout == "first\n 10 %\n 20 %\n100 %\nlast\n"
    assert muster("logs", "last", "worker-0", "--tail", "1").stdout == "last\n"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "muster", "logs", "last", "worker-0"]
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        subprocess.run(command, stdout=theirs, check=True)
        os.close(theirs)
        assert terminal.read(65536) == b"first\r\n100 %\r\nlast\r\n"
