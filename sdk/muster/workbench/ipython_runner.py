"""Run a Python file in IPython, as the workbench's containers do.

    ipython_runner.py FILE

``!command`` lines and ``%magics`` work. A ``!command`` that fails ends the worker with its exit status, an exception
with 1. Tracebacks name the file and its lines.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from typing import Any

from IPython.core.compilerop import CachingCompiler
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


class CommandFailed(Exception):
    """A ``!command`` exited with a status other than 0."""

    def __init__(self, command: str, status: int) -> None:
        super().__init__(f"!{command} exited with status {status}")
        self.status = status


class FileCompiler(CachingCompiler):
    """A compiler that compiles under the file's name, so that tracebacks show that rather than a cell."""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Return the file's name."""
        return sys.argv[0]

    def format_code_name(self, name: str) -> None:
        """Return None, so that tracebacks show the file like any other."""


class WorkerShell(InteractiveShell):
    """A non-interactive IPython shell."""

    compiler_class = FileCompiler

    def system(self, cmd: str) -> None:
        """Run a ``!command``, whose output goes to that of the worker. Raises CommandFailed where it fails."""
        command = self.var_expand(cmd, depth=1)
        sys.stdout.flush()
        status = subprocess.call(command, shell=True, executable=shutil.which("bash"))
        self.user_ns["_exit_code"] = status
        if status:
            raise CommandFailed(command, status)

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Print an exception's traceback, unless it is SystemExit."""
        if not isinstance(sys.exc_info()[1], SystemExit):
            super().showtraceback(*args, **kwargs)


def run(path: str) -> None:
    """Run the file as the main program. Raises SystemExit where it fails or exits."""
    sys.argv = [path]
    sys.path[:1] = [os.path.dirname(path), os.getcwd()]
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    shell = WorkerShell.instance(config=Config(HistoryManager={"enabled": False}), colors="nocolor")
    shell.user_ns.update(__file__=path, exit=sys.exit, quit=sys.exit)
    warnings.filterwarnings("ignore", "To exit: use 'exit'")
    try:
        shell.run_cell(text).raise_error()
    except SystemExit:
        raise
    except CommandFailed as failure:
        sys.exit(failure.status if failure.status > 0 else 128 - failure.status)
    except BaseException:  # IPython has printed it
        sys.exit(1)


if __name__ == "__main__":
    run(sys.argv[1])
