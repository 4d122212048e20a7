"""The process that holds up a run in which nothing moves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

from muster.agent import waiting
from muster.agent.wire import ProcessStacks, TcpConnection
from muster.failure.waiting import Source, Verdict, find_blocker, is_in_own_code

from tests.support import eventually

ZERO: Source = ("worker-0", 0)
ONE: Source = ("worker-1", 1)
TWO: Source = ("worker-2", 2)
SERVER: Source = ("ps-0", None)
LIBRARY = (
    'Current thread 0x1 (most recent call first):\n  File "/v/lib/site-packages/tensorflow/execute.py", line 1 in f'
)
OWN = (
    'MainThread (most recent call first):\n  File "/me/train.py", line 1 in step\n\n'
    'Thread-1 (most recent call first):\n  File "/v/site-packages/x.py", line 1'
)


def test_the_one_that_is_not_waiting_in_a_library_is_the_one_that_hangs() -> None:
    assert find_blocker([ZERO, ONE], {ZERO: ProcessStacks(LIBRARY), ONE: ProcessStacks(OWN)}).source == ONE
    assert find_blocker([ZERO, ONE], {}).source == ZERO


def test_one_that_was_stopped_is_named_before_all_others() -> None:
    found = find_blocker([ZERO, ONE], {ZERO: ProcessStacks(OWN), ONE: ProcessStacks("", is_stopped=True)})
    assert found.source == ONE
    assert "SIGSTOP" in found.why


def test_one_whose_agent_does_not_answer_is_named_before_those_that_have_answered() -> None:
    answers = {ZERO: ProcessStacks(OWN), TWO: ProcessStacks(LIBRARY)}
    found = find_blocker([ZERO, ONE, TWO], answers)
    assert found.source == ONE
    assert "Its agent does not answer" in found.why
    assert find_blocker([ZERO, ONE], {}).why == "", "nobody answers at all"


def test_a_program_without_stacks_is_named_before_those_that_wait_in_a_library() -> None:
    shown = "Process 7 runs solver, which tells no Python stacks."
    assert find_blocker([ZERO, ONE], {ZERO: ProcessStacks(LIBRARY), ONE: ProcessStacks(shown)}).source == ONE
    assert find_blocker([ZERO, ONE], {ZERO: ProcessStacks(shown), ONE: ProcessStacks(OWN)}).source == ONE


def test_a_server_that_was_stopped_is_named_before_those_that_wait_for_it() -> None:
    answers = {ZERO: ProcessStacks(OWN), ONE: ProcessStacks(OWN), SERVER: ProcessStacks("", is_stopped=True)}
    assert find_blocker([ZERO, ONE], answers, [SERVER]).source == SERVER
    assert find_blocker([ZERO, ONE], {ZERO: ProcessStacks(OWN), ONE: ProcessStacks(OWN)}, [SERVER]).source == ZERO


def test_the_one_that_the_others_wait_to_hear_from_is_named_also_where_they_wait_for_each_other() -> None:
    """A server waits for a worker, another worker for the server."""
    answers = {
        SERVER: ProcessStacks(
            OWN, connections=(TcpConnection("s:1", "a:1"), TcpConnection("s:1", "b:1", is_awaited=True))
        ),
        ZERO: ProcessStacks(OWN, connections=(TcpConnection("a:1", "s:1", is_awaited=True),)),
        ONE: ProcessStacks(OWN, connections=(TcpConnection("b:1", "s:1"),)),
    }
    assert find_blocker([ZERO, ONE], answers, [SERVER]).source == ONE
    answers[ONE] = ProcessStacks(OWN, connections=(TcpConnection("b:1", "s:1", is_awaited=True),))
    assert find_blocker([ZERO, ONE], answers, [SERVER]).source == ZERO, "all wait in a circle"
    answers[SERVER] = ProcessStacks(OWN, connections=(TcpConnection("s:1", "a:1", 9), TcpConnection("s:1", "b:1", 9)))
    assert find_blocker([ZERO, ONE], answers, [SERVER]).source == SERVER


def test_one_that_does_not_read_what_has_come_holds_up_the_others() -> None:
    def answer(*unread: int) -> ProcessStacks:
        return ProcessStacks(OWN, connections=tuple(TcpConnection("a:1", "b:2", count) for count in unread))

    answers = {ZERO: answer(0, 4096), ONE: answer(4096, 4096), TWO: answer(0, 0)}
    assert find_blocker([ZERO, TWO, ONE], answers).source == ONE
    assert find_blocker([ZERO, TWO, ONE], {**answers, ZERO: answer(1, 1)}).source == ZERO  # nobody stands out


def test_words_of_a_framework_that_are_about_to_be_read_blame_nobody_while_another_one_is_in_its_own_code() -> None:
    answers = {
        ZERO: ProcessStacks(OWN, connections=(TcpConnection("a:1", "b:1"),)),
        ONE: ProcessStacks(LIBRARY, connections=(TcpConnection("b:1", "a:1", 64),)),
    }
    assert find_blocker([ONE, ZERO], answers) == Verdict(ZERO)
    assert find_blocker([ONE, ZERO, TWO], {**answers, TWO: ProcessStacks(OWN)}) == Verdict(ZERO)
    assert find_blocker([ONE, ZERO], {**answers, ZERO: ProcessStacks(LIBRARY)}).source == ONE


def test_the_two_ends_of_a_link_that_is_cut_are_named() -> None:
    answers = {
        ZERO: ProcessStacks(OWN, connections=(TcpConnection("h0:1", "h2:5", 4096), TcpConnection("h0:2", "h1:3"))),
        ONE: ProcessStacks(OWN, connections=(TcpConnection("h1:9", "h2:4", 0, unanswered=5),)),
        TWO: ProcessStacks(OWN, connections=(TcpConnection("h2:4", "h1:9"), TcpConnection("h2:5", "h0:1"))),
    }
    found = find_blocker([ZERO, ONE, TWO], answers)
    assert (found.source, found.other) == (ONE, TWO)
    assert "h2:4" in found.why
    assert find_blocker([ZERO, ONE], {ONE: answers[ONE]}) == Verdict(ONE, found.why, None)


def test_the_kernel_tells_of_stopped_processes_and_of_what_they_have_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = "import socket, sys; peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
        program += "; sys.stdin.read()"
        port = str(listener.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", program, port], stdin=subprocess.PIPE) as process:
            connection, address = listener.accept()
            with connection:
                connection.sendall(b"gradient")
                assert not waiting.is_stopped(process.pid)
                os.kill(process.pid, signal.SIGSTOP)
                eventually(lambda: waiting.is_stopped(process.pid), "it stops")
                [found] = waiting.connections_of([process.pid])
                assert found == TcpConnection(f"127.0.0.1:{address[1]}", f"127.0.0.1:{port}", unread=8)
                connection.shutdown(socket.SHUT_WR)
                process.kill()
    assert waiting.connections_of([process.pid]) == ()
    assert not waiting.is_stopped(process.pid)


def test_a_wrapper_without_a_file_is_not_the_users_own_code() -> None:
    frames = [
        'File "<string>", line 59 in horovod_allreduce',
        'File "/env/lib/site-packages/horovod/mpi_ops.py", line 1 in a',
    ]
    stack = "MainThread (most recent call first):\n  " + "\n  ".join(
        [*frames, 'File "/home/me/train.py", line 7 in step']
    )
    assert not is_in_own_code(stack)
    assert is_in_own_code(stack.replace("/env/lib/site-packages/horovod", "/home/me"))
