"""Whoever of a run is killed, nothing of it is left behind: no process, no folder, no port."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent import linux

from tests.support import Run, descendants_of, environment, eventually, is_gone

NOTICE = 20.0  # seconds within which everything must be gone; usually it takes some hundredths
# A process with children of all kinds: in its group, in a session of its own, and daemons that nobody waits for, one of
# them without the run's mark in its environment.
FAMILY = (
    "sleep 601 & setsid sleep 602 & (setsid sleep 603 &) ; (env -i /usr/bin/setsid /bin/sleep 604 &) ; "
    "trap '' HUP; sleep 0.1; echo ready; while :; do sleep 605; done"
)


def is_ready(log: Path) -> bool:
    return "ready" in log.read_text()


class SessionProcess:
    """A session of its own, with workers."""

    def __init__(self, run: Run, names: list[str], command: str, ssh: bool = False, fork: bool = False) -> None:
        wanted = {
            "folder": str(run.folder),
            "run": run.id,
            "scratch": str(run.scratch),
            "names": names,
            "command": command,
            "ssh": ssh,
            "fork": fork,
        }
        program = Path(__file__).with_name("session_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program), json.dumps(wanted)],
            stdout=subprocess.PIPE,
            env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the session failed"
        self.facts: dict[str, Any] = json.loads(line)
        run.ports = self.facts["ports"]
        for name in names:
            if "echo ready" in command:
                log = run.folder / f"{name}.log"
                eventually(functools.partial(is_ready, log), "the command runs")
        self.everything = [*descendants_of(self.facts["guard"]), self.facts["guard"]]

    def end(self) -> None:
        """Kill it, and its forked children."""
        for pid in [self.process.pid, *filter(None, [self.facts.get("child")])]:
            linux.kill(pid)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


Start = Callable[..., SessionProcess]


@pytest.fixture
def start(run: Run) -> Iterator[Start]:
    started: list[SessionProcess] = []

    def start(names: list[str] | None = None, command: str = FAMILY, **options: Any) -> SessionProcess:
        started.append(SessionProcess(run, names or ["worker-0", "worker-1"], command, **options))
        return started[-1]

    yield start
    for session in started:
        session.end()


def assert_all_gone(pids: list[int], since: float) -> None:
    eventually(lambda: all(is_gone(pid) for pid in pids), f"{pids} are gone", timeout=NOTICE)
    print(f"all gone after {time.monotonic() - since:.3f} s")


def kill(*pids: int) -> float:
    """Kill processes as nearly at once as can be; returns when."""
    now = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # none of them may act on the end of another
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # what is not among them may have ended it by now
            os.kill(pid, signal.SIGKILL)
    return now


VICTIMS = {
    "session": lambda facts: [facts["pid"]],
    "session and guard": lambda facts: [facts["pid"], facts["guard"]],
    "session and agents": lambda facts: [facts["pid"], *facts["agents"]],
    "session and one agent": lambda facts: [facts["pid"], facts["agents"][0]],
    "session and processes": lambda facts: [facts["pid"], *facts["processes"]],
    "guard": lambda facts: [facts["guard"]],
}


@pytest.mark.parametrize("victims", VICTIMS)
@pytest.mark.parametrize("ssh", [False, True], ids=["plain", "sshd"])
def test_nothing_is_left_after_killing(start: Start, run: Run, victims: str, ssh: bool) -> None:
    session = start(ssh=ssh)
    assert len(session.everything) > 12
    since = kill(*VICTIMS[victims](session.facts))
    assert_all_gone(session.everything, since)
    eventually(lambda: not list(run.scratch.glob("worker-*")), "no scratch is left", timeout=NOTICE)
    if "session" in victims:
        eventually(lambda: not run.scratch.exists(), "the run's folder is gone", timeout=NOTICE)


def test_a_forked_child_of_the_session_keeps_nothing_alive(start: Start, run: Run) -> None:
    session = start(fork=True)
    since = kill(session.facts["pid"])
    assert_all_gone(session.everything, since)
    assert not is_gone(session.facts["child"])


@pytest.mark.slow
def test_an_interrupted_session_loses_nothing(start: Start) -> None:
    session = start()
    os.killpg(session.facts["pid"], signal.SIGSTOP)
    os.killpg(session.facts["guard"], signal.SIGINT)
    os.killpg(session.facts["guard"], signal.SIGHUP)
    time.sleep(1.5)
    assert not any(is_gone(pid) for pid in session.everything)
    os.killpg(session.facts["pid"], signal.SIGCONT)
    time.sleep(0.2)
    assert not any(is_gone(pid) for pid in session.everything)


def test_an_agent_that_is_killed_takes_its_worker_with_it_and_no_other(start: Start, run: Run) -> None:
    session = start()
    first, second = session.facts["agents"]
    of_first, of_second = descendants_of(first), descendants_of(second)
    since = kill(first)
    assert_all_gone([first, *of_first], since)
    assert not any(is_gone(pid) for pid in (second, *of_second))
    eventually(lambda: not (run.scratch / "worker-0").exists(), "its scratch is gone")
    assert (run.scratch / "worker-1").exists()


def test_a_process_that_is_killed_takes_its_children_with_it(start: Start) -> None:
    session = start(names=["worker-0"])
    (process,) = session.facts["processes"]
    (agent,) = session.facts["agents"]
    family = [pid for pid in descendants_of(agent) if b"MUSTER_PROCESS=1" in linux.environment_of(pid)]
    assert len(family) >= 4
    since = kill(process)
    assert_all_gone(family, since)
    assert not is_gone(agent)


def test_secrets_are_on_no_command_line_and_in_no_environment(start: Start, run: Run) -> None:
    session = start(ssh=True)
    secrets = [session.facts["token"].encode(), b"PRIVATE KEY", b"BEGIN CERTIFICATE"]
    for pid in session.everything:
        shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert not any(secret in shown for secret in secrets)
    files = [path for path in run.scratch.rglob("*") if path.is_file()]
    assert [path for path in files if path.stat().st_mode & 0o077] == []
