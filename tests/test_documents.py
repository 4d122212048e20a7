"""The documents: links lead somewhere, the tutorial runs as it stands there, the site is made without a warning."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_links_to_is_there(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


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


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="Sphinx is not installed")
def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "run_cluster" in (tmp_path / "reference.html").read_text(encoding="utf-8")
