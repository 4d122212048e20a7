"""Check, run in the worker's interpreter (``python -c``), that a script compiles and its imports can be found.

    SCRIPT FOLDER      FOLDER comes first on the path when the script runs

Prints JSON: ``problem``, of a file that does not compile; ``missing``, imports that cannot be found; ``needed``, the
packages that are imported in any case; ``imported``, the imports of Horovod and Muster; and ``keras``, the version of
the installed Keras. Imports are parsed, not run; those of files in the script's folder are followed. A missing import
is certain to fail if it is run in any case, and no file touches ``sys.path``. Python 3.6 syntax, standard library only.
"""

import ast
import importlib.util
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


GUARDS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
SHIPPED = "training"  # the only subpackage of Muster that scripts may import


def main(script: str, folder: str) -> "dict[str, Any]":
    """Return the findings on a script and on the files beside it that it imports."""
    sys.path[0] = folder
    missing, named, walked, touches_path = [], set(), set(), False
    imported, needed = set(), set()
    todo = [(script, True)]  # files, and whether they are run in any case; the files that are come first
    while todo:
        path, is_run = todo.pop(0)
        if path in walked:
            continue
        walked.add(path)
        try:
            with open(path, "rb") as file:
                tree = ast.parse(file.read(), path)
            compile(tree, path, "exec")
        except (SyntaxError, ValueError) as error:
            line, text = getattr(error, "lineno", None), getattr(error, "text", None)
            message = getattr(error, "msg", str(error))
            return {"problem": {"file": path, "line": line, "message": message, "text": text}, "missing": []}
        touches_path = touches_path or any(map(is_sys_path, ast.walk(tree)))
        finder = ImportFinder(is_run)
        finder.visit(tree)
        for names, line, is_certain in finder.found:
            if names[0] in ("horovod", "muster"):
                imported.add(".".join(names))
            if not is_there(names) and (path, line, names[0]) not in named:
                named.add((path, line, names[0]))
                missing.append({"file": path, "line": line, "name": ".".join(names), "is_certain": is_certain})
            files = [(file, is_certain) for file in files_of(names, folder)]
            if is_certain and not files and names[0] != "muster":
                needed.add(names[0])
            todo = files + todo if is_certain else todo + files
    if touches_path:
        missing = [dict(found, is_certain=False) for found in missing]
    needed = set() if touches_path else needed
    return {
        "problem": None,
        "missing": missing,
        "needed": sorted(needed),
        "imported": sorted(imported),
        "keras": version_of("keras"),
    }


def version_of(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed, or an old Python cannot tell."""
    try:
        from importlib import metadata

        return metadata.version(package)
    except ImportError:  # PackageNotFoundError is one, too
        return ""


def is_sys_path(node: ast.AST) -> bool:
    """Return whether an expression is ``sys.path``."""
    return isinstance(node, ast.Attribute) and node.attr == "path" and getattr(node.value, "id", "") == "sys"


def is_there(names: "list[str]") -> bool:
    """Return whether the top-level package of a module can be found; to look further would import the package."""
    if names[0] == "muster":
        return names[1:2] in ([], [SHIPPED])
    try:
        return importlib.util.find_spec(names[0]) is not None
    except (ImportError, ValueError):
        return names[0] in sys.modules


def files_of(names: "list[str]", folder: str) -> "list[str]":
    """Return the files in a folder that are run when a module is imported: those of its packages, and its own."""
    paths = [os.path.join(folder, *names[:count]) for count in range(1, len(names) + 1)]
    candidates = [file for path in paths for file in (path + ".py", os.path.join(path, "__init__.py"))]
    return [file for file in candidates if os.path.isfile(file)]


class ImportFinder(ast.NodeVisitor):
    """Finds the imports of a module: their names, their lines, and whether they are run in any case.

    Imports whose failure is caught, or that are for type checkers only, are left out.

    Args:
        is_certain: whether the module itself is run in any case.
    """

    def __init__(self, is_certain: bool) -> None:
        self.found: "list[tuple[list[str], int, bool]]" = []
        self._is_certain = is_certain

    def visit_Import(self, node: ast.Import) -> None:
        """Record the modules of ``import a.b``."""
        for alias in node.names:
            self.found.append((alias.name.split("."), node.lineno, self._is_certain))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Record the modules of ``from a import b``, but not of the relative ``from . import b``."""
        if node.level == 0 and node.module:
            for alias in node.names:
                self.found.append((node.module.split(".") + [alias.name], node.lineno, self._is_certain))

    def visit_Try(self, node: ast.Try) -> None:
        """Skip the body and the handlers of a ``try`` that catches import errors; visit others as they may run."""
        caught = {name for handler in node.handlers for name in _names(handler.type)}
        is_guarded = bool(caught & GUARDS)
        for statement in ([] if is_guarded else node.body) + node.orelse + node.finalbody:
            self.visit(statement)
        for handler in [] if is_guarded else node.handlers:
            self._visit_within(handler, False)

    def visit_With(self, node: ast.With) -> None:
        """Skip the body of ``with suppress(ImportError):``, which catches import errors, too."""
        if not any(_names(item.context_expr) & GUARDS for item in node.items):
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Visit both branches as code that may not run, except for ``if __name__ == "__main__"``."""
        names = _names(node.test)
        if "TYPE_CHECKING" in names:
            for statement in node.body if isinstance(node.test, ast.UnaryOp) else node.orelse:
                self.visit(statement)
            return
        self._visit_within(node, self._is_certain and "__name__" in names)

    def visit_FunctionDef(self, node: ast.AST) -> None:
        """Visit a function's body as code that may not run."""
        self._visit_within(node, False)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _visit_within(self, node: ast.AST, is_certain: bool) -> None:
        before, self._is_certain = self._is_certain, is_certain
        self.generic_visit(node)
        self._is_certain = before


def _names(node: "ast.AST | None") -> "set[Any]":
    """Return all names in an expression; for a bare ``except``, BaseException."""
    if node is None:
        return {"BaseException"}
    return {getattr(part, "id", getattr(part, "attr", None)) for part in ast.walk(node)}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
