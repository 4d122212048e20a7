"""The documents: links lead somewhere, the tutorial runs as it stands there. `make docs` makes the site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import muster
import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_links_to_is_there(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


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
        notebook.write("\nprint(shown.cluster.result.status, shown.cluster.logs('worker-1'))\n")
    done = subprocess.run([sys.executable, "notebook.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout
    assert "rank 1 of 2: 500.0" in done.stdout
