"""The documents: links lead somewhere, examples name what there is, the tutorial runs as it stands there."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections import Counter
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


def read(path: str) -> str:
    """A file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that a document's headings make, as GitHub and the site name them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w -]", "", found.lower()).replace(" ", "-") for found in re.findall("^#+ (.*)$", text, re.M)}


# Modules that users import from, beside `muster` itself.
PUBLIC_MODULES = (
    "cdsw", "cdsw_tensorflow_utils", "errors", "events", "platforms.base", "strategies.base", "testing", "training",
    "training.checkpoint", "training.communication", "training.horovod", "training.keras", "training.partition",
)  # fmt: skip
FOR_AUTHORS = {"write-a-platform.md", "write-a-strategy.md"}  # which show helpers where they are needed


def in_reference() -> set[str]:
    """The names that the reference documents, one by one or with their modules."""
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    named = set(re.findall(r"auto(?:function|class):: (\S+)", reference))
    for module, options in re.findall(r"automodule:: (\S+)\n((?: +:.*\n)*)", reference):
        if ":no-members:" not in options:
            excluded = set(re.findall(r"\w+", (re.findall(":exclude-members: (.*)", options) or [""])[0]))
            named |= {module} | {f"{module}.{name}" for name in names_of(module) - excluded}
    return named


def names_of(module: str) -> set[str]:
    """Names of a module, without importing it (it may need TensorFlow): its ``__all__``, or what it defines."""
    path = ROOT / "sdk" / module.replace(".", "/")
    body = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_bytes()).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    defined = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return {name for name in defined if not name.startswith("_")}


def test_the_reference_has_every_public_name_with_a_docstring() -> None:
    named = in_reference()
    assert {f"muster.{name}" for name in muster.__all__} - {"muster.MusterError", "muster.RunFailed"} <= named
    assert [name for name in muster.__all__ if not getattr(muster, name).__doc__] == []
    # What is in two places is documented in one of them; what is for Muster's own use alone is in none.
    elsewhere = set(muster.__all__) | {"without_inner_frames", "PollBackoff", "NothingHappens", "Observer"}
    public = {
        f"muster.{module}.{name}" for module in PUBLIC_MODULES for name in names_of(f"muster.{module}") - elsewhere
    }
    assert public - named == set()
    classes = {platform_class(name) for name in PLATFORMS}
    assert {f"{kind.__module__}.{kind.__qualname__}" for kind in classes} <= named


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if path.name not in FOR_AUTHORS], ids=lambda path: path.name
)
def test_what_a_guide_imports_is_in_the_reference(document: Path) -> None:
    nodes = (node for tree in trees(document) for node in ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("muster.")]
    imported = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert imported - in_reference() == set()


def test_what_readers_look_for_is_in_a_section_of_a_page_that_the_start_page_leads_to() -> None:
    rows = re.findall(r"^\| ([^|]+) \|.*\]\(([\w-]+\.md)#([\w-]+)\) \| (\d) \|$", read("docs/readers.md"), re.MULTILINE)
    assert Counter(reader for reader, *_ in rows) == {
        "data scientist": 3, "administrator": 3, "engineer with a platform": 3,
    }  # fmt: skip
    _, _, begin = read("docs/index.md").partition("Where to begin")
    for _, page, section, clicks in rows:
        assert section in anchors(ROOT / "docs" / page), f"{page}#{section}"
        assert (f"({page}" if clicks == "2" else f"({page}#{section})") in begin.partition("::::")[0]


def test_the_readme_takes_a_screen_and_a_half_and_its_first_lines_run(tmp_path: Path) -> None:
    # At GitHub's width it was 1,615 pixels high with 440 words; one and a half screens have 1,620.
    readme = read("README.md")
    assert len(readme.splitlines()) <= 68
    assert len(re.sub(r"\]\([^)]*\)", "]", readme).split()) <= 440
    (tmp_path / "ten.py").write_text(blocks(ROOT / "README.md")[0])
    done = subprocess.run([sys.executable, "ten.py"], cwd=tmp_path, capture_output=True, text=True)
    assert len(blocks(ROOT / "README.md")[0].splitlines()) <= 10
    assert done.stdout.splitlines()[-1] == str([{"loss": 0.1**2}] * 2), done.stderr


def test_the_glossary_has_at_most_fifteen_terms() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert len(re.findall("^: ", glossary, re.MULTILINE)) <= 15


def test_each_kind_of_change_stands_once_in_the_changelog_and_so_does_each_change() -> None:
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for version in re.split("^## ", changelog, flags=re.MULTILINE)[1:]:
        titles = re.findall("^### (.*)$", version, re.MULTILINE)
        assert titles == [kind for kind in kinds if kind in titles]
        entries = re.split(r"\n(?=- )|\n\n", version)
        assert len(set(entries)) == len(entries)


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
    files = [
        path.as_posix() for folder in ("benchmarks", "sdk", "scripts", "tests") for path in (ROOT / folder).rglob("*.*")
    ]
    assert len(named) > 100
    assert {name for name in named if not any(file.endswith("/" + name) for file in files)} == set()


def blocks(document: Path) -> list[str]:
    """The Python programs, and parts of such, that stand in a document."""
    text = document.read_text(encoding="utf-8")
    return [
        textwrap.dedent(found) for found in re.findall(r"^ *```python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    ]


def trees(document: Path) -> list[ast.Module]:
    """The Python blocks of a document, parsed; an ellipsis stands for more arguments."""
    return [ast.parse(block.replace(", ...)", ")").replace("(...)", "()")) for block in blocks(document)]


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
    for tree in trees(document):
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
