"""The shape of the package: what it offers, what importing it costs, and who may import whom."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import muster
import pytest

PACKAGE = Path(muster.__file__).parent
HEAVY = {"tensorflow", "horovod", "requests", "paramiko", "ipywidgets", "numpy", "rich", "cryptography"}

# Each part may import itself and the parts to its right; everything may import errors, events and job.
NOUNS = {"errors", "events", "job", "forks"}
PURE = {
    "strategies",
    "diagnosis",
    "failures",
    "script",
    "interpreter",
    "mpi",
    "ssh",
    "runs",
    "result",
    "planning",
    "scratch",
}
ENGINE = {
    "background",
    "session",
    "state",
    "watch",
    "driver",
    "orchestrator",
    "ending",
    "preparation",
    "interrupts",
    "platforms",
}
MAY_IMPORT = {
    "agent": set(),
    "training": set(),
    "errors": set(),
    "events": NOUNS,
    "job": {"errors"},
    "strategies": NOUNS | {"strategies"},
    "platforms": NOUNS | {"platforms", "agent", "runs", "ssh"},
    "session": NOUNS | {"agent", "ssh", "certificates"},
    "orchestrator": NOUNS | PURE | {"state", "driver", "session", "background", "watch", "ending", "platforms"},
    "execution": NOUNS | PURE | ENGINE,
    "cluster": NOUNS | PURE | ENGINE | {"execution", "doctor"},
    "state": NOUNS | {"diagnosis", "failures"},
    "serve": NOUNS | {"serve", "platforms", "agent", "runs", "scratch", "workers", "__version__"},
}


def test_the_public_names() -> None:
    assert muster.__all__ == [
        "Cluster", "Horovod", "Job", "MPI", "MultiWorker", "MusterError", "ParameterServer", "Processes", "Resources",
        "RunFailed", "await_workers", "launch_workers", "list_runs", "list_workers", "open_run", "run_cluster",
        "stop_workers", "tensorboard",
    ]  # fmt: skip
    for name in muster.__all__:
        assert getattr(muster, name).__doc__, name
    with pytest.raises(AttributeError, match="no_such_name"):
        muster.no_such_name  # noqa: B018


def test_importing_muster_loads_nothing_heavy() -> None:
    program = "import sys, json, muster; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not HEAVY & set(json.loads(done.stdout))


def imported_parts(path: Path) -> set[str]:
    """The parts of Muster that a file imports, also inside functions."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "muster":
            module = str(node.module)
            parts |= {module.split(".")[1]} if "." in module else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            parts |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("muster.")}
    return parts


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_imports_go_one_way(part: str) -> None:
    folder = PACKAGE / part
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
        assert imported_parts(path) <= MAY_IMPORT[part], path


def test_every_error_stands_in_the_tree_of_the_docstring() -> None:
    from muster import errors

    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.MusterError):
            assert name in str(errors.__doc__)
