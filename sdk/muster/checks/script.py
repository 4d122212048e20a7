"""Conversion of the user's ``worker_script`` to a :class:`~muster.job.Script`, checked before anything starts."""

from __future__ import annotations

import ast
import itertools
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from muster.checks import interpreter
from muster.checks.function import TASK_PARAMETERS, function_script
from muster.errors import InterpreterError, ScriptError
from muster.job import Script
from muster.text.arguments import Argument, ArgumentText

PROGRAM_STARTS = (b"\x7fELF", b"#!")
NOT_PYTHON = frozenset(
    {".bash", ".c", ".cfg", ".cpp", ".csv", ".h5", ".html", ".ini", ".json", ".keras", ".log", ".md", ".rst", ".sh"}
    | {".so", ".tar", ".toml", ".txt", ".yaml", ".yml", ".zip"}
)  # files that nobody means as Python; some would compile
NOTEBOOK = ".ipynb"
MOST_FOLDERS = 500  # searched for a file of a given name
NAMED_SCRIPTS = 3  # of a folder, named in the advice of an error


LONGEST_NAME = 255  # bytes of a file's name
URL = re.compile(r"(https?|ftp|s3|gs|hdfs)://", re.IGNORECASE)
PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
INTERPRETER = ArgumentText("the script itself; ", Argument("python"), " names an interpreter for it")


def make_script(
    worker_script: str | Path | Callable[..., Any],
    *,
    module: bool = False,
    python: str | Path | None = None,
    kwargs: Mapping[str, Any] | None = None,
    elsewhere: bool = False,
) -> Script:
    """Return the script to run, given a path, a module's name or a function.

    A string is a file if it ends in ``.py`` or such a file exists, else the name of a module; ``module=True``
    insists on the latter. An executable file that is not Python is run directly, without an interpreter. A script with
    a top-level ``run(cluster, server, task_index)`` is a task of a parameter-server cluster, any other is a program.

    Args:
        worker_script: the path, name or function that the user gave.
        module: whether a string is a module's name in any case.
        python: the interpreter that will run the script, in which modules are looked up; None for this one.
        kwargs: keyword arguments of a function, never recorded; files and modules take none.
        elsewhere: whether ``python`` is an interpreter on the workers, whose modules cannot all be looked up here.

    Raises:
        ScriptError: there is no such file or module, or it is no script, or does not compile; or the function cannot
            be called or pickled.
        InterpreterError: ``python`` cannot be run, or a package around the module cannot be imported.
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ScriptError(
            f"kwargs is of type {type(kwargs).__name__}; it must be a dict.",
            advice=ArgumentText(Argument("kwargs", {"rate": 1})),
        )
    if callable(worker_script):
        return function_script(worker_script, kwargs)
    if isinstance(worker_script, (list, tuple)) and worker_script and all(isinstance(w, str) for w in worker_script):
        _refuse_words(list(worker_script))
    if not isinstance(worker_script, (str, os.PathLike)):
        raise ScriptError(
            f"worker_script is of type {type(worker_script).__name__}; "
            "it must be a file, a module's name or a function.",
            advice=ArgumentText(
                "the function without calling it: ",
                Argument("worker_script", ""),
                "train; its arguments go into ",
                Argument("kwargs"),
            ),
        )
    if kwargs:
        options = [word for name in kwargs for word in (f"--{name}", "...")]  # without values, which may be secret
        raise ScriptError(
            ArgumentText(Argument("kwargs"), f" are for a function, and {worker_script} is a file or a module."),
            advice=ArgumentText(Argument("args", options), " for the command line of a file or module"),
        )
    name = str(worker_script)
    if not name.strip():
        raise ScriptError(
            ArgumentText(Argument("worker_script"), " is empty."), advice="give a file, a module's name or a function"
        )
    if "\n" in name or any(len(part.encode(errors="replace")) > LONGEST_NAME for part in name.split("/")):
        raise ScriptError(
            ArgumentText(Argument("worker_script"), " is no name of a file: it is very long, or has several lines."),
            advice="put code into a file, and give the file's name; or give a function",
        )
    path = Path(name).expanduser()
    if URL.match(name):
        raise ScriptError(
            f"{name} is a URL, and nothing is fetched from one.", advice="download it, and give the name of that file"
        )
    if " " in name and not path.exists():
        _refuse_command_line(name)
    if not module:
        if path.name and not path.suffix and path.with_suffix(".py").is_file():
            path = path.with_suffix(".py")
        if path.suffix in (".py", NOTEBOOK) or path.exists() or "/" in name:
            return _from_file(path)
    return _module_elsewhere(name) if elsewhere else _from_module(name, str(python or sys.executable))


def _refuse_command_line(text: str) -> None:
    """Raise ScriptError if a string is a script with arguments or with an interpreter in front."""
    words = text.split()
    if PYTHON.fullmatch(words[0]):
        words = words[1:]
    if words and Path(words[0]).expanduser().is_file():
        rest = ArgumentText(", and the rest as ", Argument("args", words[1:])) if words[1:] else ""
        raise ScriptError(
            f"{text!r} is a command line, not a file, a module or a function.",
            advice=ArgumentText(f'"{words[0]}" alone', rest),
        )


def _refuse_words(words: list[str]) -> None:
    """Raise ScriptError for a script given as a list of words, with or without an interpreter in front."""
    script, *rest = words[1:] if len(words) > 1 and PYTHON.fullmatch(words[0]) else words
    arguments = ArgumentText(", ", Argument("args", rest)) if rest else ArgumentText()
    raise ScriptError(
        ArgumentText(Argument("worker_script"), " is a list; it must be a file, a module's name or a function."),
        advice=ArgumentText(Argument("worker_script", script), *arguments.parts),
    )


def _from_file(path: Path) -> Script:
    path = Path(os.path.abspath(path))  # tracebacks show it, so without detours through ".."
    if path.is_dir():
        raise ScriptError(f"The script {path} is a folder, not a file.", advice=_scripts_in(path))
    if not path.is_file():
        what = "is no regular file" if path.exists() else "does not exist"
        raise ScriptError(f"The script {path} {what}.", advice=_similar(path))
    if path.suffix == NOTEBOOK:
        raise ScriptError(
            f"{path} is a notebook, and workers run scripts.",
            advice="define what to run as a function in a cell and give run_cluster that; or make a script of the "
            f"notebook: jupyter nbconvert --to script {path.name}",
        )
    if _is_executable(path):
        return Script("executable", str(path))
    _refuse_other_files(path)
    return Script("file", str(path), is_task=_has_task(path))


def _refuse_other_files(path: Path) -> None:
    """Raise ScriptError if a file is neither Python nor an executable program."""
    start = _first_bytes(path)
    if path.suffix == ".sh" or (start.startswith(PROGRAM_STARTS) and b"python" not in start and path.suffix != ".py"):
        raise ScriptError(f"{path} is a program that may not be executed.", advice=f"chmod +x {path}")
    if path.suffix in NOT_PYTHON:
        raise ScriptError(
            f"{path} is no Python file.", advice=f"the script's name, or chmod +x {path.name} if it is a program"
        )


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.readline(200)
    except OSError as error:
        raise ScriptError(f"{path} cannot be read: {error.strerror or error}.") from error


def _is_executable(path: Path) -> bool:
    """Return whether the file is an executable program that is not Python: a binary, or one with a ``#!`` line."""
    if path.suffix == ".py" or not os.access(path, os.X_OK | os.R_OK):
        return False
    start = _first_bytes(path)
    return start.startswith(b"\x7fELF") or (start.startswith(b"#!") and b"python" not in start)


def _from_module(name: str, python: str) -> Script:
    location = interpreter.find_module(python, name)
    if location is None:
        where = "" if python == sys.executable else f" for {python}"
        raise ScriptError(
            f"There is neither a file nor a module {name!r}{where}.",
            advice=_dotted(name)
            or (INTERPRETER if PYTHON.fullmatch(name) else None)
            or _similar(Path.cwd() / f"{name}.py")
            or f"run it from the folder that has {name.replace('.', '/')}.py, or give the file's path",
        )
    return Script("module", name, is_task=location.endswith(".py") and _module_has_task(name, Path(location)))


def _module_elsewhere(name: str) -> Script:
    """Return the script for a module that only the workers may have; if it is here, too, it is examined here."""
    if not all(part.isidentifier() for part in name.split(".")):
        return _from_module(name, sys.executable)  # raises an error with similar names
    try:
        location = interpreter.find_module(sys.executable, name)
    except InterpreterError:  # a package around it needs what only workers have
        location = None
    is_here = location is not None and location.endswith(".py")
    return Script("module", name, is_task=is_here and _module_has_task(name, Path(str(location))))


def _dotted(name: str) -> str | None:
    """Return advice for a path that was given as a module's name; None if the name is not a path."""
    if "/" not in name and not name.endswith(".py"):
        return None
    path = Path(name.removesuffix(".py") + ".py")
    parts = [part for part in path.with_suffix("").parts if part not in ("/", ".", "..")]
    module = f"the module's name, {'.'.join(parts)}" if parts and all(map(str.isidentifier, parts)) else ""
    file = f"the file without --module, {path}" if path.is_file() else ""
    return " or ".join(filter(None, [module, file])) or None


def _module_has_task(name: str, path: Path) -> bool:
    """Return whether a module defines a task. A package without one must have a ``__main__.py``, which is run."""
    if path.name != "__init__.py":
        return _has_task(path)
    if _defines_task(_compiled(path)):
        return True
    main = path.with_name("__main__.py")
    if not main.is_file():
        raise ScriptError(
            f"The package {name} has no __main__.py to run.", advice=f"one of its modules, as {name}.train"
        )
    _has_task(main)
    return False


def _has_task(path: Path) -> bool:
    """Return whether the file defines ``run(cluster, server, task_index)`` at its top level.

    Raises:
        ScriptError: the file has nothing to run, or does not compile.
    """
    tree = _compiled(path)
    if not tree.body:
        raise ScriptError(f"{path} has nothing to run.", advice="save it, if it is open in an editor")
    return _defines_task(tree)


def _defines_task(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == "run"
        and len(node.args.args) == TASK_PARAMETERS
        and [argument.arg for argument in node.args.args[:2]] == ["cluster", "server"]
        for node in tree.body
    )


def _compiled(path: Path) -> ast.Module:
    """Return the syntax tree of a file, or raise ScriptError if the file does not compile."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are shown when it runs
            compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        if "codec can't decode" in error.msg or "null bytes" in error.msg:
            raise ScriptError(
                f"{path} is not UTF-8 text.",
                advice="save it as UTF-8, or say what it is in its first line, such as # -*- coding: latin-1 -*-",
            ) from error
        if error.lineno is None or "unknown encoding" in error.msg:
            raise ScriptError(f"{path} does not compile: {error.msg}.", advice="save it as UTF-8") from error
        raise ScriptError(
            f"{path}, line {error.lineno}, does not compile: {error.msg}.", details=_marked_line(error)
        ) from error
    except ValueError as error:  # Python 3.10 and 3.11 raise it for null bytes
        raise ScriptError(
            f"{path} is not UTF-8 text.",
            advice="save it as UTF-8, or say what it is in its first line, such as # -*- coding: latin-1 -*-",
        ) from error
    except OSError as error:
        raise ScriptError(f"{path} cannot be read: {error}.") from error
    return tree


def _marked_line(error: SyntaxError) -> str:
    """Return the line that does not compile, with a caret below the position of the error, as Python prints it."""
    return "".join(line for line in traceback.format_exception_only(error) if line.startswith("    ")).rstrip()


def _scripts_in(folder: Path) -> str | None:
    names = sorted(path.name for path in folder.glob("*.py"))[:NAMED_SCRIPTS]
    return f"one of its scripts, such as {' or '.join(str(folder / name) for name in names)}" if names else None


def _similar(path: Path) -> str | None:
    """Return advice that names a file of a similar name in the path's folder, or of the same name in another folder."""
    folder = path.parent if path.parent.is_dir() else _like(path.parent, Path.is_dir)
    found = _like(folder / path.name, _may_run) if folder else None
    if found:
        return f"there is {found}"
    above = [found for found in (Path.cwd().parent / path.parent.name / path.name,) if _may_run(found)]
    elsewhere = [*itertools.islice(_namesakes(path.name, Path.cwd()), 3)] or above
    return f"there is {' and '.join(map(str, elsewhere))}" if elsewhere else None


def _like(path: Path, is_meant: Callable[[Path], bool]) -> Path | None:
    """Return the path if ``is_meant`` accepts it, else the accepted one of the most similar name beside it, or None."""
    import difflib

    if is_meant(path):
        return path
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    plain = {entry.name.lower(): entry for entry in beside if is_meant(entry)}
    near = difflib.get_close_matches(path.name.lower(), plain, n=1, cutoff=0.75)
    return plain[near[0]] if near else None


def _may_run(path: Path) -> bool:
    return path.suffix in ("", ".py", ".sh", NOTEBOOK) and path.is_file()


def _namesakes(name: str, folder: Path) -> Iterator[Path]:
    """Yield the files of a name in a folder and its subfolders, down to the second level."""
    for root, folders, files in itertools.islice(os.walk(folder), MOST_FOLDERS):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__"))) if depth < 2 else []
        if name in files and Path(root, name).is_file():  # not a broken link
            yield Path(root, name)
