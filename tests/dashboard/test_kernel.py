"""The dashboard in a real kernel without a browser: what a notebook keeps that papermill or nbclient has executed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbconvert = pytest.importorskip("nbconvert")
nbformat = pytest.importorskip("nbformat")

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent
RUN = """
import muster
from plain import Plain
def train(fail=False):
    from muster.training import report
    for step in range(1, 5):
        report(step, steps=4, loss=1 / step)
    print("<b>done</b>")
    {last}
shown = muster.run_cluster(2, worker_script=train, strategy=Plain(), {options})
"""


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Executes cells in one kernel, and returns the notebook."""
    monkeypatch.delenv("MUSTER_DASHBOARD")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    paths = [str(TESTS), str(TESTS.parent / "sdk"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    def run(*cells: str) -> Any:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        nbclient.NotebookClient(notebook, timeout=120, allow_errors=True).execute()
        return notebook

    return run


@pytest.mark.parametrize("kind", ["", "basic"])
def test_what_is_kept_is_a_table_and_a_curve_that_nbconvert_keeps_too(
    execute: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("MUSTER_DASHBOARD", kind)
    notebook = execute(RUN.format(last="", options=""), "muster.open_run()", "shown.cluster")

    for cell in notebook.cells:
        (output,) = cell.outputs
        assert set(output.data) == {"text/html", "text/plain"}
        assert "✓</span> succeeded" in output.data["text/html"]
        assert "&lt;b&gt;done&lt;/b&gt;" in output.data["text/html"]
        assert "✓ train" in output.data["text/plain"]
    page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    assert page.count("data:image/svg+xml;base64,") >= 3
    assert "&lt;b&gt;done&lt;/b&gt;" in page


def test_a_failure_is_kept_with_its_cause_and_advice(execute: Any) -> None:
    notebook = execute(RUN.format(last="raise ValueError('no data')", options=""))

    shown, error = notebook.cells[0].outputs
    assert "ValueError: no data" in shown.data["text/html"]
    assert shown.data["text/html"].index("ValueError") < shown.data["text/html"].index("<table")
    assert error.ename == "ScriptFailed"
    told = "\n".join(error.traceback)
    assert told.startswith("Cell In[1], line 9\n----> shown = muster.run_cluster(2, worker_script=train")
    assert told.count("ValueError: no data") <= 2, "the message, and the script's own traceback once"
    assert "run_cluster" not in told.partition("\n\n")[2], "none of our own frames"
    logs = shown.data["text/html"].partition("log of worker-")[2]
    assert "no data" in logs


def test_what_run_cluster_returns_says_what_became_of_the_run_and_unpacks(execute: Any) -> None:
    notebook = execute(
        RUN.format(last="", options="dashboard=False"), "shown", "spec, address = shown; address is None"
    )

    result = notebook.cells[1].outputs[0].data["text/plain"]
    assert re.fullmatch(r"<run \S+-train-\S+ succeeded in [\d.]+ s: loss 0.25; \.cluster has .*>", result)
    assert notebook.cells[2].outputs[0].data["text/plain"] == "True"


def test_what_is_not_to_be_shown_is_not(execute: Any) -> None:
    assert execute(RUN.format(last="", options="dashboard=False")).cells[0].outputs == []


def test_a_run_that_cannot_start_leaves_no_live_view(execute: Any) -> None:
    notebook = execute(RUN.format(last="", options="memory=10_000"))

    assert [output.output_type for output in notebook.cells[0].outputs] == ["display_data", "error"]
    assert set(notebook.cells[0].outputs[0].data) == {"text/html", "text/plain"}


def test_a_cluster_that_is_shown_before_it_starts_is_shown_to_its_end(execute: Any) -> None:
    made = "from muster import Cluster, Job\nfrom muster.checks.script import make_script\nfrom plain import Plain\n"
    made += "cluster = Cluster(Job(make_script(lambda: 7), 1), strategy=Plain())\ncluster"
    notebook = execute(made, "cluster.start(); (await cluster).value")

    assert "succeeded" in notebook.cells[0].outputs[0].data["text/html"]
    assert notebook.cells[1].outputs[0].data["text/plain"] == "7"
