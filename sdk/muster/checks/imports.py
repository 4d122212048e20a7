"""The modules that a script imports, as its text says: what a template imports beforehand. Imports and runs nothing."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from muster.job import Script

MOST = 500  # imports of one script
MOST_FILES = 100  # files of a project to analyse
OTHERS = sys.stdlib_module_names | {"muster"}  # modules that need not be imported beforehand, or must not be
READING = ("get", "copy", "items", "keys", "values")  # methods of ``os.environ`` that leave it as it is
TRAINING = Path(__file__).parents[1] / "training"


def imports_of(script: Script | None, given: object = None) -> tuple[str, ...]:
    """Return the modules that a script imports before it does anything else, with the attributes that it uses of them.

    Imports after its first statement of another kind are left out: that may set an environment variable, or a path,
    which affects the imports after it.

    Args:
        script: the script.
        given: the script as the user gave it, if that is a function.

    Returns:
        ``module``, or ``module:attribute.attribute``, in the order of the script; nothing if its text is unknown.
    """
    try:
        tree = ast.parse(_text_of(script, given))
    except (OSError, SyntaxError, TypeError, ValueError):
        return ()
    body, names = tree.body, dict[str, str]()
    if callable(given):  # its own body is its top level, and it sees the modules of the notebook
        names = _modules_seen_by(given)
        body = next((node.body for node in body if isinstance(node, ast.FunctionDef)), [])
    folder = Path(script.target).parent if script is not None and script.kind == "file" else Path.cwd()
    walk = _Walk(folder, [*names.values()])
    walk.follow(body)
    names.update((local, module) for module, local in _imported(walk.before) if local)
    if not walk.sets_variables and not _sets_variables(tree):
        walk.found += [f"{names[chain[0]]}:{'.'.join(chain[1:])}" for chain in _chains(tree) if chain[0] in names]
    plain = [name for name in walk.found if name.partition(":")[0].partition(".")[0] not in OTHERS]
    return tuple(dict.fromkeys(plain))[:MOST]


class _Walk:
    """A walk through the imports of a script, in the order in which they happen, up to its first other action.

    Attributes:
        found: modules, and the attributes used of them.
        before: the script's own statements before that action.
        sets_variables: whether a module of the project sets environment variables.
    """

    def __init__(self, folder: Path, found: list[str]) -> None:
        self.found = found
        self.before: list[ast.stmt] = []
        self.sets_variables = False
        self._folder = folder
        self._seen: set[Path] = set()

    def follow(self, body: list[ast.stmt], is_script: bool = True) -> bool:
        """Follow some statements; return whether they only import and define."""
        for node in body:
            inner = node.body if isinstance(node, ast.Try) else [node]
            if not all(map(_only_imports_or_defines, inner)):
                return False
            if is_script:
                self.before += inner
            for module, _ in _imported(inner):
                if not self._import(module):
                    return False
        return True

    def _import(self, wanted: str) -> bool:
        path = _own_file(wanted.replace(":", "."), self._folder)
        if path is None:
            self.found.append(wanted)
            return True
        if path in self._seen or len(self._seen) >= MOST_FILES:
            return True
        self._seen.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return False
        if path.is_relative_to(TRAINING):  # which import what they need where they need it, and do nothing else
            nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
            for module in [*(module for module, _ in _imported(nodes)), *_siblings(path, nodes)]:
                self._import(module)
            return True
        self.sets_variables = self.sets_variables or _sets_variables(tree)
        return self.follow(tree.body, is_script=False)


def _only_imports_or_defines(node: ast.stmt) -> bool:
    """Return whether a statement cannot affect the imports after it."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass)):
        return True
    if isinstance(node, ast.FunctionDef):
        return not node.decorator_list
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        is_plain = not any(isinstance(part, ast.Call) for part in ast.walk(node))
        return is_plain and all(isinstance(target, ast.Name) for target in targets)
    return False


def _sets_variables(tree: ast.AST) -> bool:
    """Return whether a program may set environment variables anywhere."""
    return any(map(_sets_variable, ast.walk(tree)))


def _sets_variable(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and "environ" in ast.dump(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr not in READING and "environ" in ast.dump(node.func.value)
    return isinstance(node, (ast.Name, ast.Attribute)) and "putenv" in ast.dump(node)


def _siblings(path: Path, body: list[ast.stmt]) -> list[str]:
    """Return the modules of ``muster.training`` that another one of them imports."""
    if path.parent != TRAINING:
        return []
    nodes = [node for node in body if isinstance(node, ast.ImportFrom) and node.level == 1]
    names = [node.module or alias.name for node in nodes for alias in node.names]
    return [f"muster.training.{name}" for name in names]


def _own_file(name: str, folder: Path) -> Path | None:
    """Return the file of a module of the project or of ``muster.training``; None for other modules."""
    parts = name.split(".")
    if parts[:2] == ["muster", "training"]:
        folder, parts = TRAINING, parts[2:]
    while parts:
        for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if path.is_file():
                return path
        parts = parts[:-1]
    return None


def _text_of(script: Script | None, given: object) -> str | bytes:
    if callable(given):
        return textwrap.dedent(inspect.getsource(_innermost(given)))
    if script is None or script.kind not in ("file", "module"):
        return ""
    if script.kind == "file":
        return Path(script.target).read_bytes()
    spec = importlib.util.find_spec(script.target) if "." not in script.target else None  # else it would import some
    return Path(spec.origin).read_bytes() if spec and spec.has_location and spec.origin else ""


def _innermost(function: Any) -> Any:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return inspect.unwrap(function)


def _modules_seen_by(function: Callable[..., Any]) -> dict[str, str]:
    """Return the modules among a function's globals, by name."""
    inner = _innermost(function)
    code, seen = getattr(inner, "__code__", None), getattr(inner, "__globals__", {})
    used = {name: seen.get(name) for name in (code.co_names if code else ())}
    return {name: value.__name__ for name, value in used.items() if isinstance(value, ModuleType)}


def _imported(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the modules that statements import, each with the name that it is bound to, or an empty name."""
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, alias.asname or ("" if "." in alias.name else alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, ""
            for alias in node.names:
                if alias.name != "*":
                    yield f"{node.module}:{alias.name}", ""


def _chains(tree: ast.AST) -> Iterator[list[str]]:
    """Yield names with the attributes that are accessed on them, such as ``tf``, ``keras`` and ``layers``."""
    for node in ast.walk(tree):
        chain: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            chain.insert(0, inner.attr)
            inner = inner.value
        if chain and isinstance(inner, ast.Name):
            yield [inner.id, *chain]
