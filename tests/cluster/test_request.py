"""A run on its way, before anything of it starts: what is asked, and what is found out about it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from muster import Cluster, run_cluster
from muster.agent.places import symbol
from muster.checks.places import job_by_places
from muster.checks.planning import describe, preview
from muster.commands.main import main
from muster.errors import JobError, MusterError, PlatformUnsupported
from muster.job import Job, Limits, Resources, Script
from muster.platforms.base import Storage
from muster.platforms.local import LocalPlatform
from muster.run.check import check
from muster.run.checked import CheckedRun
from muster.run.request import RunRequest
from muster.strategies.horovod import Horovod
from muster.strategies.processes import Processes
from muster.testing.platform import ScriptedPlatform

from tests.support import needs_horovod


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('trained')\n")
    return "train.py"


class Seen(MusterError):
    """Raised in place of a start."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[CheckedRun]:
    """Return what would have been started."""
    found: list[CheckedRun] = []

    def start(cluster: Cluster) -> None:
        found.append(cluster.check())
        raise Seen("enough")

    monkeypatch.setattr(Cluster, "start", start)
    return found


def test_python_and_the_command_line_ask_for_the_same(script: str, seen: list[CheckedRun]) -> None:
    with pytest.raises(Seen):
        run_cluster(
            2, cpu=0.5, memory=0.25, worker_script=script, timeout_seconds=9, strategy="processes", platform="local",
            args=["--epochs", "3"], env={"KEY": "value"}, python=sys.executable, name="mine", run_timeout=8,
            stall_seconds=7, queue_timeout=6, session_address="127.0.0.1:4321", slots=2, log_cap=10_000,
        )  # fmt: skip
    CliRunner().invoke(
        main,
        f"run -s processes -p local -n 2 --cpu 0.5 --memory 0.25 --timeout 9 --env KEY=value --python {sys.executable} "
        "--name mine --run-timeout 8 --stall 7 --queue-timeout 6 --session-address 127.0.0.1:4321 --slots 2 "
        f"--log-cap 10000 {script} --epochs 3",
    )
    asked, typed = seen
    for name in ("job", "strategy", "probed", "owns_platform", "limits", "session_address", "members"):
        assert getattr(asked, name) == getattr(typed, name), name
    assert isinstance(asked.platform, LocalPlatform)
    assert isinstance(typed.platform, LocalPlatform)
    assert asked.platform is not typed.platform
    assert asked.platform.log_cap == typed.platform.log_cap == 10_000
    assert asked.limits == Limits(start=9, run=8, stall=7, queue=6)
    assert asked.job == Job(
        script=Script("file", os.path.abspath(script)), n_workers=2, resources=Resources(0.5, 0.25),
        ps_resources=Resources(0.5, 0.25),
        args=("--epochs", "3"), env={"KEY": "value"}, python=sys.executable, cwd=os.getcwd(), name="mine",
    )  # fmt: skip


@needs_horovod
def test_making_a_cluster_looks_at_nothing_and_checking_it_does(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Cluster(Job(Script("file", "absent.py"), -1), strategy="magic", platform="nowhere", session_address="?")
    assert repr(wrong) == "<Cluster: not started>"
    with pytest.raises(JobError):
        wrong.check()
    with pytest.raises(JobError):
        wrong.start()
    assert wrong.run_id == ""

    monkeypatch.setenv("PATH", "")
    without_ssh = Cluster.of(RunRequest(script=script, strategy=Horovod(launcher="horovodrun")))
    with pytest.raises(PlatformUnsupported, match="no ssh client here, which horovod starts its ranks with"):
        without_ssh.check()


def test_a_cluster_is_checked_once(script: str) -> None:
    cluster = Cluster.of(RunRequest(script=script, strategy="processes"))
    checked = cluster.check()
    Path(script).unlink()
    assert cluster.check() is checked
    assert "train: processes, 1 workers, not started" in repr(cluster)


@pytest.mark.parametrize("platform", [None, "local", LocalPlatform()], ids=["unsaid", "by name", "made already"])
def test_a_platform_that_is_made_already_is_not_the_runs_own(script: str, platform: Any) -> None:
    checked = check(RunRequest(script=script, strategy=Processes(), platform=platform))
    assert checked.owns_platform == (platform is None or isinstance(platform, str))


def test_nothing_of_a_request_that_may_be_secret_is_in_its_representation() -> None:
    request = RunRequest(env={"API_KEY": "hunter2"}, kwargs={"token": "hunter2"}, options={"token": "hunter2"})
    assert "hunter2" not in repr(request) + repr(Cluster.of(request))


class Elsewhere(ScriptedPlatform):
    """Workers with an interpreter of their own, which cannot be looked at from here."""

    storage = Storage.NOTHING
    python = "python3.9"


def test_the_interpreter_of_workers_that_have_their_own_is_not_looked_for_here(script: str) -> None:
    platform = Elsewhere()
    assert check(RunRequest(script=script, strategy="processes", platform=platform)).job.python == "python3.9"
    asked = RunRequest(script=script, strategy="processes", platform=platform, python="/opt/there/python")
    assert check(asked).job.python == "/opt/there/python"


def test_a_plan_for_workers_that_share_nothing_names_places(script: str) -> None:
    checked = check(RunRequest(script=script, strategy="processes", platform=Elsewhere()))
    described = describe(preview(checked.job, checked.strategy, checked.probed, project=checked.project), checked.job)
    assert described["processes"]["worker-0"]["argv"] == [
        "python3.9", "-u", "<library>/runner.py", "program", "<project>/train.py",
    ]  # fmt: skip
    assert os.getcwd() not in json.dumps(described)


@pytest.mark.parametrize(
    ("kind", "target", "there"),
    [
        ("file", "/project/src/train.py", "<project>/src/train.py"),
        ("file", "/elsewhere/train.py", "<library>/scripts/train.py"),
        ("executable", "/project/allreduce", "<project>/allreduce"),
        ("executable", "/usr/bin/allreduce", "/usr/bin/allreduce"),
        ("module", "package.train", "package.train"),
    ],
)
def test_where_a_script_is_on_workers_that_share_nothing(kind: str, target: str, there: str) -> None:
    job = job_by_places(Job(Script(kind, target), 1, cwd="/project"))
    assert job.script is not None
    assert job.script.target == there.replace("<project>", symbol("project")).replace("<library>", symbol("library"))
    assert job.cwd == symbol("project")


def test_a_project_that_is_reached_by_a_link_has_its_scripts(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    job = job_by_places(Job(Script("file", str(tmp_path / "link" / "train.py")), 1, cwd=str(tmp_path / "real")))
    assert job.script is not None
    assert job.script.target == symbol("project") + "/train.py"
