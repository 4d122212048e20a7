"""The dashboard in a real kernel without a browser: what a notebook keeps that papermill or nbclient has executed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually

nbclient = pytest.importorskip("nbclient")
nbconvert = pytest.importorskip("nbconvert")
nbformat = pytest.importorskip("nbformat")
traitlets = pytest.importorskip("traitlets")

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


# Jupyter chooses a kernel's ports before the kernel binds them, and other tests may be quicker.
WITHOUT_PORTS = traitlets.config.Config({"KernelManager": {"transport": "ipc"}})


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Executes cells in one kernel, and returns the notebook; the last cell again ``until`` that has what it should."""
    monkeypatch.delenv("MUSTER_DASHBOARD")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    paths = [str(TESTS), str(TESTS.parent / "sdk"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    def run(*cells: str, attended: bool = False, until: Callable[[Any], bool] = lambda notebook: True) -> Any:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        client = nbclient.NotebookClient(notebook, timeout=120, allow_errors=True, config=WITHOUT_PORTS)
        client.on_cell_error = lambda cell, cell_index, execute_reply: cell.metadata.update(execute_reply["content"])
        with client.setup_kernel():
            client.kc.allow_stdin = attended
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
            eventually(lambda: until(notebook) or not client.execute_cell(cell, index), "it has it", timeout=60)
        client.set_widgets_metadata()
        return notebook

    return run


@pytest.mark.parametrize("kind", ["", "basic"])
def test_what_is_kept_is_a_table_and_a_curve_that_nbconvert_keeps_too(
    execute: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("MUSTER_DASHBOARD", kind)
    notebook = execute(RUN.format(last="", options=""), "muster.open_run()", "shown.cluster", attended=True)

    for cell in notebook.cells:
        (output,) = cell.outputs
        assert set(output.data) == {"text/html", "text/plain"}
        assert "✓</span> succeeded" in output.data["text/html"]
        assert "&lt;b&gt;done&lt;/b&gt;" in output.data["text/html"]
        assert "✓ train" in output.data["text/plain"]
    page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    assert page.count("data:image/svg+xml;base64,") >= 3
    assert "&lt;b&gt;done&lt;/b&gt;" in page


@pytest.mark.alone  # the pictures have three seconds
def test_a_kernel_without_widgets_shows_pictures_and_says_what_is_missing(execute: Any) -> None:
    bare = "import sys; sys.modules['anywidget'] = sys.modules['ipywidgets'] = None\n"
    started, early, late = execute(
        bare + RUN.format(last="import time; time.sleep(60)", options="wait=False"),
        "import time; time.sleep(3)\nshown.cluster",
        "shown.cluster.stop()",
    ).cells
    (last,) = started.outputs
    assert "stopped" in last.data["text/html"]
    assert early.outputs[0].data == last.data, "each is brought up to date"
    assert late.outputs == []
    going_on = bare + RUN.format(last="import time; time.sleep(60)", options="wait=False")
    live = execute(going_on, "import time; time.sleep(3)").cells[0].outputs[0]
    assert "pip install 'muster[notebook]'" in live.data["text/html"], "while it runs"


def test_a_run_under_way_is_shown_below_each_cell_whose_last_line_it_is(execute: Any) -> None:
    long = RUN.format(last="import time; time.sleep(60)", options="wait=False{}")
    ended = "shown.cluster.stop()\nimport time; time.sleep(1)"
    first, again, _, after = execute(long.format("") + "\nshown", "shown", ended, "shown").cells
    for cell in (first, again):
        picture, said = cell.outputs
        assert "stopped" in picture.data["text/html"], "it has been brought up to date"
        assert set(said.data) == {"text/plain"}
        assert "is running; it has wait(), stop()" in said.data["text/plain"]
    assert [set(output.data) for output in after.outputs] == [{"text/plain"}]
    hidden = execute(long.format(", dashboard=False") + "\nshown", "shown.cluster.stop()").cells[0]
    assert [set(output.data) for output in hidden.outputs] == [{"text/plain"}]


def test_a_failure_is_kept_with_its_cause_and_advice(execute: Any) -> None:
    notebook = execute(
        RUN.format(last="raise ValueError('no data')", options=""),
        "muster.open_run().explain()",
        "muster.open_run().result['details']",
    )

    shown, error = notebook.cells[0].outputs
    explained, details = (cell.outputs[0] for cell in notebook.cells[1:])
    assert "ValueError: no data" in shown.data["text/html"]
    assert shown.data["text/html"].index("ValueError") < shown.data["text/html"].index("<table")
    assert error.ename == "ScriptFailed"
    told = "\n".join(error.traceback)
    assert told.startswith("Cell In[1], line 9\n----> shown = muster.run_cluster(2, worker_script=train")
    assert "  Cell In[1], line 8, in train\n    raise ValueError('no data')\n" in told, "the cell, which is no file"
    beside_the_log = shown.data["text/html"].partition("log of")[0]
    assert "ipykernel_" not in told + beside_the_log + details.data["text/plain"]
    assert "Cell In[1], line 8, in train" in explained.data["text/plain"]
    assert "Cell In[1], line 8, in train" in beside_the_log
    assert told.count("ValueError: no data") <= 2, "the message, and the script's own traceback once"
    assert "run_cluster" not in told.partition("\n\n")[2], "none of our own frames"
    logs = shown.data["text/html"].partition("log of worker-")[2]
    assert "no data" in logs


REST = r"Cells that were to run after this one do not\."
INTERRUPT = """
import signal, threading
threading.Timer({}, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()
"""
CLICK = "from muster.dashboard.display import controls_of\ncontrols_of(shown.cluster).stop()"


@pytest.mark.parametrize("stop", ["shown.cluster.stop()", CLICK])
def test_a_run_that_was_stopped_is_told_in_a_line_and_ends_the_cell(execute: Any, stop: str) -> None:
    broken = "1 / 0"
    stopped = f"{stop}\nshown.cluster.wait()"
    long = RUN.format(last="import time; time.sleep(60)", options="wait=False, dashboard=False")
    notebook = execute(broken, long, stopped, "muster.run_cluster(0)", attended=True)

    (line,) = notebook.cells[2].outputs
    assert line.output_type == "stream"
    assert re.fullmatch(rf"The run was stopped \(by request\)\. Logs: \S+/logs\n{REST}\n", line.text)
    reply = notebook.cells[2].metadata
    assert (reply.ename, reply.traceback) == ("RunStopped", []), "so a notebook that runs all its cells ends there"
    assert notebook.cells[3].outputs[0].output_type == "error", "others are shown as ever"


def test_an_interrupt_of_a_cell_that_awaits_a_run_ends_the_run(execute: Any) -> None:
    long = RUN.format(last="import time; time.sleep(60)", options="wait=False, dashboard=False")
    awaits = INTERRUPT.format(1) + "await shown.cluster"
    other = INTERRUPT.format(1) + "import asyncio\nfor _ in range(600): await asyncio.sleep(0.1)"
    notebook = execute(long, awaits, "shown.cluster.result", other, attended=True)

    (line,) = notebook.cells[1].outputs
    assert re.fullmatch(rf"The run was stopped \(interrupted\); .* Logs: \S+/logs\n{REST}\n", line.text)
    assert notebook.cells[1].metadata.traceback == []
    assert "The run was stopped (interrupted)" in notebook.cells[2].outputs[0].text
    assert "asyncio.sleep" in "".join(notebook.cells[3].outputs[0].traceback), "what is no run is shown as ever"


def test_an_interrupt_of_the_wait_for_a_run_elsewhere_says_that_it_goes_on(execute: Any) -> None:
    long = RUN.format(last="import time; time.sleep(60)", options="detach=60, dashboard=False")
    notebook = execute(long, INTERRUPT.format(1) + "shown.wait()", "shown.status", "shown.stop()", attended=True)

    (line,) = notebook.cells[1].outputs
    assert re.match(r"The wait was interrupted; run \S+ goes on\. ", line.text)
    assert notebook.cells[2].outputs[0].data["text/plain"] == "'running'"


def test_what_run_cluster_returns_says_what_became_of_the_run_and_unpacks(execute: Any) -> None:
    notebook = execute(
        RUN.format(last="", options="dashboard=False"), "shown", "spec, address = shown; address is None"
    )

    result = notebook.cells[1].outputs[0].data["text/plain"]
    assert re.fullmatch(
        r"<run \S+-train-\S+ succeeded in [\d.]+ s: loss 0.25; it has result, values, logs\(\) and explain\(\)>", result
    )
    assert notebook.cells[2].outputs[0].data["text/plain"] == "True"


def test_metrics_that_are_shown_are_not_printed_again(execute: Any) -> None:
    result = execute(RUN.format(last="", options="") + "shown").cells[0].outputs[1].data["text/plain"]
    assert re.fullmatch(r"<run \S+-train-\S+ succeeded in [\d.]+ s; it has .*>", result)


def test_a_cell_shows_its_run_once(execute: Any) -> None:
    started, shown = execute(RUN.format(last="", options="wait=False") + "shown.cluster", "shown.cluster").cells
    assert [len(cell.outputs) for cell in (started, shown)] == [1, 1]


def test_what_is_not_to_be_shown_is_not(execute: Any) -> None:
    assert execute(RUN.format(last="", options="dashboard=False")).cells[0].outputs == []


def test_an_editor_that_displays_the_view_itself_keeps_the_id_of_a_run_under_way(
    execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/trial.ipynb-jvsc-0f")
    # A picture of the run that has begun, not one that comes after a while anyway.
    never = "from muster.dashboard import widget\nwidget.SECONDS_PER_BUNDLE = (600.0, 600.0)"

    def run_id_of(notebook: Any) -> str:
        return str(notebook.cells[1].outputs[0].data["text/plain"].strip("'"))

    notebook = execute(
        never + RUN.format(last="import time; time.sleep(600)", options="wait=False"),
        "import time; time.sleep(0.1); shown.cluster.run_id",
        attended=True,
        until=lambda notebook: run_id_of(notebook) in notebook.cells[0].outputs[0].data["text/html"],
    )
    run_id = run_id_of(notebook)
    kept = notebook.cells[0].outputs[0].data
    assert set(kept) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert run_id in kept["text/html"], "so a page without widgets shows the run, too"
    assert "MUSTER_DASHBOARD=basic" in kept["text/html"]
    assert "train  " in kept["text/plain"]


def test_what_is_executed_for_nobody_keeps_no_widget_and_an_error_of_a_run_that_was_stopped(execute: Any) -> None:
    long = RUN.format(last="import time; time.sleep(60)", options="wait=False")
    notebook = execute(long, "shown.cluster.stop()\nshown.cluster.wait()")

    assert notebook.metadata.get("widgets", {}) == {}
    assert set(notebook.cells[0].outputs[0].data) == {"text/html", "text/plain"}
    (error,) = notebook.cells[1].outputs
    assert error.ename == "RunStopped"
    assert len(error.traceback) == 1


@pytest.mark.alone  # the pictures come every second
def test_a_page_that_shows_no_widget_gets_pictures_and_is_told_what_is_missing(
    execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/trial.ipynb")
    long = RUN.format(last="import time; time.sleep(60)", options="wait=False")
    now = "import time; time.sleep(3.5); print(time.strftime('%H:%M:%S'))"
    notebook = execute(long, now, attended=True)

    html = notebook.cells[0].outputs[0].data["text/html"]
    assert "<code>pip install anywidget</code> in the Jupyter server's" in html
    (taken,) = re.findall(r"As it was on \d{4}-\d\d-\d\d at ([\d:]{8}) \w+, while it ran\.", html)
    seen = datetime.strptime(notebook.cells[1].outputs[0].text.strip(), "%H:%M:%S")
    assert (seen - datetime.strptime(taken, "%H:%M:%S")).seconds <= 2


@pytest.mark.parametrize("options", ["memory=10_000", "nvidia_gpu=64"])
def test_nothing_is_shown_of_a_run_that_is_refused(execute: Any, options: str) -> None:
    (error,) = execute(RUN.format(last="", options=options)).cells[0].outputs
    assert error.ename == "ResourceError"


def test_a_cluster_that_is_shown_before_it_starts_is_shown_to_its_end(execute: Any) -> None:
    made = "from muster import Cluster, Job\nfrom muster.checks.script import make_script\nfrom plain import Plain\n"
    made += "cluster = Cluster(Job(make_script(lambda: 7), 1), strategy=Plain())\ncluster"
    notebook = execute(made, "cluster.start(); (await cluster).value")

    assert "succeeded" in notebook.cells[0].outputs[0].data["text/html"]
    assert notebook.cells[1].outputs[0].data["text/plain"] == "7"


def test_a_command_of_a_cell_paints_nothing_over(execute: Any) -> None:
    command = f"!{sys.executable} -m muster"
    lives = RUN.format(last="import time; time.sleep(60)", options="wait=False, dashboard=False")
    ends = lives.replace("sleep(60)", "sleep(5)")
    notebook = execute(
        lives, f"{command} show", "shown.cluster.stop()", ends, f"{command} attach", f"{command} show"
    )  # fmt: skip
    living, attached, ended = (
        "".join(output.text for output in notebook.cells[number].outputs) for number in (1, 4, 5)
    )  # fmt: skip
    assert living.count("worker-0") == 1, "one picture, though the run goes on"
    assert "worker-0 succeeded\r\n" in attached
    assert "\x1b[?25l" not in attached, "a line for each change"
    assert ended.count("worker-0") == 1
