"""Real training processes, for tests: on the CPU, with this source tree, and ended whatever happens."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support import IMPORT_PATH

REPOSITORY = Path(__file__).parents[2]
LAUNCHER_VARIABLES = ("HOROVOD_", "PMI_", "OMPI_", "MUSTER_")


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without what a launcher may have put there, and with the variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    return {
        **inherited,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": IMPORT_PATH,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **variables,
    }


def start(command: list[str], env: dict[str, str], **options: Any) -> "subprocess.Popen[str]":
    """Start a process in a session of its own, its output all in one."""
    process: subprocess.Popen[str] = subprocess.Popen(
        command,
        env=env,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )
    return process


def finish(process: "subprocess.Popen[str]", seconds: float = 120) -> str:
    """The output of a process that ends well in this time; AssertionError with the output otherwise."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        output = end(process)
        raise AssertionError(f"still running after {seconds} s:\n{output}") from None
    assert process.returncode == 0, output
    return output


def end(process: "subprocess.Popen[str]") -> str:
    """End a process, gently first so that horovodrun ends its ranks, and all that it leaves; returns its output."""
    process.terminate()
    try:
        output, _ = process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own, with whatever it has started
        output, _ = process.communicate()
    return output


def alone(script: Path, *arguments: object, cwd: "Path | None" = None, **variables: str) -> str:
    """Run a script in one process."""
    return finish(start([sys.executable, str(script), *map(str, arguments)], environment(**variables), cwd=cwd))


def run_forking(script: Path, folder: Path, seconds: float = 280, **variables: str) -> str:
    """Run a script that forks its ranks (forked_ranks.py) and writes to the folder, for so many seconds at most."""
    path = f"{IMPORT_PATH}{os.pathsep}{REPOSITORY}"
    temporary = tempfile.mkdtemp(dir=folder)  # what ranks leave that are killed
    env = environment(PYTHONPATH=path, TMPDIR=temporary, **variables)
    return finish(start([sys.executable, str(script), str(folder)], env), seconds)


def horovodrun(script: Path, *arguments: object, ranks: int = 2, seconds: float = 120, **variables: str) -> str:
    """Run a script as some ranks on this machine, for so many seconds at most."""
    launcher = ["horovodrun", "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}", "--network-interfaces", "lo"]
    command = [*launcher, sys.executable, str(script), *map(str, arguments)]
    return finish(start(command, environment(**variables)), seconds)
