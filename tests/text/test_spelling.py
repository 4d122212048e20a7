"""What is said names arguments as data, so that it is right on the command line, too."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import muster
from muster import platforms, strategies

PACKAGE = Path(muster.__file__).parent
ARGUMENTS = {
    *[*inspect.signature(muster.run_cluster).parameters][:-1],
    *(name for strategy in strategies.STRATEGIES for name in strategies.option_names(strategy)),
    *(name for platform in platforms.PLATFORMS for name in platforms.option_names(platform)),
}
PYTHON = re.compile(rf"(?<![\w-])({'|'.join(sorted(ARGUMENTS))})=")
SAID = ("advice", "message", "text", "words")  # keyword arguments, and names, of what is said
ONLY_IN_PYTHON = {
    "api.py": "the call from Python itself",
    "dashboard/widget.py": "the view of a notebook, which calls from Python",
    "worker_pool/location.py": "pools, which there are in Python alone",
    "worker_pool/__init__.py": "pools, which there are in Python alone",
    "run/misnamed.py": "arguments of a call from Python",
    "run/cluster.py": "Cluster(), which there is in Python alone",
    "checks/names.py": "arguments of a call from Python",
    "checks/function.py": "functions, which no command line gives",
    "checks/arguments.py": "values of types that no command line gives",
    "platforms/kept.py": "reuse, which no command line gives",
    "platforms/__init__.py": "platforms that are objects, and says so",
    "strategies/__init__.py": "strategies that are classes, which no command line gives",
    "platforms/hosts/hostfile.py": "a line of a hostfile",
}


def said(tree: ast.AST) -> Iterator[ast.Constant]:
    """The strings of errors, findings and advice: what stands in calls that make them, or is returned as one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_error = bool(re.search(r"Error$|Refused$|Unsupported$|^Finding$|^ArgumentText$", name))
            roots = [*node.args, *(word.value for word in node.keywords)] if is_error else []
            roots += [word.value for word in node.keywords if word.arg in SAID]
        elif isinstance(node, (ast.Return, ast.Assign)) and node.value is not None:
            roots = [node.value]
        else:
            continue
        for root in roots:
            yield from (part for part in ast.walk(root) if isinstance(part, ast.Constant))


def is_sentence(text: str) -> bool:
    """Return whether a string has words of its own; programs, pages and other tools' commands have others."""
    return " " in text.strip() and "\n" not in text and "`" not in text


def test_no_text_that_may_reach_the_command_line_spells_arguments_as_python_does() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name in ONLY_IN_PYTHON or name.startswith(("agent/", "runner/", "training/", "testing/")):
            continue
        for part in said(ast.parse(path.read_bytes())):
            if isinstance(part.value, str) and is_sentence(part.value) and PYTHON.search(part.value):
                found[f"{name}:{part.lineno}"] = part.value
    assert found == {}
