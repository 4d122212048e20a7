"""A worker that its system tells to end: SIGTERM comes to the agent and to its processes, all at once."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from muster.agent import linux
from muster.platforms.local import LocalPlatform

from tests.agent.launched import RUNNER, Launched, platform, worker
from tests.support import Run, StubSession, command_line, descendants_of, eventually, fresh_identity, is_gone

__all__ = ["platform", "worker"]

ENDLESS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def state(pid: int) -> str:
    found = linux.stat(pid)
    return found.state if found else ""


def end_together(worker: Launched, pid: int) -> None:
    """Have a process and its agent told to end, so that the agent hears of both at the same time."""
    agent = worker.hello["pid"]
    os.kill(agent, signal.SIGSTOP)
    eventually(lambda: state(agent) == "T", "the agent stands still")
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: is_gone(pid), "the process has ended")
    os.kill(agent, signal.SIGTERM)
    os.kill(agent, signal.SIGCONT)
    worker.session.wait_for("hung_up")


@pytest.mark.parametrize("how", ["dies of it", "exits", "raises", "exits as a script"])
def test_what_has_ended_with_its_worker_has_been_stopped(worker: Launched, tmp_path: Path, how: str) -> None:
    script = tmp_path / "train.py"
    if how == "dies of it":
        pid = worker.sh("echo up; exec sleep 600")
    elif how == "exits":
        pid = worker.sh("trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done")
    else:
        ends = "raise ValueError" if how == "raises" else "sys.exit(3)"
        script.write_text(
            f"import signal, sys\ndef end(*_):\n    {ends}\nsignal.signal(signal.SIGTERM, end)\n{ENDLESS}"
        )
        pid = worker.start(sys.executable, str(RUNNER), "program", str(script))
    worker.output_with("up")
    end_together(worker, pid)
    (end,) = worker.session.received("exited")
    assert (end["pid"], end["reason"]) == (pid, "stopped")
    reports = [message["report"]["kind"] for message in worker.session.received("report")]
    assert "exception" not in reports


def test_a_worker_whose_process_was_told_to_end_a_moment_before_it_is_taken_away(worker: Launched) -> None:
    pid = worker.sh("echo up; exec sleep 600")
    worker.output_with("up")
    os.kill(pid, signal.SIGTERM)
    worker.session.wait_for("exited")
    os.kill(worker.hello["pid"], signal.SIGTERM)
    worker.session.wait_for("hung_up")
    assert worker.session.received("preempted")


def test_a_worker_without_processes_is_told_to_end_by_whoever_has_ended_them(worker: Launched) -> None:
    worker.sh("exit 1")
    worker.session.wait_for("exited")
    os.kill(worker.hello["pid"], signal.SIGTERM)
    worker.session.wait_for("hung_up")
    assert not worker.session.received("preempted")


@pytest.mark.skipif(not shutil.which("ssh"), reason="there is no sshd")
def test_an_sshd_that_has_ended_with_its_worker_is_no_complaint(
    run: Run, stub_session: StubSession, platform: LocalPlatform
) -> None:
    worker = Launched(run, stub_session, platform, ssh=fresh_identity())
    agent = worker.hello["pid"]
    sshd = next(pid for pid in descendants_of(agent) if "sshd_config" in command_line(pid))
    end_together(worker, sshd)
    assert not stub_session.received("error")


def test_an_agent_that_is_told_twice_tells_its_processes_once(worker: Launched) -> None:
    worker.sh("trap 'echo told' TERM; echo up; while :; do sleep 0.01; done")
    worker.output_with("up")
    os.kill(worker.hello["pid"], signal.SIGTERM)  # a notice, with time for scripts
    worker.output_with("about to be taken away")
    for _ in range(2):
        os.kill(worker.hello["pid"], signal.SIGTERM)
        worker.output_with("\ntold")
    worker.session.wait_for("hung_up")
    assert worker.session.output().count("\ntold") == 1


def test_a_platform_that_is_closed_gives_no_notice_but_ends_its_workers(
    worker: Launched, platform: LocalPlatform, tmp_path: Path
) -> None:
    worker.sh(f"trap 'touch {tmp_path}/told; exit' TERM; echo up; while :; do sleep 0.01; done")
    worker.output_with("up")
    platform.close()
    assert (tmp_path / "told").exists()
    assert "about to be taken away" not in worker.spec.log.read_text()


def test_a_notice_that_cannot_be_written_ends_nothing(worker: Launched) -> None:
    worker.sh("mkdir $MUSTER_SCRATCH/preempted; echo up; sleep 600")
    worker.output_with("up")
    os.kill(worker.hello["pid"], signal.SIGTERM)
    worker.output_with("about to be taken away")
    worker.send("ping", number=1)
    worker.session.wait_for("clock")


def test_what_starts_beside_a_launcher_that_runs_on_knows_nothing_of_an_attempt_before(
    worker: Launched, tmp_path: Path
) -> None:
    launcher = ["/bin/sh", "-c", "echo ready; sleep 600"]
    worker.send("launch", argv=launcher, line=launcher, env={}, files={}, cwd=str(tmp_path))
    worker.session.wait_for("launcher_output")
    worker.sh("while [ ! -e $MUSTER_SCRATCH/preempted ]; do sleep 0.01; done; exit 1")
    worker.send("notice")
    worker.session.wait_for("exited")
    worker.sh("[ -e $MUSTER_SCRATCH/preempted ] && echo knows || echo knows nothing")
    assert "knows nothing" in worker.output_with("knows")


def test_all_that_was_printed_is_told_before_the_end(run: Run, stub_session: StubSession) -> None:
    platform = LocalPlatform(log_cap=1 << 25)
    try:
        worker = Launched(run, stub_session, platform)
        pid = worker.sh("sleep 0.2; head -c 20000000 /dev/zero | tr '\\0' x")
        os.kill(worker.hello["pid"], signal.SIGSTOP)  # it finds all of it at once
        eventually(lambda: is_gone(pid), "all has been printed")
        worker.send("end", after_output=True)
        os.kill(worker.hello["pid"], signal.SIGCONT)
        worker.session.wait_for("hung_up")
        assert worker.session.output().count("x") == 20_000_000
    finally:
        platform.close()
