"""The batch script of Slurm's platform, and what it refuses to write there. Pure functions."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from muster.errors import JobError
from muster.job import Resources
from muster.platforms.slurm.platform import SlurmPlatform
from muster.platforms.slurm.script import Site, batch_script, check_raw, variables, worker_arguments


def script_of(folder: str = "/shared/muster", **flags: str) -> str:
    site = Site(flags=flags)
    return batch_script(folder, "muster-a", "me", worker_arguments(2, Resources(1, 1), site), site)


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
        batch_script("/shared", "muster-a", "me", [], Site(raw=[word]))


def test_other_raw_options_are_the_user_s() -> None:
    check_raw(["--exclusive", "--nice=100", "--hold", "--no-requeue", "--mail-user=me@here", "--ntasks-per-node=1"])


def test_a_folder_is_no_pattern_of_slurm_s() -> None:
    text = script_of("/shared/100%j/of a")
    assert "#SBATCH '--output=/shared/100%%j/of a/output'" in text
    assert text.splitlines()[-1].endswith("'/shared/100%j/of a/start.sh'")


def test_variables_that_sbatch_would_take_for_options_do_not_undo_the_script_s() -> None:
    environ = {
        "PATH": "/bin", "SBATCH_PARTITION": "other", "SBATCH_ACCOUNT": "mine", "SBATCH_ARRAY_INX": "1-4",
        "SBATCH_REQUEUE": "1", "SBATCH_MEM_PER_NODE": "1", "SBATCH_EXCLUSIVE": "1",
    }  # fmt: skip
    kept = variables(environ, Site(flags={"partition": "main"}))
    assert sorted(kept) == ["PATH", "SBATCH_ACCOUNT", "SBATCH_EXCLUSIVE"]
