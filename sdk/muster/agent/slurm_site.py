"""Work on a machine that submits jobs to Slurm: its commands, and the submissions' files, which compute nodes see.

The platform calls these functions where its session runs on such a machine, and otherwise has the guard of its login to
one call them. All take and return plain data.
"""

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time

from .owners import is_left_behind, is_orphaned, owner
from .removal import OWNER, remove_folder
from .worker import own_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

SECONDS = 60.0  # time that a command may take, as a busy controller answers late
ENDED = r"already|invalid job|not found|no such"  # in the output of scancel for jobs that have ended
AGAIN_SECONDS = 2.0  # between two attempts to cancel a job
LATE_SECONDS = 10.0  # for which attempts go on, as a job's submission may have been under way when the session ended
LARGEST_NEWS = 1 << 20  # bytes of what an agent has left for its platform
LARGEST_OUTPUT = 1 << 23  # characters of what a command prints, or a file holds
LARGEST_END = 16 << 10  # bytes that are read of the end of a job's output, which may be of any size
LAST_SECONDS = 5.0  # that a task which is ended may take to write its last words
AT_ONCE = 8  # commands that are run at the same time
PROFILE_SECONDS = 10.0  # that the user's startup files may take, while the platform waits for twice as long


# -- Slurm's commands -------------------------------------------------------------------------------------------------


def missing(programs: "list[str]") -> "dict[str, Any]":
    """Return those of these programs that are not on the search path."""
    return {"programs": [name for name in programs if not shutil.which(name)]}


def command(argv: "list[str]", given: "str | None", limit: float, without: "list[str]") -> "dict[str, Any]":
    """Run a command, and return its ``status`` and output, or ``why`` it cannot be run; neither if it takes too long.

    Args:
        argv: the command.
        given: its standard input.
        limit: seconds that it may take.
        without: variables of this process's environment that it does not get.
    """
    source: "dict[str, Any]" = {"stdin": subprocess.DEVNULL} if given is None else {"input": given.encode()}
    try:
        done = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=limit,
            env={name: value for name, value in environment().items() if name not in without},
            **source,
        )
    except subprocess.TimeoutExpired:
        return {}
    except OSError as error:
        return {"why": error.strerror or str(error)}
    return {"status": done.returncode, "out": _text(done.stdout), "said": _text(done.stderr)}


def commands(argvs: "list[list[str]]", limit: float) -> "dict[str, Any]":
    """Run commands whose output nobody needs, some at the same time; return whether one took too long (``late``).

    Args:
        argvs: the commands.
        limit: seconds that each may take.
    """
    late = False
    for first in range(0, len(argvs), AT_ONCE):
        deadline = time.monotonic() + limit
        begun = [
            subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
            )
            for argv in argvs[first : first + AT_ONCE]
        ]
        for process in begun:
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                late = True
                process.kill()
                process.wait()
    return {"late": late}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")[-LARGEST_OUTPUT:]


def environment() -> "dict[str, str]":
    """Return the environment for Slurm's commands, without the user's filters of what these show or cancel.

    Nor has it the nodes of a step that the session is in.
    """
    filters = ("SQUEUE_", "SINFO_", "SCANCEL_", "SACCT_")
    kept = {name: value for name, value in of_whole_job().items() if not name.startswith(filters)}
    return dict(kept, LC_ALL="C", SLURM_TIME_FORMAT="%s")


def of_whole_job() -> "dict[str, str]":
    """Return this process's environment without the nodes of its step, which srun would take for all of the job's."""
    return {name: value for name, value in os.environ.items() if name not in ("SLURM_JOB_NODELIST", "SLURM_NODELIST")}


def variables() -> "dict[str, Any]":
    """Return the variables by which the user gives sbatch options here."""
    return {"variables": {name: value for name, value in os.environ.items() if name.startswith("SBATCH_")}}


def take_environment_of_a_terminal() -> None:
    """Take over the environment of the user's terminals here, as sites set the path of Slurm's commands for these."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = [shell, "-l", "-c", "printf '\\0muster\\0'; env -0"]
        with tempfile.TemporaryFile() as output:  # a pipe would stay open for what these files start in the background
            subprocess.run(
                asked, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, timeout=PROFILE_SECONDS
            )
            output.seek(0)
            printed = output.read()
        for line in printed.partition(b"\0muster\0")[2].split(b"\0"):
            name, is_set, value = os.fsdecode(line).partition("=")
            if name and is_set:
                os.environ[name] = value


def has_ended(done: "dict[str, Any]") -> bool:
    """Return whether a call of scancel has done its work, or found no job that goes on."""
    if "status" not in done:
        return False
    said = done["said"].strip()
    return done["status"] == 0 or not said or re.search(ENDED, said, re.IGNORECASE) is not None


def clean_up(labels: "list[str]", folders: "list[str]") -> None:
    """Cancel jobs by their names for some seconds, as one may still be in submission at first, and remove folders.

    Raises:
        OSError: Slurm does not answer.
    """
    began = time.monotonic()
    while labels:
        argv = ["scancel", "--quiet", "--me", "--name={}".format(",".join(labels))]
        done = command(argv, None, SECONDS, [])
        if not has_ended(done):
            raise OSError("scancel failed: {}".format(done))
        if time.monotonic() > began + LATE_SECONDS:
            break
        time.sleep(AGAIN_SECONDS)
    for folder in folders:  # it still holds the secrets of jobs that never began
        remove(folder)


# -- submissions' files -----------------------------------------------------------------------------------------------


def home(folder: str) -> "dict[str, Any]":
    """Return the path of the folder for submissions; Muster's own in the user's home unless one is named."""
    own = os.path.join(os.environ.get("MUSTER_HOME") or os.path.join("~", ".muster"), "slurm")
    return {"folder": os.path.abspath(os.path.expanduser(folder or own))}


def identity() -> "dict[str, Any]":
    """Return the label of this process, and the name of its host."""
    return {"process": owner(), "host": socket.gethostname()}


def address(towards: "list[str]") -> "dict[str, Any]":
    """Return the address from which this machine reaches the first of these that can be looked up; or nothing."""
    for other in towards:
        with contextlib.suppress(OSError):
            return {"address": own_address(other)}
    return {"address": ""}


def write(folder: str, files: "dict[str, str]", binary: "dict[str, str]") -> "dict[str, Any]":
    """Write files that only this user may read, and return ``why`` that is impossible, if it is.

    Args:
        folder: the folder that they are in; it is made if there is none.
        files: texts, by the files' names.
        binary: contents of further files in base64, by their names.
    """
    contents = {name: text.encode("utf-8") for name, text in files.items()}
    contents.update((name, base64.b64decode(text)) for name, text in binary.items())
    try:
        os.makedirs(os.path.dirname(folder), 0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        for name, content in contents.items():
            path = os.path.join(folder, name)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
    except OSError as error:
        return {"why": error.strerror or str(error)}
    return {}


def read(folder: str, name: str) -> "dict[str, Any]":
    """Return a file's text and its age in seconds; nothing where it cannot be read."""
    with contextlib.suppress(OSError), open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
        age = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
        return {"text": file.read(LARGEST_OUTPUT), "age": age}
    return {}


def news(folder: str, sizes: "dict[str, int]") -> "dict[str, Any]":
    """Return the tasks that have reported anything, these reports, and the tasks that were asked to end.

    Args:
        folder: the submission's folder.
        sizes: sizes of the reports that the caller has read, by task; they are returned again once they have grown.
    """
    found: "dict[str, dict[str, Any]]" = {}
    tasks, stopped = [], []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            stem, _, kind = entry.name.partition(".")
            task = stem[len("worker-") :]
            if not stem.startswith("worker-") or not task.isdecimal():
                continue
            if kind == "stop":
                stopped.append(int(task))
            elif kind == "news":
                tasks.append(int(task))
                facts = entry.stat()
                if facts.st_size != sizes.get(task):
                    with open(entry.path, "rb") as file:
                        text = file.read(LARGEST_NEWS).decode("utf-8", "replace")
                    found[task] = {"size": facts.st_size, "at": facts.st_mtime, "text": text}
    return {"tasks": tasks, "news": found, "stopped": stopped}


def stop(folder: str, tasks: "list[int]") -> "dict[str, Any]":
    """Record that tasks are to end, and remove their agents' configs, so that a task that has not begun never does."""
    for task in tasks:
        path = os.path.join(folder, "worker-{}".format(task))
        with contextlib.suppress(OSError):  # the folder is gone, as the submission has ended
            os.close(os.open(path + ".stop", os.O_WRONLY | os.O_CREAT, 0o600))
            os.unlink(path + ".launch")
    return {}


def end_of_output(folder: str) -> "dict[str, Any]":
    """Return the end of the job's output, without that of its workers; empty where it is not here."""
    with contextlib.suppress(OSError), open(os.path.join(folder, "output"), "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - LARGEST_END, 0))
        return {"text": file.read(LARGEST_END).decode("utf-8", "replace").strip()}
    return {"text": ""}


def remove(folder: str) -> "dict[str, Any]":
    """Remove a submission's folder, into which tasks may still write their last words for a moment."""
    deadline = time.monotonic() + LAST_SECONDS
    while not remove_folder(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return {}


def left_behind(around: str, labels: "list[str]") -> "dict[str, Any]":
    """Return the submissions' folders in this one, and the labels, whose sessions have ended for certain."""
    folders = []
    names: "list[str]" = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(around))
    for name in names:
        path = os.path.join(around, name, OWNER)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if os.lstat(os.path.dirname(path)).st_uid != os.getuid():  # nor is a pipe in it to be opened
                continue
            with open(path) as file:
                facts = json.load(file)
            if is_left_behind(str(facts["process"]), str(facts["host"])):
                folders.append(os.path.join(around, name))
    return {"folders": folders, "labels": [label for label in labels if is_orphaned(label)]}


REQUESTS: "dict[str, Callable[..., dict[str, Any]]]" = {
    call.__name__: call
    for call in (
        missing, command, commands, variables, home, identity, address,
        write, read, news, stop, end_of_output, remove, left_behind,
    )
}  # fmt: skip
