"""Facts about the interpreter that will run the user's script, found out before anything starts."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from muster.errors import InterpreterError
from muster.job import Job
from muster.text.arguments import Argument, ArgumentText
from muster.text.frozen import frozen
from muster.text.reading import parse_last_line

OLDEST = (3, 6)
_PROBE = """
import importlib.util, json, sys
def location(name):
    around, _, _ = name.rpartition(".")
    try:
        # To look into what is no package would run it.
        if around and (location(around) is None or not importlib.util.find_spec(around).submodule_search_locations):
            return None
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return spec and (spec.origin or "namespace")
print(json.dumps({"version": list(sys.version_info[:3]), "packages": {name: location(name) for name in sys.argv[1:]}}))
"""


@frozen
class Interpreter:
    """A Python interpreter: its path, its version, and the location of each requested package (None: not there)."""

    path: str
    version: tuple[int, ...]
    packages: dict[str, str | None]

    def has(self, package: str) -> bool:
        """Return whether the package can be imported there."""
        return self.packages.get(package) is not None


def probe(python: str, packages: Sequence[str] = ()) -> Interpreter:
    """Find out an interpreter's version and where its packages are, without importing any of ``packages``.

    Raises:
        InterpreterError: it is not there, cannot be run, or is older than Python 3.6.
    """
    if python == sys.executable:
        return Interpreter(python, sys.version_info[:3], {name: _location(name) for name in packages})
    return _ask(python, packages)


def find_module(python: str, name: str) -> str | None:
    """Return the path where an interpreter finds a module from its working directory; None where it finds none.

    This one is asked like any other, as its path is the session's. The packages around the module are imported.

    Raises:
        InterpreterError: it cannot be run, or a package around the module cannot be imported.
    """
    return _ask(python, [name]).packages[name]


def _ask(python: str, packages: Sequence[str]) -> Interpreter:
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise InterpreterError(
            f"There is no interpreter {python!r}.",
            advice=ArgumentText(Argument("python", ""), " the path of a Python 3.6 or later"),
        )
    path = os.path.abspath(
        found
    )  # for use in other folders, too; not resolved, as its links make a virtual environment
    try:
        done = subprocess.run([path, "-c", _PROBE, *packages], capture_output=True, timeout=30, check=True, text=True)
        answer = parse_last_line(done.stdout)
        interpreter = Interpreter(path, tuple(answer["version"]), answer["packages"])
    except subprocess.CalledProcessError as error:
        raise InterpreterError(
            f"{path} is no usable Python interpreter, or cannot look for {', '.join(packages) or 'packages'}.",
            details=error.stderr[-2000:],
        ) from error
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        raise InterpreterError(f"{path} is no usable Python interpreter: {error}.") from error
    if interpreter.version < OLDEST:
        raise InterpreterError(f"{path} is Python {_dotted(interpreter.version)}; Muster's runner needs 3.6 or later.")
    return interpreter


def check(job: Job, requires: Sequence[str]) -> Interpreter:
    """The job's interpreter, once it is known to have what the job needs.

    Raises:
        InterpreterError: a package is missing there, or a function would have to cross Python versions.
    """
    is_function = job.script is not None and job.script.kind == "function"
    needed = _needed(job, requires)
    interpreter = probe(job.python or sys.executable, needed)
    if is_function and interpreter.version[:2] != sys.version_info[:2]:
        raise InterpreterError(
            f"A function of this Python {_dotted(sys.version_info[:2])} cannot be sent to {interpreter.path}, "
            f"which is Python {_dotted(interpreter.version[:2])}.",
            advice=ArgumentText("put the function into a file and give that as ", Argument("worker_script")),
        )
    missing = [package for package in needed if not interpreter.has(package)]
    if missing:
        raise InterpreterError(
            f"{interpreter.path} has no {' and no '.join(missing)}.",
            advice=ArgumentText(
                f"{_installation(interpreter.path, missing)}, or ", Argument("python", ""), " another interpreter"
            ),
        )
    return interpreter


def _installation(python: str, missing: Sequence[str], here: bool = True) -> str:
    """Return the command that installs packages for an interpreter; Horovod is compiled against its TensorFlow.

    Args:
        here: whether it is an interpreter of this machine, which may have Muster, rather than of another.
    """
    if "horovod" in missing:
        return (
            "in a clone of Muster's repository, which has the script that compiles Horovod: "
            f"{python} -m pip install '.[tensorflow,horovod-build]', then {python} scripts/horovod_wheel.py"
        )
    if here and python == sys.executable and "tensorflow" in missing:
        return f"{python} -m pip install 'muster[tensorflow]'"
    return f"{python} -m pip install {' '.join(missing)}"


def question(python: str, job: Job, requires: Sequence[str]) -> list[str]:
    """Return the command by which an interpreter elsewhere prints the facts that ``check_answers`` checks."""
    return [python, "-c", _PROBE, *_needed(job, requires)]


def check_answers(python: str, job: Job, answers: Mapping[str, tuple[int, str]]) -> None:
    """Make sure that an interpreter on other machines has what the job needs, given what it answered on each.

    Raises:
        InterpreterError: it is not there, a package is missing, or a function would have to cross Python versions.
    """
    for machine, (status, output) in answers.items():
        try:
            answer = parse_last_line(output) if status == 0 else {}
            version, packages = tuple(answer["version"]), answer["packages"]
        except (ValueError, KeyError):
            raise InterpreterError(
                f"{python} on {machine} is no usable Python interpreter.",
                details=output[-2000:],
                advice=ArgumentText(Argument("python", ""), " the path of a Python 3.6 or later there"),
            ) from None
        if job.script is not None and job.script.kind == "function" and version[:2] != sys.version_info[:2]:
            raise InterpreterError(
                f"A function of this Python {_dotted(sys.version_info[:2])} cannot be sent to {python} on {machine}, "
                f"which is Python {_dotted(version[:2])}.",
                advice=ArgumentText(
                    "put the function into a file and give that as worker_script, or ",
                    Argument("python", ""),
                    " another interpreter",
                ),
            )
        missing = [name for name, place in packages.items() if place is None]
        if missing:
            raise InterpreterError(
                f"{python} on {machine} has no {' and no '.join(missing)}.",
                advice=ArgumentText(
                    f"on {machine} {_installation(python, missing, here=False)}, or ",
                    Argument("python", ""),
                    " another interpreter",
                ),
            )


def _needed(job: Job, requires: Sequence[str]) -> list[str]:
    is_function = job.script is not None and job.script.kind == "function"
    return [*requires, "cloudpickle"] if is_function else list(requires)


def _location(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin or "namespace"


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
