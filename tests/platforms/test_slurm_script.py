"""The batch script of Slurm's platform, and what it refuses to write there. Pure functions."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from muster.agent import removal
from muster.errors import JobError
from muster.job import Resources
from muster.platforms.slurm.platform import SlurmPlatform
from muster.platforms.slurm.script import SiteOptions, batch_script, check_raw, variables
from muster.platforms.workbench import agent_files


def script_of(folder: str = "/shared/muster", **flags: str) -> str:
    site = SiteOptions(flags=flags)
    return batch_script(folder, "muster-a", "me", [Resources(1, 1)] * 2, site)


def test_a_script_is_directives_and_one_command() -> None:
    lines = script_of(partition="main", gres="gpu:a 100:1").splitlines()
    assert lines[0] == "#!/bin/sh"
    assert all(line.startswith(("#SBATCH --", "#SBATCH '--")) for line in lines[1:-2])
    assert "#SBATCH --partition=main" in lines
    assert "#SBATCH '--gres=gpu:a 100:1'" in lines
    assert lines[-2] == "umask 077"
    assert shlex.split(lines[-1])[:2] == ["exec", "srun"]


@pytest.mark.parametrize("ending", ["\n", "\r", "\0", "\x0b", "\u2028", "\x1b[2J", "\\"])
@pytest.mark.parametrize(
    "name", ["partition", "account", "qos", "constraint", "gres", "reservation", "nodelist", "exclude", "nodes"]
)
def test_an_option_of_several_lines_is_refused(name: str, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = f"main{ending}touch /tmp/stolen"
    with pytest.raises(JobError, match=f"^{name} is 'main"):
        script_of(**{name: value})
    monkeypatch.setattr("muster.platforms.slurm.commands.check", lambda: None)
    options: Any = {name: value}
    with pytest.raises(JobError, match=f"^{name} is 'main"):
        SlurmPlatform(**options).check()


def test_a_folder_of_several_lines_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="^folder is "):
        script_of(f"{tmp_path}/a\ntouch /tmp/stolen")
    monkeypatch.setattr("muster.platforms.slurm.commands.check", lambda: None)
    with pytest.raises(JobError, match="^folder is "):
        SlurmPlatform(folder=f"{tmp_path}/a\nb").check()


@pytest.mark.parametrize(
    "word",
    [
        "--output=x", "--out=x", "-ox", "-o", "--job-name=x", "-J", "--array=1-4", "--arr=1-4", "-a1-4", "--requeue",
        "--req", "--mem=1G", "--ntasks=3", "-n3", "-c2", "--wrap=ls", "--wait", "-W", "--test-only", "--parsable",
        "--clusters=west", "-Mwest", "--comment=x", "exclusive", "--", "-", "", "--nice=1\n#SBATCH --array=1-4",
        "--Nice", "--=x",
    ],
)  # fmt: skip
def test_raw_options_that_are_muster_s_to_say_are_refused(word: str) -> None:
    with pytest.raises(JobError, match="sbatch_args has"):
        check_raw(["--exclusive", word])
    with pytest.raises(JobError, match="sbatch_args has"):
        batch_script("/shared", "muster-a", "me", [], SiteOptions(raw=[word]))


def test_other_raw_options_are_the_user_s() -> None:
    check_raw(["--exclusive", "--nice=100", "--hold", "--no-requeue", "--mail-user=me@here", "--ntasks-per-node=1"])


def test_workers_of_several_sizes_are_parts_of_one_job() -> None:
    wanted = [Resources(1, 1), Resources(4, 2, 1), Resources(4, 2, 1)]
    text = batch_script("/shared", "muster-a", "me", wanted, SiteOptions(flags={"partition": "main", "nodes": "2"}))
    first, second = text.split("#SBATCH hetjob\n")
    assert [line.removeprefix("#SBATCH --") for line in first.splitlines() if "ntasks" in line or "node" in line] == [
        "ntasks=1", "nodes=1",
    ]  # fmt: skip
    assert "gpu" not in first
    for said in ("--ntasks=2", "--cpus-per-task=4", "--gpus-per-task=1", "--partition=main", "--nodes=2"):
        assert f"#SBATCH {said}\n" in second
    command = shlex.split(text.splitlines()[-1])
    assert command[:2] == ["exec", "srun"]
    halves = " ".join(command[2:]).split(" : ")
    assert [re.findall(r"--(?:het-group|ntasks|cpus-per-task)=\d", half) for half in halves] == [
        ["--het-group=0", "--ntasks=1", "--cpus-per-task=1"],
        ["--het-group=1", "--ntasks=2", "--cpus-per-task=4"],
    ]


@pytest.mark.parametrize(
    ("agent", "end"),
    [
        (
            "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM}); time.sleep(60)",
            {"status": "failed", "signal": signal.SIGTERM},
        ),
        ("raise SystemExit(1)", {"status": "stopped"}),  # its config was taken back
    ],
)
def test_a_task_that_is_to_end_before_its_agent_runs_tells_its_end(
    tmp_path: Path, agent: str, end: dict[str, Any]
) -> None:
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as file:
        file.writestr("agent/worker.py", f"import signal, time\ndef main(path):\n    {agent}\n")
        for name in ("__init__.py", "removal.py"):
            file.writestr(f"agent/{name}", Path(removal.__file__).with_name(name).read_text())
    (tmp_path / "worker-0.stop").touch()
    program = (
        "import base64, os, signal, sys; from muster.agent import slurm_bootstrap as bootstrap\n"
        "from muster.agent.unpacking import unpacked\n"
        "tell = bootstrap.tell\n"
        "def tell_and_be_told(path, **news):\n"
        "    tell(path, **news)\n"
        "    'node' in news and len(sys.argv) > 3 and os.kill(os.getpid(), signal.SIGTERM)\n"
        "bootstrap.tell = tell_and_be_told\n"
        "package = unpacked(base64.b64decode(sys.argv[2]), 'muster-agent-')\n"
        "bootstrap.become_worker(package, sys.argv[1], '127.0.0.1')\n"
    )
    source = base64.b64encode(package.getvalue()).decode()
    command = [sys.executable, "-c", program, str(tmp_path), source, *(["signal"] if "signal" in end else [])]
    assert subprocess.run(command, env={**os.environ, "SLURM_PROCID": "0"}, timeout=50).returncode == 1
    told = [json.loads(line) for line in (tmp_path / "worker-0.news").read_text().splitlines()]
    assert end.items() <= told[-1].items()


def test_the_session_s_interpreter_runs_what_that_has_compiled_and_any_other_the_source(
    tmp_path: Path, other_python: str
) -> None:
    packed = base64.b64decode(agent_files.packed_agent(has_bytecode=True))
    zipfile.ZipFile(io.BytesIO(packed)).extractall(tmp_path)
    source = tmp_path / "agent" / "removal.py"
    source.write_text(f"{source.read_text()}\nprint('compiled anew')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import agent.removal"

    def said(python: str) -> str:
        return subprocess.run([python, "-B", "-I", "-c", program], capture_output=True, text=True, check=True).stdout

    assert said(sys.executable) == ""
    assert said(other_python) == "compiled anew\n"


def test_a_folder_is_no_pattern_of_slurm_s() -> None:
    text = script_of("/shared/100%j/of a")
    assert "#SBATCH '--output=/shared/100%%j/of a/output'" in text
    assert text.splitlines()[-1].endswith("'/shared/100%j/of a/start.sh'")


def test_variables_that_sbatch_would_take_for_options_do_not_undo_the_script_s() -> None:
    environ = {
        "PATH": "/bin", "SBATCH_PARTITION": "other", "SBATCH_ACCOUNT": "mine", "SBATCH_ARRAY_INX": "1-4",
        "SBATCH_REQUEUE": "1", "SBATCH_MEM_PER_NODE": "1", "SBATCH_EXCLUSIVE": "1",
    }  # fmt: skip
    kept = variables(environ, SiteOptions(flags={"partition": "main"}))
    assert sorted(kept) == ["PATH", "SBATCH_ACCOUNT", "SBATCH_EXCLUSIVE"]
