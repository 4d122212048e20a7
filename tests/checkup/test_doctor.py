"""Each finding provoked for real: on scripts, interpreters, ports, disks and workers that are as they should not be."""

from __future__ import annotations

import contextlib
import json
import os
import py_compile
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import muster
import pytest
from click.testing import CliRunner
from muster.agent import linux
from muster.agent.ports import random_loopback_address
from muster.checks.script import make_script
from muster.checkup import Finding, Report, examine, workers
from muster.checkup.probe import packages
from muster.checkup.workers import _check_interfaces, _check_logins, _compare_with_session
from muster.commands.main import main
from muster.errors import JobError
from muster.job import Job, Member, Resources, Script, Status, Worker, WorkerSpec
from muster.platforms import machine
from muster.platforms.local import LocalPlatform
from muster.records.lookup import list_runs
from muster.run.check import check
from muster.run.cluster import Cluster
from muster.run.request import RunRequest
from muster.security.ssh import generate_key_pair, write_private
from muster.strategies.horovod import Horovod

from tests.plain import Plain
from tests.serve.service import serving
from tests.support import environment, eventually, needs_horovod
from tests.trust.hosts import USER, Host, can_have_hosts
from tests.workbench.session import WorkbenchSession

ROOT = Path(__file__).parent.parent.parent
PYTHONS = (ROOT / ".venv-tf1" / "bin" / "python", *sorted(Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python")))
OLD_PYTHONS = [path for path in PYTHONS if path.exists()]
IMPORTS = """\
import contextlib, json, click
from no_such_package import one, two
from beside import deeper
try:
    import cupy
except ImportError:
    import numpy as cupy
with contextlib.suppress(ImportError):
    import no_such_extra
if False:
    import only_sometimes
if TYPE_CHECKING:
    import no_such_types
else:
    import no_such_else
if not TYPE_CHECKING:
    import no_such_negation
def plot():
    import no_such_plots.pyplot
if __name__ == "__main__":
    import no_such_main
from muster.training import report
from muster import run_cluster
raise SystemExit("the script has been run")
"""


class Firewalled(LocalPlatform):
    """A machine whose workers cannot reach the session's port."""

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Launch workers that dial a port where nobody listens."""
        unreachable = [replace(spec, session=spec.session and replace(spec.session, port=1)) for spec in specs]
        return super().submit(unreachable, run_key)


class Full(LocalPlatform):
    """A platform that has no place for any worker."""

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Queue them."""
        self.status = Status.SCHEDULING
        return [spec.name for spec in specs]

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """They are queued, until they are stopped."""
        return [Worker(handle, handle, self.status) for handle in handles]

    def stop(self, handles: Sequence[str]) -> None:
        """Drop them from the queue."""
        self.status = Status.STOPPED


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, muster_home: Path) -> Any:
    """A working folder with a script; in the end no process and no record may be left of what was looked at."""
    (tmp_path / "train.py").write_text("import json\nraise SystemExit('the script has been run')\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    eventually(lambda: not linux.marked("MUSTER_HOME", str(muster_home)), "nothing left")
    assert list_runs() == []


def look(script: Any = "train.py", *, launch: bool = False, python: str = "", n: int = 2, **options: Any) -> Report:
    """Return the doctor's report on a job of plain processes."""
    resources = options.pop("resources", Resources(cpu=0.5, memory=0.5))
    job = Job(make_script(script), n, python=str(python), resources=resources)
    options.setdefault("strategy", Plain())
    return examine(Cluster(job, **options), launch=launch)


def problems(report: Report) -> list[tuple[str, str]]:
    return [(finding.level, finding.check) for finding in report.findings if finding.level != "ok"]


def interpreter(path: Path, text: str) -> Path:
    """An interpreter that does something of its own before it is this one."""
    path.write_text(f'#!/bin/sh\n{text}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


class TestTheScript:
    def test_imports_that_are_missing_are_named_with_their_lines_also_in_files_beside_it(self, folder: Path) -> None:
        (folder / "train.py").write_text(IMPORTS)
        (folder / "beside").mkdir()
        (folder / "beside" / "__init__.py").touch()
        (folder / "beside" / "deeper.py").write_text("\nimport no_such_depth\n")

        report = look()

        found = {
            finding.text.split(" imports ")[1].split(",")[0].split(":")[0]: finding for finding in report.of("imports")
        }
        assert {name: finding.level for name, finding in found.items()} == {
            "no_such_package.one": "error",
            "only_sometimes": "warning",
            "no_such_else": "error",
            "no_such_negation": "error",
            "no_such_plots.pyplot": "warning",
            "no_such_main": "error",
            "muster.run_cluster": "error",
            "no_such_depth": "error",
        }
        assert found["no_such_package.one"].text.startswith(f"{folder}/train.py, line 2,")
        assert f"{sys.executable} -m pip install no_such_package" in found["no_such_package.one"].fix
        assert found["no_such_depth"].text.startswith(f"{folder}/beside/deeper.py, line 2,")
        assert not report.is_fine

    @pytest.mark.parametrize(
        "text",
        [
            "import sys\nsys.path.insert(0, 'elsewhere')\nimport no_such_package\n",
            "try:\n    int('3')\nexcept ValueError:\n    import no_such_package\n",
            "def plot():\n    import plots\n",
        ],
        ids=["from another folder", "where something fails", "in a file that may not be imported"],
    )
    def test_an_import_that_may_never_fail_is_a_warning(self, folder: Path, text: str) -> None:
        (folder / "train.py").write_text(text)
        (folder / "plots.py").write_text("import no_such_package\n")

        report = look()

        assert problems(report) == [("warning", "imports")]
        assert report.is_fine

    def test_what_the_session_has_counts_only_if_the_workers_interpreter_has_it(self, folder: Path) -> None:
        (folder / "train.py").write_text("import click\n")
        bare = interpreter(folder / "bare", 'set -- -S "$@"')

        assert look().is_fine
        (missing,) = look(python=str(bare)).of("imports")
        assert f"imports click, which {bare} does not have" in missing.text

    @pytest.mark.skipif(not OLD_PYTHONS, reason="there is no Python older than 3.10 here")
    def test_it_is_compiled_by_the_interpreter_that_will_run_it(self, folder: Path) -> None:
        old = str(OLD_PYTHONS[0])
        (folder / "train.py").write_text("x = 1\nmatch x:\n    case 1: pass\n")

        report = look(python=old)

        (finding,) = report.of("script")
        assert f"{folder}/train.py, line 2, does not compile with {old}: invalid syntax" in finding.text
        assert finding.details.strip() == "match x:"
        assert not report.is_fine

    def test_a_module_is_followed_from_the_working_folder(self, folder: Path) -> None:
        (folder / "pack").mkdir()
        (folder / "pack" / "__init__.py").touch()
        (folder / "pack" / "train.py").write_text("import pack.other, no_such_package\n")
        (folder / "pack" / "other.py").write_text("import no_such_depth\n")

        missing = [finding.text.split()[0] for finding in look("pack.train").of("imports")]
        assert missing == [f"{folder}/pack/train.py,", f"{folder}/pack/other.py,"]

    @pytest.mark.parametrize("answer", ["echo 1; exit", "echo '['; exit", "exit", "kill -9 $$"])
    def test_an_interpreter_that_does_not_tell_what_it_finds(self, folder: Path, answer: str) -> None:
        only_here = f'case "$2" in *ImportFinder*) echo "a reason" >&2; {answer};; esac'
        (finding,) = look(python=str(interpreter(folder / "python", only_here))).of("script")
        assert (finding.level, "a reason" in (finding.details or "")) == ("error", True)
        assert "cannot look at" in finding.text

    def test_an_interpreter_that_is_gone(self, folder: Path) -> None:
        job = Job(make_script("train.py"), 2, python=str(interpreter(folder / "python", "")))
        checked = Cluster(job, strategy=Plain()).check()
        (folder / "python").unlink()
        (finding,) = examine(checked, launch=False).of("script")
        assert (finding.level, finding.text) == ("error", f"{job.python} cannot look at {folder / 'train.py'}")


class TestTheSession:
    def test_it_says_where_workers_run_and_where_they_look_for_it(self) -> None:
        (finding,) = look(session_address="127.0.0.2:4321").of("platform")
        assert finding.text == "workers run on this machine, and reach this session at 127.0.0.2, port 4321"

    def test_a_port_that_is_taken_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            (finding,) = look(session_address=address).of("session")
        assert finding.level == "error"
        assert f"cannot listen on {address}: Address already in use" in finding.text
        assert "session_address=" in finding.fix

    @pytest.mark.parametrize(
        ("limit", "run_timeout", "level", "words"),
        [
            ("30", 3600, "warning", "after 30 minutes without activity in a browser, and the run may take 60"),
            ("30", None, "warning", "nothing limits how long the run takes"),
            ("30", 600, "ok", "before the session's 30 minutes"),
            (None, 4000, "warning", "after 60 minutes"),
        ],
    )
    def test_a_run_that_outlasts_the_idle_limit(
        self, monkeypatch: Any, limit: str | None, run_timeout: float | None, level: str, words: str
    ) -> None:
        if limit is None:
            for name in ("API_KEY", "ENGINE_ID", "ENGINE_URL", "PROJECT_URL"):
                monkeypatch.setenv(f"CDSW_{name}", "http://workbench.example.org")
        else:
            monkeypatch.setenv("IDLE_MAXIMUM_MINUTES", limit)
        report = look(run_timeout=run_timeout, platform="local")
        (finding,) = report.of("idle limit")
        assert finding.level == level
        assert words in finding.text
        assert report.is_fine

    @pytest.mark.parametrize(
        ("kills", "lingers", "is_told"), [("yes", "no", True), ("yes", "yes", False), ("no", "no", False)]
    )
    def test_a_logout_that_ends_detached_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: str, lingers: str, is_told: bool
    ) -> None:
        loginctl = tmp_path / "loginctl"
        loginctl.write_text(
            "#!/bin/sh\ncase $* in\n"
            f"'show-session --property=KillUserProcesses') echo KillUserProcesses={kills};;\n"
            f"'show-user --property=Linger') echo Linger={lingers};;\n*) exit 1\nesac\n"
        )
        loginctl.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        report = look()
        assert [finding.fix for finding in report.of("logout")] == ["loginctl enable-linger"] * is_told
        assert report.is_fine

    def test_elsewhere_there_is_no_idle_limit(self) -> None:
        assert look().of("idle limit") == []

    def test_what_the_machine_could_never_grant(self) -> None:
        report = look(resources=Resources(cpu=10_000))
        (finding,) = report.of("resources")
        assert (finding.level, report.is_fine) == ("error", False)
        assert "each worker asks for 10000 cores" in finding.text

    @needs_horovod
    def test_slots_cores_memory_and_gpus_that_do_not_go_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "gpus", lambda: ["GPU-1", "GPU-2"])
        cores, memory = len(machine.cores()), machine.memory_bytes() / 1e9
        resources = Resources(cpu=cores, memory=0.75 * memory, gpu=1)
        found = look(strategy=Horovod(slots=cores + 1), resources=resources).of("resources")

        assert [finding.level for finding in found] == ["warning"] * 4
        text = "\n".join(finding.text for finding in found)
        assert f"{cores + 1} processes share the {cores} cores of each worker" in text
        assert f"1 GPU for {cores + 1} processes" in text
        assert f"2 workers x {cores} cores on this machine's {cores}: they share them, and each is slower" in text
        assert f"of this machine's {memory:.1f} GB" in text

    @pytest.mark.parametrize(("size", "level"), [("20m", "error"), ("400m", "warning")])
    def test_a_disk_that_is_nearly_full(self, folder: Path, size: str, level: str) -> None:
        doctor = f"{sys.executable} -m muster doctor --strategy processes train.py --no-launch --json"
        mount = f"mount -t tmpfs -o size={size} none {folder}"
        if subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True).returncode:
            pytest.skip("mounts cannot be made here")
        script = folder.parent / "train.py"
        script.write_text("pass\n")
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"{mount} && cd .. && {doctor}"],
            capture_output=True, text=True, env=environment(MUSTER_HOME=str(folder / "home")),
        )  # fmt: skip
        script.unlink()
        finding = next(finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == "disk")
        assert finding["level"] == level
        assert f"are free in {folder}/home" in finding["text"]
        assert "MUSTER_HOME=" in finding["fix"]
        assert done.returncode == (1 if level == "error" else 0)


class TestTheWorkers:
    def test_all_is_well_and_the_script_is_not_run(self) -> None:
        report = look(launch=True, strategy=Plain(needs_ssh=True))

        assert problems(report) == []
        assert report.is_fine
        assert {finding.check: finding.text for finding in report.findings}[
            "ssh"
        ] == "every worker answers on port 2222"
        assert "2 workers came up and reached the session" in report.of("launch")[0].text
        assert "Python 3." in report.of("versions")[0].text

    @pytest.mark.parametrize(
        ("resources", "words"),
        [(Resources(cpu=10_000), "asks for 10000 cores"), (Resources(cpu=0.1, memory=0.1, gpu=9), "GPUs")],
    )
    def test_what_the_platform_refuses(self, resources: Resources, words: str, monkeypatch: Any) -> None:
        monkeypatch.setattr(machine, "gpus", list)
        (finding,) = look(launch=True, resources=resources).of("launch")
        assert finding.level == "error"
        assert words in finding.text

    def test_too_few_free_ports(self) -> None:
        with socket.create_server(("", 0)) as taken:
            port = taken.getsockname()[1]
            (finding,) = look(launch=True, worker_ports=(port, port)).of("launch")
        assert f"found only 0 of 1 free ports between {port} and {port}" in finding.text + finding.details

    def test_without_paramiko_no_login_is_tried_and_that_is_no_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "paramiko", None)
        report = look(launch=True, strategy=Plain(needs_ssh=True))
        assert report.is_fine
        (finding,) = report.of("ssh")
        assert finding.text == "no login is tried: paramiko (a Python package) is not installed, which this needs."
        assert finding.fix == "pip install 'muster[trust]'"

    def test_a_machine_without_an_sshd(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").symlink_to("/usr/bin/ssh")
        monkeypatch.setattr(machine, "SSHD_PATHS", ())
        monkeypatch.setenv("PATH", str(folder / "bin"))
        (finding,) = look(launch=True, strategy=Plain(needs_ssh=True)).of("launch")
        assert "this machine has none" in finding.text
        assert "install openssh-server" in finding.fix

    def test_a_session_that_the_workers_cannot_reach(self) -> None:
        with contextlib.closing(Firewalled()) as platform:
            (finding,) = look(launch=True, platform=platform, timeout_seconds=20).of("launch")
        assert finding.level == "error"
        assert finding.worker in {"worker-0", "worker-1"}
        assert "session" in finding.text + finding.fix

    def test_a_platform_that_has_no_place_for_them(self) -> None:
        with contextlib.closing(Full()) as platform:
            (finding,) = look(launch=True, platform=platform, timeout_seconds=1).of("launch")
        assert finding.level == "error"
        assert "2 of 2 workers were still queued after 1 s" in finding.text

    def test_versions_that_differ_are_told_by_worker(self, folder: Path) -> None:
        for worker, version in (("worker-0", "1.0"), ("worker-1", "2.0")):
            (folder / worker / f"some_package-{version}.dist-info").mkdir(parents=True)
        python = interpreter(folder / "python", f'export PYTHONPATH="$PYTHONPATH:{folder}/$MUSTER_WORKER"')

        (finding,) = look(launch=True, python=str(python)).of("versions")

        assert finding.level == "warning"
        assert finding.text == "some_package is 1.0 on worker-0; 2.0 on worker-1"

    def test_packages_that_every_process_would_compile_anew_are_named(self, folder: Path) -> None:
        (folder / "theirs" / "torch").mkdir(parents=True)
        (folder / "theirs" / "torch" / "__init__.py").touch()
        more = f'export PYTHONPATH="$PYTHONPATH:{folder}/theirs"'
        keeps = str(interpreter(folder / "keeps", more))
        keeps_none = str(interpreter(folder / "keeps_none", f"{more} PYTHONDONTWRITEBYTECODE=1"))

        assert [finding.level for finding in look(launch=True, python=keeps).of("versions")] == ["ok"]
        _, finding = look(launch=True, python=keeps_none).of("versions")
        assert finding.level == "warning"
        # TensorFlow, too, where nothing has imported it yet in this environment.
        assert re.search("every process compiles (.+ and )?torch anew", finding.text)
        assert "(on worker-0 and worker-1)" in finding.text
        assert "`python -m compileall`" in str(finding.fix)

        py_compile.compile(str(folder / "theirs" / "torch" / "__init__.py"))
        assert not any("torch" in finding.text for finding in look(launch=True, python=keeps_none).of("versions"))

    def test_workers_with_an_interpreter_of_their_own_are_asked_what_it_lacks(self, folder: Path) -> None:
        (folder / "theirs").mkdir()
        (folder / "theirs" / "only_there.py").touch()
        (folder / "train.py").write_text("import only_there\nimport no_where\n")
        python = str(interpreter(folder / "python", f'export PYTHONPATH="$PYTHONPATH:{folder}/theirs"'))
        with contextlib.closing(LocalPlatform()) as platform:
            platform.python = python
            report = look(launch=True, platform=platform, n=1)
            request = RunRequest(script="only_there", n_workers=1, strategy="processes", platform=platform)
            module = check(request).job.script

        assert report.of("imports") == []
        assert [finding.text for finding in report.findings if finding.level == "error"] == [
            f"{python} has no no_where"
        ]
        assert module == Script("module", "only_there"), "which this session does not have"

    def test_an_interpreter_that_fails_on_a_worker(self, folder: Path) -> None:
        python = interpreter(folder / "python", '[ "$MUSTER_WORKER" = worker-1 ] && { echo no licence; exit 3; }')
        (finding,) = look(launch=True, python=str(python)).of("launch")
        assert finding.worker == "worker-1"
        assert "exit status 3" in finding.text
        assert "no licence" in finding.details

    @pytest.mark.slow
    def test_a_worker_that_does_not_share_the_runs_folder(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workers, "ANSWER_SECONDS", 5.0)
        python = interpreter(folder / "python", f'[ "$MUSTER_WORKER" = worker-1 ] && export MUSTER_RESULTS={folder}')
        (finding,) = look(launch=True, python=str(python)).of("folders")
        assert (finding.level, finding.worker) == ("error", "worker-1")
        assert "MUSTER_HOME=" in finding.fix


class TestOnTheWorkbench:
    def test_all_is_well(self, workbench_session: WorkbenchSession) -> None:
        report = look(launch=True, strategy=Plain(needs_ssh=True))

        assert [finding for finding in report.findings if finding.level == "error"] == []
        assert report.of("ssh")[0].text == "every worker answers on port 2222"
        assert report.of("idle limit")[0].level == "warning"
        eventually(lambda: not workbench_session.living(), "no worker lives")

    @pytest.mark.slow
    def test_a_quota_that_is_full(self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with serving(folder, "--max-session-workers", "1", home=folder / "home") as workbench:
            session = WorkbenchSession.new(workbench.url, workbench.key)
            for name, value in session.environment.items():
                monkeypatch.setenv(name, value)

            (finding,) = look(launch=True, platform="workbench").of("launch")

            assert finding.level == "error"
            assert finding.worker in ("worker-0", "worker-1"), "whichever of the two asked last"
            assert "No more workers: this session has 1" in finding.text
            assert "fewer" in finding.fix
            eventually(lambda: not session.living(), "no worker lives")


def member(name: str = "worker-0", **fields: Any) -> Member:
    return replace(Member(name, "worker", 0, "127.0.0.1", interfaces=("eth0",)), **fields)


@pytest.mark.parametrize(
    ("interfaces", "wanted", "level", "words"),
    [
        ((("lo", "eth0"), ("eth0",)), None, "ok", "all workers have eth0"),
        ((("eth0",), ("ib0",)), None, "error", "worker-0 has eth0; worker-1 has ib0"),
        ((("eth0", "ib0"), ("eth0",)), "ib0", "error", "worker-1 has no interface ib0"),
    ],
)
def test_a_network_interface_in_common(interfaces: Any, wanted: str | None, level: str, words: str) -> None:
    members = [member(f"worker-{index}", interfaces=names) for index, names in enumerate(interfaces)]
    (finding,) = _check_interfaces(members, Horovod(network_interface=wanted))
    assert (finding.level, words in finding.text) == (level, True)


@pytest.mark.skipif(not can_have_hosts(), reason="needs root, mount namespaces and an sshd")
def test_workers_whose_sshd_does_not_answer_or_is_another_or_refuses(
    make_host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts: list[Host] = [make_host(), make_host()]
    right, wrong = generate_key_pair(), generate_key_pair()
    identity = write_private(tmp_path / "identity", right.private)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: type("Account", (), {"pw_name": USER}))
    for host, key in zip(hosts, (right, wrong), strict=True):
        host.authorized_keys.parent.mkdir()
        host.authorized_keys.write_text(key.public + "\n")
        host.give_home_to_user()
    at = {"ssh_port": 2222, "interfaces": ()}
    members = [
        member("good", host=hosts[0].address, host_key=hosts[0].key.public, **at),
        member("another", host=hosts[0].address, host_key=wrong.public, **at),
        member("refuses", host=hosts[1].address, host_key=hosts[1].key.public, **at),
        member("silent", host=random_loopback_address(), host_key=right.public, **at),
    ]
    found = {finding.worker: finding.text for finding in _check_logins(members, identity)}

    assert found.keys() == {"another", "refuses", "silent"}
    assert "does not match" in found["another"]
    assert "Authentication failed" in found["refuses"]
    assert "Unable to connect" in found["silent"]


class TestTheCommand:
    def run(self, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["doctor", *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    def test_a_job_that_is_fine(self) -> None:
        code, output = self.run("--strategy", "processes", "-n", "2", "--cpu", "0.5", "train.py", "--epochs", "3")
        assert code == 0, output
        assert "2 workers came up" in output

    def test_what_is_no_job_is_a_finding_and_status_1(self, folder: Path) -> None:
        (folder / "train.py").write_text("if x\n")
        code, output = self.run("-s", "processes", "train.py", "--json")
        assert code == 1
        (finding,) = json.loads(output)["findings"]
        assert "line 1, does not compile" in finding["text"]

    def test_a_cluster_without_a_script(self) -> None:
        code, output = self.run("-s", "processes", "-n", "1", "--cpu", "0.5", "--no-launch")
        assert code == 0, output
        assert "compiles" not in output
        assert "none is given, so this is about workers alone" in output


class TestTheCall:
    def test_it_takes_the_arguments_of_run_cluster(self, folder: Path) -> None:
        wanted: dict[str, Any] = {"strategy": "processes", "worker_script": "train.py", "args": ["--epochs", 3]}
        report = muster.doctor(2, cpu=0.5, slots=2, dashboard=False, launch=False, **wanted)
        assert report.is_fine, str(report)
        assert [finding.text for finding in report.of("script")] == [f"{sys.executable} compiles {folder}/train.py"]
        assert muster.doctor(1, strategy="processes", worker_script=os.getpid, launch=False).is_fine

    def test_what_is_no_job_is_a_finding_and_what_is_no_call_an_error(self) -> None:
        (finding,) = muster.doctor(0, strategy="processes", worker_script="train.py").findings
        assert (finding.level, finding.check) == ("error", "job")
        with pytest.raises(JobError, match="no argument 'script'") as raised:
            muster.doctor(1, script="train.py")
        assert raised.value.advice == "worker_script="


class TestTheReport:
    report = Report(
        [Finding("ok", "disk", "[red]is[/red] there"), Finding("error", "ssh", "\x1b[31mno", "do", "worker-1", "line")]
    )

    def test_as_text(self) -> None:
        text = "\n".join(line.rstrip() for line in str(self.report).splitlines())
        assert "✓  disk  [red]is[/red] there" in text
        assert "✗  ssh   worker-1: no\n         line\n         Try: do" in text
        assert repr(self.report) == "<Report: 1 ok, 0 warning, 1 error>"

    def test_in_a_notebook(self) -> None:
        bundle = self.report._repr_mimebundle_()
        assert "<td style='text-align: left; vertical-align: top'>worker-1: no<br><pre" in bundle["text/html"]
        assert "[red]is[/red] there" in bundle["text/html"]
        assert "worker-1" in bundle["text/plain"]

    def test_as_data(self) -> None:
        assert self.report.to_dict()["is_fine"] is False
        assert self.report.to_dict()["findings"][1]["worker"] == "worker-1"


def test_packages_of_workers_are_compared_with_those_of_this_session() -> None:
    here = {"python": ".".join(map(str, sys.version_info[:3])), **packages()}
    told = {"missing": ["torch"], "python": "3.6.1", "packages": {**packages(), "numpy": "1.0", "click": "1.0"}}
    facts = {"worker-0": told, "worker-1": {**told, "missing": []}}
    job = Job(Script("function", "train"), 2, python="/opt/python")
    found = [(finding.level, finding.text) for finding in _compare_with_session(facts, job)]
    assert found == [
        ("error", "/opt/python has no torch"),
        ("warning", f"numpy is {here['numpy']} in this session, and 1.0 on worker-0 and worker-1"),
        ("error", f"python is {here['python']} in this session, and 3.6.1 on worker-0 and worker-1"),
        ("ok", "other packages of this session that differ there, or are not there: click"),
    ]


def test_what_setuptools_brings_along_for_itself_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("site", "_vendor"):
        (tmp_path / folder / f"in_{folder}-1.0.dist-info").mkdir(parents=True)
        monkeypatch.syspath_prepend(tmp_path / folder)
    found = packages()
    assert found["in_site"] == "1.0"
    assert "in__vendor" not in found
