"""Advice on what to try for each kind of failure; arguments in it are shown as each interface names them."""

from __future__ import annotations

import errno
import math
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import replace

from muster.failure.failures import Bearing, Failure, FailureKind
from muster.text.arguments import Argument, ArgumentText
from muster.text.system_errors import FULL_DISK

HOROVOD_KERAS = (
    "in its place: from muster.training import keras as distributed, with distributed.DistributedOptimizer(...) and "
    "callbacks=distributed.callbacks()"
)
OPEN_PORT = ArgumentText(
    "open that port of the session for the workers (a firewall's rule, a network policy), or ",
    Argument("session_address", ""),
    " an address and port that they reach",
)
OF_PROCESSES = {"'RANK'", "'WORLD_SIZE'", "'LOCAL_RANK'", "'MASTER_ADDR'", "'MASTER_PORT'"}
BIND = re.compile(r"\.bind\(|create_server\(|HTTPServer\(|socketserver|asyncio|http/server\.py")  # by the script

# As ssh says it, of a host whose sshd runs: its agent has looked.
BLOCKED_PORT = re.compile(
    r"connect to host \S+ port (\d+): (?:Connection timed out|Connection refused|No route to host)"
)
ALIASES = {  # packages by the names under which scripts usually import them
    "np": "numpy",
    "pd": "pandas",
    "plt": "matplotlib.pyplot",
    "tf": "tensorflow",
    "hvd": "horovod.tensorflow",
    **{name: name for name in ("horovod", "json", "keras", "math", "os", "random", "sys", "time", "torch")},
}


def build_horovod_again(problem: str, python: str = "python") -> ArgumentText:
    """Return what to try where an interpreter's Horovod lacks a part, given the words that say which."""
    framework = "PYTORCH" if "horovod.torch" in problem else "TENSORFLOW"
    return ArgumentText(
        f"HOROVOD_WITH_GLOO=1 HOROVOD_WITH_{framework}=1 {python} -m pip install --no-cache-dir --force-reinstall "
        "--no-deps --no-build-isolation horovod, or ",
        Argument("python", ""),
        " an interpreter whose Horovod works",
    )


def advice_on_exception(failure: Failure, has_copy: bool) -> str | None:
    """Return what to try after a script's exception; None if the exception itself says enough.

    Args:
        has_copy: whether the script runs in a copy of the project's files.
    """
    return (
        _on_horovod(failure)
        or _on_other_surroundings(failure)
        or _on_missing_name(failure)
        or _on_missing_file(failure, has_copy)
        or _on_scarcity(failure)
        or _on_lost_peer(failure)
    )


def _on_horovod(failure: Failure) -> str | None:
    """Return what to try where Horovod itself cannot do what the script asks."""
    if re.search(r"/horovod/(_keras|keras|tensorflow/keras)/", failure.traceback):
        return f"Horovod's own Keras integration does not work with Keras 3; {HOROVOD_KERAS}"
    if re.match(r"Extension horovod\.\w+ has not been built", failure.message):
        return build_horovod_again(failure.message)
    if "Horovod has not been initialized" in failure.message:
        return "hvd.init() at the beginning of the script, before anything else of Horovod"
    return None


def _on_other_surroundings(failure: Failure) -> str | None:
    """Return what to try where workers differ from a notebook or a terminal, for which the script may be written."""
    if failure.type == "KeyError" and failure.message in OF_PROCESSES:
        return ArgumentText(
            Argument("strategy", "processes"),
            " sets that; under Horovod hvd.rank(), hvd.local_rank() and hvd.size() tell it, under MPI "
            "mpi4py.MPI.COMM_WORLD",
        )
    if failure.type == "EOFError" and "EOF when reading a line" in failure.message:
        return ArgumentText(
            "workers have no standard input: in place of input() give the script ",
            Argument("args"),
            " or ",
            Argument("env"),
        )
    if failure.type.rpartition(".")[2] == "BdbQuit" or failure.message.startswith("breakpoint() has no debugger"):
        return "leave the debugger out: print what it would show; `muster stacks` says where ranks are"
    if failure.type == "TypeError" and "what the function returned" in failure.message:
        return "return numbers, texts, arrays or dicts and lists of them, and save models to a file in MUSTER_RESULTS"
    if re.search(r"module 'muster' has no|from 'muster'|No module named 'muster\.", failure.message):
        return "workers have muster.training alone: launch runs in the session, and have the script import only that"
    if failure.type == "ImportError" and "relative import" in failure.message:
        return "a file of a package runs as a module: give its dotted name (`muster run -m pkg.train`)"
    return None


def _on_missing_name(failure: Failure) -> str | None:
    """Return what to try where a name or a package is not there."""
    if found := re.search(r"Did you mean: '([^'\n]+)'\?\s*$", failure.traceback):
        missing = re.search(r"\b(?:name|attribute) '(\w+)'", failure.message)
        return f"{found[1]} in place of {missing[1]}" if missing else f"{found[1]}, which is near"
    if failure.type == "NameError" and (missing := re.search(r"^name '(\w+)' is not defined", failure.message)):
        package = ALIASES.get(missing[1])
        if package is None:
            return f"define or import {missing[1]} in the script or function itself, before it is used"
        return (
            f"import {package}{f' as {missing[1]}' if missing[1] != package else ''}, in the script or function itself"
        )
    if failure.type == "ModuleNotFoundError":
        return ArgumentText(
            "install the package for the script's interpreter, or ", Argument("python", ""), " one that has it"
        )
    return None


def _on_missing_file(failure: Failure, has_copy: bool) -> str | None:
    """Return what to try where a file or a program is not there."""
    if failure.type != "FileNotFoundError":
        return None
    if "in _execute_child" in failure.traceback:
        return f"see that this program is installed on {failure.worker or 'the worker'}, or give its full path"
    if re.search(r"(^|[\s'\"])/", failure.message):
        return ArgumentText(
            f"see that it is there on {failure.worker or 'the worker'}, or give the script another path (",
            Argument("args"),
            ", ",
            Argument("env"),
            ")",
        )
    if has_copy:
        return ArgumentText(
            "the script runs in a copy of the project's files, without those that git ignores: ",
            Argument("project", ""),
            " says which go along; data that is on the worker has an absolute path",
        )
    return "scripts run in the session's working directory; an absolute path is the same everywhere"


def _on_scarcity(failure: Failure) -> str | None:
    """Return what to try where a port is taken, or there is too little memory."""
    if re.search(r"Address already in use|Could not start gRPC server|could not bind", failure.message, re.IGNORECASE):
        if BIND.search(failure.traceback):
            return (
                "the script itself listens on a port that is taken, perhaps by another rank of it: bind port 0, which "
                "is any free one, or a port of each rank's own"
            )
        return ArgumentText(
            "another process took the port; run again, or give ports of their own with ", Argument("worker_ports", "")
        )
    if FULL_DISK.search(failure.message):  # TensorFlow says it of files, too
        return ArgumentText(
            f"make room on the disk of {failure.worker or 'the worker'} that it writes to: logs and MUSTER_RESULTS of "
            "runs on the session's machine are below MUSTER_HOME, which may be a folder elsewhere"
        )
    if failure.type in {"MemoryError", "ResourceExhaustedError"}:
        return ArgumentText("more ", Argument("memory"), " for the workers, or a smaller batch size")
    return None


def _on_lost_peer(failure: Failure) -> str | None:
    """Return what to try where another process was lost."""
    if replace(failure, peer_was_gone=None).bearing >= Bearing.BROKEN:  # judged by its message alone
        return "this is how losing a peer looks; read the other workers' logs for what came before"
    return None


def advice_on_exit(failure: Failure, is_python: bool) -> str | None:
    """Return what to try after a process has ended by itself."""
    if failure.kind is FailureKind.ENDED:
        return "see the end of its log for what ended it"
    if failure.exit_code == 2:
        return ArgumentText(
            "if its log ends with a usage message, correct the arguments of the script (",
            Argument("args", ""),
            "); if not, it ended itself, as by sys.exit(2), for what its log says",
        )
    if failure.exit_code == 127:
        return "a command that the script starts is not there; see the end of its log"
    if not is_python:
        return "the program itself ended with that status: see the end of its log"
    return (
        f"the script ended itself, as by sys.exit({failure.exit_code}), and raised nothing: see the end of its log; "
        "an exception in its place would be shown here"
    )


def advice_on_signal(number: int | None, is_python: bool = True) -> str:
    """Return what to try after a signal has ended a process."""
    if number == signal.SIGKILL:
        return "see in dmesg whether memory ran out: then smaller batches or fewer workers; or else somebody killed it"
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGBUS, signal.SIGFPE):
        if is_python:
            return "compiled code crashed; the Python stack at that moment is at the end of the log"
        return (
            "the program crashed: build it with -g, and see in a debugger (gdb, or its core after ulimit -c unlimited)"
        )
    if number == signal.SIGPIPE:
        return "it wrote to a connection or pipe whose other end was closed; see what it was connected to"
    if number == signal.SIGINT and is_python:
        return "the script raised KeyboardInterrupt itself, or somebody sent the signal: see its traceback"
    return "somebody sent it; run again"


def advice_on_loss(text: str) -> str:
    """Return what to try after a worker is gone, given the reason in words."""
    if "cannot start" in text and os.strerror(errno.EAGAIN).lower() in text.lower():
        return "allow more processes on its machine (ulimit -u), or end some that run there; or start fewer workers"
    if "cannot start" in text:
        return "see that the interpreter and the working directory are there on the worker, and that it may run them"
    if "has not come back" in text:
        return ArgumentText(
            "see whether its machine, and the network to it, are still there; ", Argument("restarts", 1),
            " tries again by itself",
        )  # fmt: skip
    return "see whether something on its machine ends processes (out of memory, a time limit); then run again"


def advice_on_launcher(text: str) -> str | ArgumentText:
    """Return what to try after a launcher has failed, given the end of its log."""
    blocked = BLOCKED_PORT.search(text)
    if blocked and "could not connect to some hosts" in text:
        return ArgumentText(
            f"something between the workers may block port {blocked[1]}, such as a firewall; ",
            Argument("launcher", "agents"),
            " starts the ranks without ssh",
        )
    if "Host key verification failed" in text or "could not connect to some hosts" in text:
        return "the workers' sshd did not answer, or proved to be somebody else; see the workers' logs"
    if "has not been built" in text:
        return build_horovod_again(text)
    return "the launcher's own words above say more"


def advice_on_missing(missing: Mapping[str, object], total: int, seconds: float, is_here: bool) -> ArgumentText:
    """Return what to try if workers are missing: on this machine, where nothing blocks them, fewer or more time."""
    if not is_here and any(missing.values()):
        return ArgumentText(
            "a longer ",
            Argument("timeout_seconds"),
            "; and see whether workers can reach the session (",
            Argument("session_address"),
            ")",
        )
    came = total - len(missing)
    where = "this machine" if is_here else "the platform"
    if not came:
        return ArgumentText("fewer workers, or a longer ", Argument("timeout_seconds"), f": {where} is slow")
    needed = math.ceil(seconds * total / came * 1.5 / 60) * 60  # half as much again as at the pace so far, in minutes
    return ArgumentText(
        Argument("timeout_seconds", needed), f", or fewer workers: {where} brought up {came} in {seconds:g} s"
    )
