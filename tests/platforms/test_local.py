"""Workers on the session's own machine: everything that is special about them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import muster
import pytest
from muster.agent import linux
from muster.agent.guard_clients import guard_address
from muster.errors import LaunchRefused, PlatformError
from muster.job import Status
from muster.platforms import guard_process
from muster.platforms.guard_process import GuardGone
from muster.platforms.local import LocalPlatform
from muster.runtime import children

from tests.support import (
    InterruptedPopen,
    Run,
    StubSession,
    alarms,
    eventually,
    guard_of,
    handles_of,
    is_gone,
    shell,
)


@pytest.fixture
def platform(run: Run) -> Iterator[LocalPlatform]:
    platform = LocalPlatform()
    yield platform
    platform.close()


def worker_of(pid: int) -> str:
    """The worker that a process belongs to."""
    found = [entry for entry in linux.environment_of(pid) if entry.startswith(b"MUSTER_WORKER=")]
    return found[0].decode() if found else ""


def final(platform: LocalPlatform) -> bool:
    return all(worker.status.is_final for worker in platform.list())


def test_every_worker_has_an_address_of_its_own(platform: LocalPlatform, run: Run) -> None:
    platform.launch([run.spec(f"worker-{index}") for index in range(4)])
    eventually(lambda: all(worker.address for worker in platform.list()), "all have addresses")
    addresses = {worker.address for worker in platform.list()}
    assert len(addresses) == 4
    assert all(address and address.startswith("127.") for address in addresses)


def test_two_platforms_at_once_do_not_disturb_each_other(platform: LocalPlatform, run: Run) -> None:
    other = LocalPlatform()
    platform.launch([run.spec("worker-0", process=shell("sleep 600"))])
    other.launch([run.spec("worker-1", process=shell("echo here"))])
    eventually(lambda: final(other), "the other's worker has ended")
    assert [worker.name for worker in other.list()] == ["worker-1"]
    assert platform.list()[0].status in (Status.STARTING, Status.RUNNING)
    # Closing ends what is marked with the same run, which is the only thing that both have in common.
    other.close()


def test_launches_from_several_threads(platform: LocalPlatform, run: Run) -> None:
    def launch(index: int) -> None:
        platform.launch([run.spec(f"worker-{index}", process=shell("exit 0"))])

    threads = [threading.Thread(target=launch, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: final(platform), "all have ended")
    assert {worker.status for worker in platform.list()} == {Status.SUCCEEDED}


def test_when_the_guard_is_killed_its_workers_have_failed(platform: LocalPlatform, run: Run) -> None:
    workers = platform.launch([run.spec(process=shell("sleep 600"))])
    os.kill(guard_of(workers[0].id), signal.SIGKILL)
    eventually(lambda: final(platform), "the worker has failed")
    (worker,) = platform.poll(handles_of(workers))
    assert worker.status is Status.FAILED
    assert worker.reason
    assert "guard" in worker.reason
    platform.close()
    assert platform.launch([run.spec("worker-1")])


def test_what_a_guard_has_ended_itself_is_not_looked_for_again(
    platform: LocalPlatform, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads the environments of all processes for nothing."""
    looked_for: list[tuple[str, ...]] = []

    def marked(*mark: str) -> list[int]:
        looked_for.append(mark)
        return []

    monkeypatch.setattr(linux, "marked", marked)
    platform.launch([run.spec(process=shell("setsid sleep 600 & sleep 600"))])
    platform.close()
    monkeypatch.undo()
    assert looked_for == []
    assert not run.left_behind()


def test_a_guard_that_was_stopped_goes_on_when_it_is_needed(platform: LocalPlatform, run: Run) -> None:
    handles = platform.submit([run.spec(process=shell("sleep 600"))], "run")
    guard = guard_of(handles[0])
    os.kill(guard, signal.SIGSTOP)
    assert not platform.poll(handles)[0].status.is_final
    os.kill(guard, signal.SIGSTOP)
    platform.close()
    assert is_gone(guard)
    assert not run.left_behind()


def test_a_guard_that_is_slow_is_not_said_to_be_gone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = LocalPlatform()
    handles = platform.submit([run.spec(process=shell("sleep 600"))], "run")
    guard = guard_of(handles[0])
    with monkeypatch.context() as patched:
        patched.setattr(guard_process, "REPLY_TIMEOUT", 0.5)  # of these questions alone: a launch may take longer
        patched.setattr(children, "send_signal", lambda child, number: None)  # nobody lets it go on
        os.kill(guard, signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(PlatformError, match=r"has not answered for 0.5 s: this machine is too busy") as error:
                platform.poll(handles)
            assert not isinstance(error.value, GuardGone)
            assert error.value.advice
        os.kill(guard, signal.SIGCONT)
        with pytest.raises(PlatformError, match="has not answered"):  # what it says now answers the first question
            platform.poll(handles)
    platform.close()
    assert not run.left_behind()


def call_guard(handle: str, request: bytes, connections: int = 1) -> list[bytes]:
    """Return the answers of a worker's guard to as many connections that say the same; empty where it hangs up."""
    guard = guard_of(handle)
    address = guard_address(guard, linux.start_of(guard))
    answers = []
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(connections)]
        for connection in sockets:
            connection.connect(address)
            connection.settimeout(5)
        for connection in sockets:
            try:
                connection.sendall(request)
                answers.append(connection.recv(1 << 16))
            except OSError:
                answers.append(b"")
    return answers


def test_when_the_guard_is_killed_agents_end_their_processes_and_nobody_else_does(
    platform: LocalPlatform, run: Run
) -> None:
    """Neither a rank nor the session's own launcher: their ends by signals would look like the cause."""
    (handle,) = platform.submit([run.spec(process=shell("exec sleep 600"))], "run")
    (rank,) = eventually(lambda: linux.marked("MUSTER_RUN_ID", run.id), "it runs")
    agent = linux.snapshot()[rank].parent
    os.kill(agent, signal.SIGSTOP)  # it is slow
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.defpath, "MUSTER_RUN_ID": run.id}) as launcher:
        os.kill(guard_of(handle), signal.SIGKILL)
        eventually(lambda: [worker.status for worker in platform.list()] == [Status.FAILED], "the worker has failed")
        assert launcher.poll() is None
        assert not is_gone(rank)
        os.kill(agent, signal.SIGCONT)
        eventually(lambda: is_gone(rank), "its agent has ended it")
        launcher.kill()


def test_strangers_and_nonsense_do_nothing_to_the_guard(platform: LocalPlatform, run: Run) -> None:
    (worker,) = platform.launch([run.spec(process=shell("sleep 600"))])
    assert worker.id.encode() in call_guard(worker.id, b'{"type": "poll"}\n')[0]
    for request in (b"\xff\n", b"[1]\n", b"{}\n", b'{"type": 1}\n', b"x" * (1 << 21)):
        assert call_guard(worker.id, request) == [b""]
    for request in (
        b'{"type": "close"}\n',
        b'{"type": "launch"}\n',
        b'{"type": "_stop"}\n',
        b'{"type": "stop", "x": 1}\n',
    ):
        assert b'"error"' in call_guard(worker.id, request)[0]
    assert len([answer for answer in call_guard(worker.id, b'{"type": "poll"}\n', 40) if answer]) == 16
    # Once it has seen that those have hung up.
    eventually(lambda: worker.id.encode() in call_guard(worker.id, b'{"type": "poll"}\n')[0], "there is room again")
    assert not platform.poll([worker.id])[0].status.is_final


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_other_users_cannot_ask_the_guard(platform: LocalPlatform, run: Run) -> None:
    (worker,) = platform.launch([run.spec(process=shell("sleep 600"))])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setuid(54321)
            status = 0 if call_guard(worker.id, b'{"type": "poll"}\n') == [b""] else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert call_guard(worker.id, b'{"type": "poll"}\n')[0]


def test_an_agent_that_is_killed_is_a_reason(platform: LocalPlatform, run: Run, stub_session: StubSession) -> None:
    platform.launch([run.spec(session=stub_session.address)])
    os.kill(stub_session.wait_for("hello")["pid"], signal.SIGKILL)
    eventually(lambda: final(platform), "the worker has failed")
    assert platform.list()[0].reason == "Its agent was ended by SIGKILL."


def test_a_forked_child_can_end_nothing(platform: LocalPlatform, run: Run) -> None:
    platform.launch([run.spec(process=shell("sleep 600"))])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            platform.poll([])
        except PlatformError:
            platform.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert not final(platform)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt within a destructor
def test_an_interrupt_leaves_the_platform_in_order(platform: LocalPlatform, run: Run) -> None:
    workers = platform.launch([run.spec(process=shell("sleep 600"))])
    interrupted = 0
    with alarms(signal.default_int_handler):
        for delay in range(30):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + delay * 0.00002)
                platform.poll(handles_of(workers))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
    assert interrupted
    assert platform.poll(handles_of(workers))[0].name == "worker-0"


@pytest.mark.timeout(30)
def test_an_interrupt_while_the_guard_is_looked_at_leaves_it_to_be_ended(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", InterruptedPopen)
    platform = LocalPlatform()
    workers = platform.launch([run.spec(process=shell("sleep 600"))])
    guard = guard_of(workers[0].id)
    assert platform.poll(handles_of(workers))[0].name == "worker-0"
    os.kill(guard, signal.SIGKILL)
    eventually(lambda: platform.has_lost_guard, "the guard is known to be gone")
    platform.close()


def test_a_scratch_path_too_long_for_sockets(platform: LocalPlatform, run: Run) -> None:
    with pytest.raises(LaunchRefused, match="too long"):
        platform.launch([run.spec(scratch=run.scratch / ("x" * 100))])


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.10", "3.12", "3.13"])
def test_agents_run_on_other_interpreters(run: Run, stub_session: StubSession, version: str,
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found:
        pytest.skip(f"there is no Python {version}")
    monkeypatch.setattr(sys, "executable", str(found[0]))
    platform = LocalPlatform()
    try:
        platform.launch([run.spec(session=stub_session.address, ports=1)])
        assert stub_session.wait_for("hello")["python"].startswith(version)
        stub_session.send("worker-0", "start", argv=["/bin/sh", "-c", "echo hello; exit 3"], env={}, cwd=None)
        assert stub_session.wait_for("exited")["exit_code"] == 3
        assert stub_session.output() == "hello\n"
        stub_session.send("worker-0", "start", argv=["/bin/sleep", "600"], env={}, cwd=None)
        stub_session.wait_for("started", count=2)
    finally:
        platform.close()
    assert platform.list()[0].status is Status.STOPPED


ORDINARY = """
import os, shutil, sys, tempfile, pathlib
from support import Run, StubSession, fresh_identity, key_pair
from muster.platforms.local import LocalPlatform
import subprocess
folder = pathlib.Path(tempfile.mkdtemp())
os.environ["MUSTER_HOME"] = str(folder / "home")
run, session, platform = Run(folder), StubSession(), LocalPlatform()
platform.launch([run.spec(session=session.address, ssh=fresh_identity())])
hello = session.wait_for("hello")
session.send("worker-0", "start", argv=["/usr/bin/id", "-u"], env={}, cwd=None)
assert session.wait_for("exited")["exit_code"] == 0
session.listen(0.1)
key = folder / "key"
key.write_text(key_pair()[0])
key.chmod(0o600)
options = "StrictHostKeyChecking=no UserKnownHostsFile=/dev/null BatchMode=yes LogLevel=ERROR".split()
options = ["-F", "none", "-i", str(key), "-p", "2222", *[f"-o{option}" for option in options]]
answer = subprocess.run(["ssh", *options, hello["host"], "id -u"], capture_output=True, text=True)
platform.close()
assert run.left_behind() == [], run.left_behind()
run.remove()
shutil.rmtree(folder)
print(session.output().strip(), answer.stdout.strip(), *answer.stderr.split())
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can become somebody else")
def test_as_an_ordinary_user() -> None:
    """All of it again as a user without rights.

    The user has an account, and may read this interpreter and this tree, in a mount namespace of this test only.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "passwd").write_text(
            Path("/etc/passwd").read_text() + f"somebody:x:54321:54321::{folder}:/bin/sh\n"
        )
        (Path(folder) / "program.py").write_text(ORDINARY)
        sources = {
            "python": sys.base_prefix,
            "site": sysconfig.get_path("purelib"),
            "sdk": Path(muster.__file__).parent.parent,
            "tests": Path(__file__).parent.parent,
        }
        mounts = [f"mount --bind {folder}/passwd /etc/passwd"]
        for name, source in sources.items():
            (Path(folder) / name).mkdir()
            mounts.append(f"mount --bind {source} {folder}/{name}")
        python = f"{folder}/python/bin/python3.{sys.version_info.minor}"
        path = ":".join(f"{folder}/{name}" for name in ("sdk", "tests", "site"))
        user = "setpriv --reuid 54321 --regid 54321 --clear-groups"
        libraries = f"LD_LIBRARY_PATH={folder}/python/lib"  # as its own are where only root may read
        become = f"exec {user} env -i {libraries} HOME={folder} PATH=$PATH PYTHONPATH={path} PYTHONDONTWRITEBYTECODE=1"
        result = subprocess.run(
            ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, f"{become} {python} {folder}/program.py"])],
            capture_output=True,
            text=True,
            cwd="/",
            timeout=60,
            check=False,
        )
        if "Operation not permitted" in result.stderr or "unshare failed" in result.stderr:
            pytest.skip("no mount namespaces here")
        assert result.stdout == "54321 54321\n", result.stderr


@pytest.mark.slow
def test_stopping_an_agent_that_hangs(platform: LocalPlatform, run: Run, stub_session: StubSession) -> None:
    workers = platform.launch([run.spec(session=stub_session.address)])
    agent = stub_session.wait_for("hello")["pid"]
    os.kill(agent, signal.SIGSTOP)
    since = time.monotonic()
    platform.stop(handles_of(workers))
    eventually(lambda: final(platform), "it was killed")
    assert time.monotonic() - since < 5
    assert is_gone(agent)
    assert platform.list()[0].status is Status.STOPPED
