"""Asking for stacks disturbs nothing, whatever the process has become, and however deep it is."""

from __future__ import annotations

import sys
import textwrap

import pytest
from muster.agent.stacks import LARGEST

from tests.agent.launched import RUNNER, Launched, platform, worker  # noqa: F401  (fixtures)
from tests.support import command_line, eventually, is_gone


def run_program(worker: Launched, text: str) -> int:  # noqa: F811
    """Start a program by the runner, as a run does; returns its process id once it has printed ``up``."""
    program = worker.spec.log.parent / "program.py"
    program.write_text(textwrap.dedent(text))
    pid = worker.start(sys.executable, str(RUNNER), "program", str(program))
    worker.output_with("up")
    return pid


def test_a_stack_that_is_very_deep_is_cut(worker: Launched) -> None:  # noqa: F811
    depth = (
        50_000 if sys.version_info >= (3, 11) else 10_000
    )  # before, calls of Python took from the stack of C as well
    pid = run_program(
        worker,
        f"""
        import sys, threading, time
        def recurse(depth):
            if depth:
                recurse(depth - 1)
            else:
                innermost()
        def innermost():
            print("up", flush=True)
            time.sleep(600)
        sys.setrecursionlimit(100_000)
        recurse({depth})
        """,
    )
    worker.send("stacks")
    text = worker.session.wait_for("stacks")["text"]
    assert len(text) < LARGEST
    assert "innermost" in text
    assert "more calls" in text
    assert not is_gone(pid)
    worker.sh("exit 0")
    assert worker.session.wait_for("exited")["exit_code"] == 0, "the agent still serves"


def test_the_stacks_of_very_many_threads_are_cut_and_the_main_thread_stays(worker: Launched) -> None:  # noqa: F811
    run_program(
        worker,
        """
        import threading, time
        def wait_here(depth):
            wait_here(depth - 1) if depth else time.sleep(600)
        for _ in range(300):
            threading.Thread(target=wait_here, args=(90,), daemon=True).start()
        def main_here():
            print("up", flush=True)
            time.sleep(600)
        main_here()
        """,
    )
    worker.send("stacks")
    text = worker.session.wait_for("stacks")["text"]
    assert len(text) <= LARGEST + 200
    assert "main_here" in text.split("(most recent call first)")[1]
    assert "runner.py" not in text.split("(most recent call first)")[1], "which has called the script"
    assert "left out" in text.splitlines()[-1]


@pytest.mark.slow
def test_text_of_any_bytes_and_any_length_fits_into_a_message(worker: Launched) -> None:  # noqa: F811
    pid = run_program(
        worker,
        r"""
        import glob, os, time
        with open(glob.glob(os.environ["MUSTER_SCRATCH"] + "/stacks-*[0-9]")[0], "ab") as file:
            print("up", flush=True)
            for _ in range(200):
                file.write(b"\x01\xff" * 20_000)
                file.flush()
                time.sleep(0.01)
        """,
    )
    worker.send("stacks")
    assert len(worker.session.wait_for("stacks")["text"]) <= LARGEST + 200
    eventually(lambda: is_gone(pid), "the program has gone on to its end")
    assert worker.session.wait_for("exited")["exit_code"] == 0


CATCHES = "trap 'echo asked; exit 3' USR1; while :; do sleep 0.1; done"


def test_a_process_that_becomes_another_program_after_it_was_asked_is_left_alone(worker: Launched) -> None:  # noqa: F811
    pid = run_program(
        worker,
        f"""
        import ctypes, os, sys
        sys.setswitchinterval(100)  # so that no other thread gets the interpreter's lock
        print("up", flush=True)
        ctypes.PyDLL(None).usleep(300_000)
        os.execv("/bin/sh", ["sh", "-c", {CATCHES!r}])
        """,
    )
    worker.send("stacks")
    assert "has become another program" in worker.session.wait_for("stacks")["text"]
    assert "runner.py" not in command_line(pid)
    worker.session.listen(0.5)
    assert not is_gone(pid)


@pytest.mark.parametrize("program", ["sleep 600", CATCHES])
def test_a_process_that_has_become_another_program_is_left_alone(worker: Launched, program: str) -> None:  # noqa: F811
    pid = run_program(
        worker,
        f"""
        import os
        print("up", flush=True)
        os.execvp("sh", ["sh", "-c", {program!r}])
        """,
    )
    eventually(lambda: "runner.py" not in command_line(pid), "it has become the other program")
    worker.send("stacks")
    assert "has become another program" in worker.session.wait_for("stacks")["text"]
    worker.session.listen(0.5)
    assert not is_gone(pid)


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_a_process_that_does_not_catch_the_signal_is_not_sent_it(worker: Launched, handler: str) -> None:  # noqa: F811
    pid = run_program(
        worker,
        f"""
        import re, signal
        signal.signal(signal.SIGUSR1, signal.{handler})
        print("up", flush=True)
        re.match('(a+)+$', 60 * 'a' + 'b')  # keeps the interpreter's lock
        """,
    )
    worker.send("stacks")
    assert "does not catch the signal" in worker.session.wait_for("stacks")["text"]
    assert not is_gone(pid)


def test_a_scratch_folder_that_is_gone_ends_no_worker(worker: Launched) -> None:  # noqa: F811
    pid = run_program(
        worker,
        """
        import os, shutil, time
        shutil.rmtree(os.environ["MUSTER_SCRATCH"])
        print("up", flush=True)
        time.sleep(600)
        """,
    )
    worker.send("stacks")
    assert f"Process {pid} runs python" in worker.session.wait_for("stacks")["text"]
    worker.send("ping", number=1)
    worker.session.wait_for("clock")
    assert not worker.session.received("error")
    assert not is_gone(pid)


def test_files_that_are_named_almost_like_those_of_stacks_end_no_worker(worker: Launched) -> None:  # noqa: F811
    pid = run_program(
        worker,
        """
        import os, time
        for name in ("stacks-²", "stacks-1x", "stacks-", "stacks-" + 200 * "9", "stacks-٣"):
            open(os.path.join(os.environ["MUSTER_SCRATCH"], name), "w").close()
        print("up", flush=True)
        time.sleep(600)
        """,
    )
    worker.send("stacks")
    assert "program.py" in worker.session.wait_for("stacks")["text"]
    assert not is_gone(pid)


@pytest.mark.parametrize("shell", ["{}; exit $?", "( {} & ); sleep 600"], ids=["started", "left behind"])
def test_the_stack_of_an_interpreter_that_a_shell_has_started_is_that_of_its_rank(
    worker: Launched,  # noqa: F811
    shell: str,
) -> None:
    program = worker.spec.log.parent / "program.py"
    program.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    command = shell.format(f"{sys.executable} {RUNNER} program {program}")
    worker.send("start", argv=["sh", "-c", command], env={}, cwd=None, rank=3, split=False)
    worker.output_with("up")
    worker.send("stacks")
    told = worker.session.wait_for("stacks")
    assert told["rank"] == 3
    assert "program.py" in told["text"]
    worker.session.listen(0.5)
    assert len(worker.session.received("stacks")) == 1, "of the shell, which is the same rank, nothing else is said"


def test_of_a_program_that_is_no_python_its_agent_tells_what_it_runs_and_that_it_is_stopped(
    worker: Launched,  # noqa: F811
) -> None:
    program = "sleep 600 & kill -STOP $!; until grep -q '^State:.T' /proc/$!/status; do :; done; echo up; wait"
    worker.send("start", argv=["sh", "-c", program], env={}, cwd=None, rank=3, split=False)
    worker.output_with("up")
    pid = worker.session.wait_for("started")["pid"]
    worker.send("stacks")
    told = worker.session.wait_for("stacks")
    assert (told["rank"], told["is_stopped"]) == (3, True)
    assert f"Process {pid} runs sh, which tells no Python stacks" in told["text"]
