"""From what the user gave as ``worker_script`` to a :class:`~muster.job.Script`, checked before anything starts."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.checks import interpreter
from muster.errors import ScriptError
from muster.job import Script

TASK_PARAMETERS = 3  # run(cluster, server, task_index)


def make_script(
    worker_script: str | Path | Callable[..., Any], *, module: bool = False, python: str | Path | None = None
) -> Script:
    """What to run, from a path, a module's name or a function.

    A string is a file if it ends in ``.py`` or such a file exists, else the name of a module; ``module=True``
    insists on the latter. A file that may be executed and is no Python is a program by itself. A script with a
    top-level ``run(cluster, server, task_index)`` is a task of a parameter-server cluster, any other is a program.

    Args:
        worker_script: what the user gave.
        module: whether it is a module's name in any case.
        python: the interpreter that will run it, in which modules are looked up; None for this one.

    Raises:
        ScriptError: there is no such file or module, or it does not compile, or the function cannot be pickled.
        InterpreterError: ``python`` cannot be run, or a package around the module cannot be imported.
    """
    if callable(worker_script):
        return _from_function(worker_script)
    name = str(worker_script)
    if not name.strip():
        raise ScriptError("worker_script is empty.", advice="give a file, a module's name or a function")
    path = Path(name).expanduser()
    if not module:
        if path.name and not path.suffix and path.with_suffix(".py").is_file():
            path = path.with_suffix(".py")
        if path.suffix == ".py" or path.exists() or "/" in name:
            return _from_file(path)
    return _from_module(name, str(python or sys.executable))


def _from_file(path: Path) -> Script:
    path = Path(os.path.abspath(path))  # tracebacks show it, so without detours through ".."
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise ScriptError(f"The script {path} {what}.", advice=_similar(path))
    if _is_executable(path):
        return Script("executable", str(path))
    return Script("file", str(path), is_task=_has_task(path))


def _is_executable(path: Path) -> bool:
    """Whether the file is a program that needs no interpreter named: compiled, or with a first line that names one."""
    if path.suffix == ".py" or not os.access(path, os.X_OK | os.R_OK):
        return False
    with path.open("rb") as file:
        start = file.readline(200)
    return start.startswith(b"\x7fELF") or (start.startswith(b"#!") and b"python" not in start)


def _from_module(name: str, python: str) -> Script:
    location = interpreter.find_module(python, name)
    if location is None:
        where = "" if python == sys.executable else f" for {python}"
        raise ScriptError(
            f"There is neither a file nor a module {name!r}{where}.",
            advice=f"run it from the folder that has {name.split('.')[0]}.py, or give the file's path",
        )
    return Script("module", name, is_task=location.endswith(".py") and _has_task(Path(location)))


def _from_function(function: Callable[..., Any]) -> Script:
    import cloudpickle

    name = getattr(function, "__qualname__", repr(function))
    try:
        positional = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            and parameter.default is parameter.empty
        ]
    except (TypeError, ValueError) as error:
        raise ScriptError(f"{name} is not a function that can be inspected: {error}.") from error
    if len(positional) not in (0, TASK_PARAMETERS):
        raise ScriptError(
            f"{name} takes {len(positional)} arguments.",
            advice="a function without arguments, or run(cluster, server, task_index); functools.partial binds others",
        )
    try:
        pickled = cloudpickle.dumps(function)
    except Exception as error:  # whatever the user's objects raise when pickled
        raise ScriptError(
            f"{name} cannot be sent to the workers: {error}",
            advice="open files, locks and sessions inside the function, not around it",
        ) from error
    return Script("function", name, is_task=len(positional) == TASK_PARAMETERS, pickled=pickled)


def _has_task(path: Path) -> bool:
    """Whether the file defines ``run(cluster, server, task_index)`` at its top level."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever runs it is told
            compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ScriptError(
            f"{path}, line {error.lineno}, does not compile: {error.msg}.", details=(error.text or "").rstrip()
        ) from error
    except (OSError, ValueError) as error:
        raise ScriptError(f"{path} cannot be read: {error}.") from error
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == "run"
        and len(node.args.args) == TASK_PARAMETERS
        and [argument.arg for argument in node.args.args[:2]] == ["cluster", "server"]
        for node in tree.body
    )


def _similar(path: Path) -> str | None:
    import difflib

    if not path.parent.is_dir():
        return None
    names = [entry.name for entry in path.parent.glob("*.py")]
    found = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"there is {path.with_name(found[0])}" if found else None
