"""The documents: links lead somewhere, examples name what there is, the tutorial runs as it stands there."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import muster
import pytest
from muster.options.fields import options_of
from muster.platforms import PLATFORMS, platform_class
from muster.strategies import STRATEGIES, strategy_class

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_links_to_is_there(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", document.read_text(encoding="utf-8"))
    assert [link for link, _ in links if not (document.parent / link).exists()] == []
    linked = [(document.parent / link if link else document, anchor) for link, anchor in links if anchor]
    assert [(page.name, anchor) for page, anchor in linked if anchor not in anchors(page)] == []


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that a document's headings make, as GitHub and the site name them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w -]", "", found.lower()).replace(" ", "-") for found in re.findall("^#+ (.*)$", text, re.M)}


def test_the_reference_has_every_public_name_with_a_docstring_and_the_glossary_at_most_fifteen_terms() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    named = set(re.findall(r"auto(?:function|class|module):: (\S+)", reference))
    for name in muster.__all__:
        public = getattr(muster, name)
        assert public.__doc__, name
        assert {f"{public.__module__}.{name}", public.__module__} & named, name
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert len(re.findall("^: ", glossary, re.MULTILINE)) <= 15


def test_the_page_of_the_command_line_is_what_help_prints() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "command_line.py", "--print"], capture_output=True, text=True, check=True
    )
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert page == made.stdout, "run scripts/command_line.py"


def test_the_tutorial_runs_as_it_stands_there(tmp_path: Path) -> None:
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for name, program in re.findall(r"<!-- runs: (\S+) -->\n```python\n(.*?)```", tutorial, re.DOTALL):
        (tmp_path / name).write_text(program)
    with (tmp_path / "notebook.py").open("a") as notebook:
        notebook.write("\nprint(run.result.status, run.logs('worker-1'))\n")
    done = subprocess.run([sys.executable, "notebook.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout
    assert "rank 1 of 2: 500.0" in done.stdout


def test_the_files_that_the_page_on_structure_names_are_there() -> None:
    page = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.(?:py|js|css))`", page))
    files = [path.as_posix() for folder in ("sdk", "scripts", "tests") for path in (ROOT / folder).rglob("*.*")]
    assert len(named) > 100
    assert {name for name in named if not any(file.endswith("/" + name) for file in files)} == set()


def blocks(document: Path) -> list[str]:
    """The Python programs, and parts of such, that stand in a document."""
    text = document.read_text(encoding="utf-8")
    return [
        textwrap.dedent(found) for found in re.findall(r"^ *```python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    ]


def known_arguments(function: object) -> set[str] | None:
    """The names of arguments that a public function takes, with the options of what it makes; None for any."""
    if not callable(function):
        return None
    parameters = inspect.signature(function).parameters
    names = set(parameters)
    if function is muster.run_cluster:
        for table, class_of in ((STRATEGIES, strategy_class), (PLATFORMS, platform_class)):
            names |= {option.name for name in table for option in options_of(class_of(name))}
    elif any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return names


@pytest.mark.slow  # examples import TensorFlow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_examples_import_and_call_is_there(document: Path) -> None:
    for block in blocks(document):
        tree = ast.parse(block.replace(", ...)", ")").replace("(...)", "()"))  # an ellipsis stands for more arguments
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "muster":
                module = importlib.import_module(node.module or "")
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "muster":
                assert hasattr(muster, node.attr), f"muster.{node.attr} in {document.name}"
            elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("muster."):
                name = ast.unparse(node.func).removeprefix("muster.")
                known = known_arguments(getattr(muster, name, None))
                given = {keyword.arg for keyword in node.keywords if keyword.arg}
                assert known is None or given <= known, f"muster.{name} takes no {given - known} ({document.name})"
