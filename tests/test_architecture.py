"""The shape of the package: what it offers, what importing it costs, and who may import whom."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import muster
import pytest

PACKAGE = Path(muster.__file__).parent
HEAVY = {"tensorflow", "horovod", "requests", "paramiko", "ipywidgets", "numpy", "rich", "cryptography"}

# The subpackages from the ground up: a file imports files of its own and of those above it in this table.
FLOORS = [
    {"text"},
    {"errors", "agent", "training"},
    {"runner"},
    {"job", "events", "options", "runtime"},
    {"security", "records", "failure"},
    {"strategies"},
    {"checks", "platforms"},
    {"pools"},
    {"run"},
    {"workbench", "board", "testing"},
    {"dashboard"},
    {"checkup", "serve"},
    {"api"},
    {"worker_pool"},
    {"cdsw", "cdsw_tensorflow_utils", "commands"},
    {"__main__"},
]


def test_the_public_names() -> None:
    assert muster.__all__ == [
        "Cluster", "Horovod", "Job", "MPI", "MultiWorker", "MusterError", "ParameterServer", "Processes", "Resources",
        "RunFailed", "attach", "await_workers", "detach", "doctor", "launch_workers", "list_runs", "list_workers",
        "open_run", "pool", "run_cluster", "stop_workers", "tensorboard",
    ]  # fmt: skip
    for name in muster.__all__:
        assert getattr(muster, name).__doc__, name
    with pytest.raises(AttributeError, match="no_such_name"):
        muster.no_such_name  # noqa: B018


def test_what_documents_call_by_its_module_needs_no_import_of_that() -> None:
    program = "import muster; muster.training.report; muster.training.partition.array; muster.errors.MusterError\n"
    program += "try: muster.training.no_such\nexcept AttributeError: muster.report"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "AttributeError: module 'muster' has no attribute 'report': it is muster.training.report"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("logs", ": a run has it, such as muster.open_run().logs()"),
        ("launch", ": is it muster.run_cluster?"),
        ("runs", ": is it muster.list_runs?"),
        ("runcluster", ": is it muster.run_cluster?"),
        ("xyz", ""),
        ("_dir", ""),
    ],
)
def test_a_name_that_is_not_there_has_what_was_likely_meant(name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(muster, name)
    assert str(raised.value) == f"module 'muster' has no attribute {name!r}{hint}"


def test_completion_offers_what_most_need() -> None:
    assert {"run_cluster", "list_runs", "doctor", "training", "errors", "pool"} <= set(dir(muster))
    assert not {"detach", "testing"} & set(dir(muster))


def test_importing_muster_loads_nothing_heavy() -> None:
    program = "import sys, json, muster; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not HEAVY & set(json.loads(done.stdout))


def files() -> list[Path]:
    """Every file of the package, relative to it, but for its own ``__init__.py``, which imports by name."""
    found = (path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py")))
    return [path for path in found if path != Path("__init__.py")]


def room_of(module: str) -> str:
    """``muster.run.state`` -> ``run``; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def module_of(path: Path) -> str:
    """``run/state.py`` -> ``muster.run.state``."""
    return ".".join(["muster", *path.with_suffix("").parts]).removesuffix(".__init__")


def imports_of(path: Path) -> set[str]:
    """The modules of Muster that a file imports, also inside functions and for type checkers only."""
    here = module_of(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "muster"}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            if module.split(".")[0] == "muster":
                found |= {
                    name if name in MODULES else module for name in (f"{module}.{alias.name}" for alias in node.names)
                }
    return found


MODULES = {module_of(path) for path in files()}


def test_at_most_eight_files_lie_at_the_top() -> None:
    assert len([path for path in PACKAGE.iterdir() if path.suffix == ".py"]) <= 8


def test_every_file_has_a_room() -> None:
    rooms = [room for floor in FLOORS for room in floor]
    assert len(rooms) == len(set(rooms))
    assert {room_of(module) for module in MODULES} <= set(rooms)


@pytest.mark.parametrize("path", files(), ids=str)
def test_imports_go_one_way(path: Path) -> None:
    floor_of = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    room = room_of(module_of(path))
    above = {
        module
        for module in imports_of(path)
        if room_of(module) not in {"", room} and floor_of[room_of(module)] >= floor_of[room]
    }
    assert not above


# Subpackages that travel to workers without the rest, and what they may import of it.
TRAVELLING = {"agent": set[str](), "training": set[str](), "runner": {"training"}}


@pytest.mark.parametrize("room", TRAVELLING)
def test_what_is_sent_to_workers_brings_all_that_it_imports(room: str) -> None:
    imported = {room_of(module) for path in files() if path.parts[0] == room for module in imports_of(path)}
    assert imported - {room} == TRAVELLING[room]


def test_no_files_import_each_other_in_a_circle() -> None:
    waiting = {module_of(path): imports_of(path) & MODULES - {module_of(path)} for path in files()}
    while waiting:
        free = [module for module, needed in waiting.items() if not needed & waiting.keys()]
        assert free, f"a circle among {sorted(waiting)}"
        for module in free:
            del waiting[module]


MOST_ARGUMENTS = 6
PUBLIC = {("run/cluster.py", "Cluster.__init__")}  # users write these with few of the arguments, and by name


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file and how many arguments each takes, without ``self`` and ``cls``."""

    def look(parent: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.ClassDef):
                yield from look(node, f"{prefix}{node.name}.")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                yield prefix + node.name, len([name for name in names if name not in {"self", "cls"}])
                yield from look(node, f"{prefix}{node.name}.")
            else:
                yield from look(node, prefix)

    return look(ast.parse((PACKAGE / path).read_bytes()), "")


@pytest.mark.parametrize("room", ["run", "pools", "platforms", "checks", "strategies", "checkup"])
def test_no_function_of_the_engine_takes_more_than_six_arguments(room: str) -> None:
    found = {
        (str(path), name): count for path in files() if path.parts[0] == room for name, count in functions_of(path)
    }
    assert found
    assert {name for name, count in found.items() if count > MOST_ARGUMENTS} <= PUBLIC


def test_every_error_stands_in_the_tree_of_the_docstring() -> None:
    from muster import errors

    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.MusterError):
            assert name in str(errors.__doc__)


def docstrings() -> Iterator[tuple[Path, ast.Constant]]:
    """Every docstring of the package, with its file."""
    for path in files():
        for node in ast.walk(ast.parse((PACKAGE / path).read_bytes())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                first = node.body[0] if node.body else None
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    yield path, first.value


RIDDLES = {"What", "Whether", "Where", "Who", "Whom", "Whose", "Which", "How", "Those", "Why", "When"}


# Names that two classes share because they are one thing: on a worker and in the session, as a message and as the event
# that it becomes, or as the part of a class that another subpackage uses.
SHARED_NAMES = (
    {"Stream", "Streams"}
    | {"Listening", "Output", "ProcessStacks", "Progress", "Stage", "Usage"}
    | {"Agent", "Compressor"}
)


def test_a_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[Path]] = {}
    for path in files():
        for node in ast.walk(ast.parse((PACKAGE / path).read_bytes())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path)
    twice = {name for name, found in places.items() if len(found) > 1}
    assert twice == SHARED_NAMES


def test_docstrings_open_with_a_summary() -> None:
    """The first line says what a thing is or does (PEP 257): "Return whether ...", not "Whether ..."."""
    riddles = [
        f"{path}:{docstring.lineno}: {docstring.value!s}"
        for path, docstring in docstrings()
        if str(docstring.value).split()[0] in RIDDLES
    ]
    assert riddles == []
