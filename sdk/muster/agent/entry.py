"""Program that sshd runs for every login to a worker (its ``ForceCommand``).

A command of horovodrun to start a rank is passed to the agent as a request, and this process only waits for the rank's
end. Any other command, such as mpiexec's daemon, is run as usual, in the worker's environment and folder; the agent is
told if it cannot be run, or a signal ends it. In both cases this process ends when its parent, the sshd of this one
connection, does, as the kernel sends it a signal; the agent sees that, and ends the rank. So no other process may be
between the two.
"""

import json
import os
import re
import shlex
import signal
import socket
import sys

from . import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


RANK_COMMAND = re.compile(r"cd (?P<cwd>.*?) > /dev/null 2>&1 ; (?:env )?(?P<rest>[A-Za-z_]\w*=.*)", re.DOTALL)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
NOTICES = {signal.SIGCHLD, signal.SIGTERM}  # a command has ended; sshd has, or wants this process to
FAILED = 255  # what ssh itself exits with when it fails
CANNOT_RUN = (126, 127)  # what shells exit with if a program may not be run, or is not found
BY_SIGNAL = 128  # what shells add to the number of a signal


def parse_rank(command: str) -> "dict[str, Any] | None":
    """Return ``rank``, ``env`` and ``argv`` of horovodrun's command to start a rank; None if it is another command.

    Its form is ``cd FOLDER > /dev/null 2>&1 ; env NAME=VALUE ... PROGRAM ARGUMENT...``, with values and arguments
    quoted for a shell, and ``HOROVOD_RANK`` among the names. The folder is not quoted, and therefore not used.
    ``env`` has the rank and the number of ranks under the names that all of Muster's ranks have, too.
    """
    found = RANK_COMMAND.match(command)
    if not found:
        return None
    try:
        words = shlex.split(found.group("rest"))
    except ValueError:
        return None
    env = {}
    while words and ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if not words or not env.get("HOROVOD_RANK", "").isdecimal():
        return None
    env["MUSTER_RANK"], env["MUSTER_WORLD_SIZE"] = env["HOROVOD_RANK"], env.get("HOROVOD_SIZE", "")
    return {"rank": int(env["HOROVOD_RANK"]), "env": env, "argv": words}


def main(agent_socket: str) -> None:
    """Serve one login, and exit with the status of the rank or command that it started."""
    linux.signal_at_parent_death(signal.SIGKILL)
    command = os.environ.get("SSH_ORIGINAL_COMMAND", "")
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(agent_socket)
        if os.getppid() == linux.peer_of(connection)[0]:
            sys.exit(FAILED)  # sshd had ended before its death could be watched, and the agent has adopted this process
        rank = parse_rank(command)
        if rank is None:
            answer = _ask(connection, {"type": "environment"})
            code = _run(command, answer["env"], answer["cwd"])
            if code in CANNOT_RUN or BY_SIGNAL < code < FAILED:
                connection.sendall(_line({"type": "broken", "code": code}))
            sys.exit(code)
        else:
            answer = _ask(connection, dict(rank, type="rank"))
            if answer.get("error"):
                sys.stderr.write("muster: {}\n".format(answer["error"]))
            sys.exit(answer["code"])
    except (OSError, ValueError) as error:
        sys.stderr.write("muster: this worker's agent does not answer: {}\n".format(error))
        sys.exit(FAILED)


def _run(command: str, env: "dict[str, str]", cwd: str) -> int:
    """Run a command in a shell; return its exit status, or 128 plus the number of the signal that ended it."""
    if not command:
        sys.stderr.write("muster: a worker runs commands, but has no login shell\n")
        return 1
    os.chdir(cwd)
    # A launcher whose daemon here was killed hangs up at once, so that sshd may have ended before this process has seen
    # how the daemon ended. So that it still looks, it is not killed with sshd any more, but told.
    signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    linux.signal_at_parent_death(signal.SIGTERM)
    parent = os.getpid()
    shell = os.fork()
    if shell == 0:
        try:
            linux.signal_at_parent_death(signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)
            if os.getppid() == parent:
                os.execve("/bin/sh", ["sh", "-c", command], env)
        finally:
            os._exit(FAILED)
    status = _wait_for(shell)
    if status is None:
        return FAILED
    return BY_SIGNAL + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _wait_for(process: int) -> "int | None":
    """Return how a process ended; None if sshd ended first, or this process was told to end."""
    notice = None
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended and not os.WIFSTOPPED(status):  # as it may be by a debugger
            return status
        if notice == signal.SIGTERM:
            return None
        notice = signal.sigwait(NOTICES)


def _ask(connection: socket.socket, question: "dict[str, Any]") -> "dict[str, Any]":
    connection.sendall(_line(question))
    with connection.makefile("rb") as answers:
        answer = answers.readline()
    if not answer:
        raise ValueError("it hung up")
    return dict(json.loads(answer.decode("utf-8")))


def _line(message: "dict[str, Any]") -> bytes:
    return json.dumps(message).encode("ascii") + b"\n"
