"""The dashboard in real notebooks: JupyterLab, and Notebook 7 in the dark."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest
from muster.records.runs import Run
from playwright.sync_api import Page, expect

from tests.browser.jupyter import CURRENT, KERNEL, Notebook, Server, environment
from tests.support import eventually

RUN = """
import muster
from plain import Plain
shown = muster.run_cluster(3, worker_script="train.py", strategy=Plain(), args=[{args}], {options})
"""
THOUSAND = """
import random, time
from pathlib import Path
from types import SimpleNamespace
from muster.dashboard.display import dashboard_of
from muster.events import Event

class Cluster:
    run_dir = Path()
    def ask_to_stop(self): pass
    def stacks(self): return {}

dashboard = dashboard_of(Cluster())
names = [f"worker-{number}" for number in range(1000)]
dashboard(Event("run_requested", data={"job": {"name": "huge"}}))
for name in names:
    dashboard(Event("worker_state", name, {"status": "running", "address": "10.0.0.1"}))
ends = time.monotonic() + 60
step = 0
while not Path("smooth").exists() and time.monotonic() < ends:
    step += 1
    for name in names:
        dashboard(Event("progress", name, {"step": step, "steps": 40, "examples": 32 * step, "metrics": {"loss": 1 / step}}))
    time.sleep(0.2)
dashboard(Event("worker_state", "worker-700", {"status": "failed", "reason": "out of memory"}))
while not Path("seen").exists() and time.monotonic() < ends:
    time.sleep(0.1)
dashboard.close()
"""  # noqa: E501
# Two ranks tell of their steps between two ticks of the view; the one that the curve follows begins last.
BURST = """
import time
from pathlib import Path
from muster.dashboard.display import dashboard_of
from muster.events import Event

class Cluster:
    run_dir = Path()
    ask_to_stop = stacks = None

dashboard = dashboard_of(Cluster())
dashboard(Event("run_requested", data={"job": {"name": "burst"}}))
def train(rank, first, last):
    for step in range(first, last + 1):
        metrics = {"loss": 1 / step + rank}
        dashboard(Event("progress", f"worker-{rank}", {"rank": rank, "step": step, "steps": 60, "metrics": metrics}))
train(1, 1, 5)
ends = time.monotonic() + 60
while not Path("burst-seen").exists() and time.monotonic() < ends: time.sleep(0.1)
train(0, 1, 30)
while not Path("burst-seen-again").exists() and time.monotonic() < ends: time.sleep(0.1)
dashboard.close()
"""
Open = Callable[..., Notebook]


def run_cell(*args: object, **options: object) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return RUN.format(args=", ".join(map(repr, map(str, args))), options=given)


def await_training(page: Page) -> None:
    page.wait_for_selector(".muster-charts path[d*=L]", timeout=30_000)


def resize(page: Page, height: int) -> None:
    """Give the window another height, and wait until JupyterLab has laid out the notebook for it."""
    page.set_viewport_size({"width": 1280, "height": height})
    bottom = "document.querySelector('.jp-Notebook').getBoundingClientRect().bottom"
    page.wait_for_function(f"() => {height} - 100 < {bottom} && {bottom} <= {height}")


@pytest.fixture(params=["notebook7", "lab"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


def test_it_is_live_while_the_cell_runs_and_static_from_then_on(
    open_notebook: Open, page: Page, server: Server, accessibility: Any
) -> None:
    notebook = open_notebook(server, run_cell(25))
    notebook.run()
    await_training(page)

    # It is updated.
    position = page.locator(".muster-progress >> nth=0")
    before = position.inner_text()
    expect(position).not_to_have_text(before)
    # A click on a worker shows its log, with what is printed from then on, while the cell keeps the kernel.
    page.click(".muster-body >> text=worker-1")
    log = page.locator(".muster-log pre")
    expect(log).to_contain_text("epoch 1 <img src=x onerror=alert(1)>")
    lines = log.inner_text().count("\n")
    page.wait_for_function(f"document.querySelector('.muster-log pre').textContent.split('\\n').length > {lines + 1}")
    page.fill(".muster-log input", "epoch 2 ")
    expect(log).to_have_text("epoch 2 <img src=x onerror=alert(1)>")
    assert page.locator(".muster img").count() == 0, "what workers print stays text"
    assert notebook.is_running
    assert accessibility(page) == []

    notebook.await_end()
    static = page.locator(".jp-OutputArea-output table")
    expect(static).to_contain_text("worker-2")
    assert page.locator(".muster").count() == 0


def test_a_saved_notebook_reopens_with_the_static_picture_also_for_somebody_else(
    open_notebook: Open, page: Page, lab: Server
) -> None:
    notebook = open_notebook(lab, run_cell(2))
    notebook.run()
    page.wait_for_selector(".jp-OutputArea-output table", timeout=30_000)
    saved = notebook.save()
    (output,) = saved.cells[0].outputs
    assert set(output.data) == {"text/html", "text/plain"}
    assert "✓ train" in output.data["text/plain"]

    text = json.dumps(saved).replace("import muster", "import  muster")  # no longer what was signed when it was run
    other = lab.root / "other.ipynb"
    other.write_text(text)
    notebook.shut_down()
    page.goto(lab.url("other.ipynb"))
    expect(page.locator(".jp-OutputArea-output table")).to_contain_text("succeeded", timeout=30_000)
    assert page.locator(".jp-OutputArea-output img").first.evaluate("image => image.naturalWidth") > 300
    assert page.locator(".jp-OutputArea-output progress").count() == 4


def seconds_to_stop(notebook: Notebook, stop: Callable[[], object]) -> float:
    """Until nothing of the run was left, as its record says."""
    asked = time.time()
    stop()
    notebook.await_end()
    newest = max((notebook.server.home / "runs").iterdir(), key=lambda folder: folder.name)
    (ended,) = [event for event in Run(newest).events() if event.kind == "run_ended"]
    return ended.time - asked


@pytest.mark.alone
def test_an_interrupt_of_the_kernel_ends_the_run_within_two_seconds(
    open_notebook: Open, page: Page, lab: Server
) -> None:
    notebook = open_notebook(lab, run_cell(1000))
    notebook.run()
    await_training(page)

    took = seconds_to_stop(notebook, lambda: page.evaluate(f"() => {KERNEL}.interrupt()"))

    expect(page.locator(".jp-OutputArea-output table")).to_contain_text("stopped")
    assert took < 2


def test_a_page_that_is_loaded_again_shows_the_run_again(open_notebook: Open, page: Page, lab: Server) -> None:
    notebook = open_notebook(lab, run_cell(1000, wait=False))
    notebook.run()
    await_training(page)
    picture = page.locator(".muster-under")
    expect(picture).to_contain_text("As it was on")
    expect(picture).not_to_contain_text("wait=False")  # nobody is told to do what was done
    notebook.save()

    notebook.load()

    await_training(page)
    expect(page.locator(".muster-body")).to_contain_text("worker-2")
    position = page.locator(".muster-progress >> nth=0")
    before = position.inner_text()
    expect(position).not_to_have_text(before)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".muster-title")).to_contain_text("stopped")


def test_what_is_saved_while_it_runs_is_a_picture_and_a_page_without_its_kernel_says_so(
    open_notebook: Open, page: Page, lab: Server
) -> None:
    notebook = open_notebook(lab, run_cell(1000))
    notebook.run()
    await_training(page)
    under = page.locator(".muster-under")
    expect(under).to_contain_text("wait=False", timeout=20_000)  # the kernel has heard that the page is live
    expect(under).to_contain_text("was training at ")  # the picture is up to some seconds behind the live view
    (output,) = notebook.save().cells[0].outputs
    run = max((lab.home / "runs").iterdir(), key=lambda folder: folder.name).name
    assert set(output.data) == {"text/html", "text/plain"}
    assert "was training at " in output.data["text/html"]
    assert "was training at " in output.data["text/plain"]
    for said in (run, f"As it was on {time.strftime('%Y-')}", f"muster show {run}", "wait=False"):
        assert said in output.data["text/html"]

    resize(page, 460)  # lower than the card: the stacks are below its table
    page.get_by_role("button", name="Where does it hang?").click()
    expect(page.locator(".muster-stacks summary")).to_have_count(3, timeout=10_000)
    expect(page.locator(".muster-stacks summary").last).to_be_in_viewport()
    resize(page, 900)
    expect(page.locator(".muster-stacks summary").first).to_contain_text("train.py")

    page.evaluate(f"() => {{ window.restart = {CURRENT}.context.sessionContext.restartKernel(); }}")
    page.wait_for_selector(".muster-silent", timeout=3000)
    expect(page.locator(".muster-fate")).to_contain_text(
        f"the run has ended with it. To see its state now: muster show {run}"
    )
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    facts = page.locator(".muster-title").inner_text()
    page.wait_for_timeout(1200)
    assert page.locator(".muster-title").inner_text() == facts, "the clock has stopped"
    expect(page.locator(".muster-chips")).to_have_text("?3 lost")
    expect(page.locator(".muster .muster-is-running")).to_have_count(0)
    shown = page.locator(".muster").inner_text()
    assert "running" not in shown
    assert " left" not in shown
    page.evaluate("async () => { await window.restart }")  # the server cannot end a kernel that it still restarts


def test_a_log_of_many_lines_shows_its_end_and_what_was_before_it(open_notebook: Open, page: Page, lab: Server) -> None:
    many = """
        import time
        for number in range(400_000):
            print("line", number)
        print("all said", flush=True)
        time.sleep(600)
    """
    (lab.root / "many.py").write_text(textwrap.dedent(many))
    notebook = open_notebook(lab, run_cell().replace("train.py", "many.py"))
    notebook.run()
    expect(page.locator(".muster-body")).to_contain_text("all said", timeout=30_000)

    page.click(".muster-body >> text=worker-1")
    log = page.locator(".muster-log pre")
    expect(log).to_contain_text("line 399999\nall said")
    lines = log.inner_text().strip().split("\n")
    assert lines == [*(f"line {number}" for number in range(400_001 - len(lines), 400_000)), "all said"], "none is torn"
    note = page.locator(".muster-log .muster-muted")
    expect(note).to_have_text(f"the last {len(lines):,} lines, {400_001 - len(lines):,} before them")

    log.evaluate("log => { log.scrollTop = 0 }")
    expect(note).not_to_contain_text(f"last {len(lines):,} ")
    older = log.inner_text().strip().split("\n")
    assert older == [*(f"line {number}" for number in range(400_001 - len(older), 400_000)), "all said"]
    assert len(older) > len(lines) + 5_000  # those that had come by then may be more than one piece of the log


def test_lines_that_went_from_an_open_log_come_again_where_they_are_scrolled_to(
    open_notebook: Open, page: Page, lab: Server
) -> None:
    script = """
        import pathlib, time
        for number in range(60_000):
            print("line", number, flush=number % 1000 == 999)
            while number == 999 and not pathlib.Path("go").exists():
                time.sleep(0.1)
            if number % 1000 == 999:  # slower than what the page leaves out
                time.sleep(0.1)
        print("all said", flush=True)
        time.sleep(600)
    """
    (lab.root / "steady.py").write_text(textwrap.dedent(script))
    notebook = open_notebook(lab, run_cell().replace("train.py", "steady.py"))
    notebook.run()
    expect(page.locator(".muster-body")).to_contain_text("line 999", timeout=30_000)
    resize(page, 500)  # lower than the card: the log is below its table
    page.click(".muster-body >> text=worker-1")
    log = page.locator(".muster-log pre")
    expect(log).to_contain_text("line 999")
    expect(log).to_be_in_viewport(ratio=0.9)
    resize(page, 900)
    (lab.root / "go").touch()
    expect(log).to_contain_text("line 59999\nall said", timeout=30_000)
    note = page.locator(".muster-log .muster-muted")
    expect(note).to_contain_text("before them")

    first = int(log.inner_text().split("\n")[0].split()[1])
    while first > 20_000:
        log.evaluate("log => { log.scrollTop = 0 }")
        expect(note).not_to_contain_text(f" {first:,} before them")
        lines = log.inner_text().strip().split("\n")
        assert lines == [*(f"line {number}" for number in range(60_001 - len(lines), 60_000)), "all said"]
        first = 60_001 - len(lines)


def test_a_run_of_another_process_is_stopped_where_it_is_shown(open_notebook: Open, page: Page, lab: Server) -> None:
    notebook = open_notebook(lab, "import muster\nmuster.open_run()", "muster.open_run().status")
    session = run_cell(1000, dashboard=False)
    before = set((lab.home / "runs").glob("*/control.json"))
    with subprocess.Popen([sys.executable, "-c", session], cwd=lab.root, env=environment(lab.home.parent)) as process:
        try:
            eventually(lambda: set((lab.home / "runs").glob("*/control.json")) - before, "a run lives")
            notebook.run()
            await_training(page)
            page.get_by_role("button", name="Stop").click()
            expect(page.locator(".jp-OutputArea-output table")).to_contain_text("stopped", timeout=15_000)
        finally:
            process.kill()
    newest = max((lab.home / "runs").iterdir(), key=lambda folder: folder.name)
    assert Run(newest).status == "stopped"


def test_a_failure_comes_with_its_cause_and_advice_before_anything_else(
    open_notebook: Open, page: Page, lab: Server
) -> None:
    notebook = open_notebook(lab, run_cell(1, "fail"))
    notebook.run()

    output = page.locator(".jp-OutputArea-output").first
    expect(output).to_contain_text("first: ValueError: no <b>data</b> in the shard", timeout=30_000)
    text = output.inner_text()
    assert text.index("failed") < text.index("ValueError") < text.index("last line")


def test_a_run_in_the_background_is_shown_where_it_is_asked_for(open_notebook: Open, page: Page, lab: Server) -> None:
    start = run_cell(8, wait=False, dashboard=False)
    notebook = open_notebook(lab, start, "shown.cluster", "(await shown.cluster).status", "muster.open_run()")
    notebook.run()
    await_training(page)
    notebook.await_end()
    expect(page.locator(".jp-OutputArea-output table")).to_have_count(2)

    outputs = [cell.outputs for cell in notebook.save().cells]
    assert outputs[0] == []
    assert "text/html" in outputs[1][0].data
    assert outputs[2][0].data["text/plain"] == "'succeeded'"
    assert "succeeded" in outputs[3][0].data["text/html"]


@pytest.mark.alone
def test_a_thousand_workers_stay_smooth(open_notebook: Open, page: Page, lab: Server) -> None:
    notebook = open_notebook(lab, THOUSAND)
    notebook.run()
    page.wait_for_selector(".muster-body .muster-row", timeout=30_000)
    page.wait_for_timeout(1000)

    frames = page.evaluate("""() => new Promise(resolve => {
        let frames = 0; const started = performance.now(), window_ = document.querySelector(".muster-window");
        const frame = now => { frames += 1; window_.scrollTop += 40;
            now - started < 3000 ? requestAnimationFrame(frame) : resolve(1000 * frames / (now - started)); };
        requestAnimationFrame(frame); })""")

    (lab.root / "smooth").touch()
    assert frames > 30
    assert page.locator(".muster-body .muster-row").count() < 40
    expect(page.locator(".muster-chips")).to_contain_text("1 failed", timeout=15_000)
    page.locator(".muster-window").evaluate("window => { window.scrollTop = 0 }")
    expect(page.locator(".muster-body .muster-row[aria-rowindex='2']")).to_contain_text("worker-700")
    (lab.root / "seen").touch()


@pytest.mark.alone
@pytest.mark.parametrize("name", ["lab", "deaf_lab"])
def test_the_stop_button_ends_the_run_within_two_seconds(
    open_notebook: Open, page: Page, request: pytest.FixtureRequest, name: str
) -> None:
    notebook = open_notebook(request.getfixturevalue(name), run_cell(1000))
    notebook.run()
    await_training(page)

    took = seconds_to_stop(notebook, lambda: page.get_by_role("button", name="Stop", exact=True).click())

    expect(page.locator(".jp-OutputArea-output table")).to_contain_text("stopped")
    assert took < 2
    outputs = notebook.save().cells[0].outputs
    kinds = [output.output_type for output in outputs]
    assert "stream" in kinds
    said = next(output.text for output in outputs if output.output_type == "stream")
    assert said.startswith(f"The run was stopped ({'by request' if name == 'lab' else 'interrupted'})")
    assert "error" not in kinds, "who stops a run need not look into an error"


@pytest.mark.parametrize("interrupt", ["Promise.reject(Error('not here'))", "Promise.resolve()"])
def test_a_kernel_that_is_busy_and_cannot_be_interrupted_says_how_to_stop_the_run(
    open_notebook: Open, page: Page, deaf_lab: Server, interrupt: str
) -> None:
    notebook = open_notebook(deaf_lab, run_cell(1000))
    notebook.run()
    await_training(page)
    page.evaluate(f"() => {{ const kernel = {KERNEL}; kernel.interrupt = () => {interrupt} }}")
    stop = page.get_by_role("button", name="Stop", exact=True)

    stop.click()

    expect(page.locator(".muster-fate")).to_contain_text("Interrupt it, or in a terminal: muster stop", timeout=15_000)
    expect(stop).to_be_enabled()
    page.evaluate(f"() => {{ delete {KERNEL}.interrupt }}")
    stop.click()
    notebook.await_end()


@pytest.mark.alone  # the pictures come every second
@pytest.mark.parametrize("wait", [True, False])
def test_a_server_without_widgets_shows_pictures_that_go_on_and_says_what_it_lacks(
    open_notebook: Open, page: Page, bare_lab: Server, wait: bool
) -> None:
    notebook = open_notebook(bare_lab, run_cell(1000, wait=wait))
    notebook.run()
    shown = page.locator(".jp-OutputArea-output").first
    expect(shown).to_contain_text("training", timeout=30_000)
    expect(shown).to_contain_text("pip install anywidget in the Jupyter server's")
    for _ in range(3):
        before = shown.inner_text()
        expect(shown).not_to_have_text(before, use_inner_text=True, timeout=3000)


def test_a_progress_bar_is_one_line_of_the_log(open_notebook: Open, page: Page, lab: Server) -> None:
    bar = "import pathlib, time\nfor part in range(41):\n    print(f'\\r{part}/40', end='', flush=True)\n"
    bar += "    time.sleep(0.05)\n    while part == 30 and not pathlib.Path('counted').exists(): time.sleep(0.05)\n"
    (lab.root / "bar.py").write_text(f"print('begin')\n{bar}print()\nprint('end', flush=True)\ntime.sleep(600)")
    notebook = open_notebook(lab, run_cell().replace("train.py", "bar.py"))
    notebook.run()
    page.click(".muster-body >> text=worker-1", timeout=30_000)
    log = page.locator(".muster-log pre")
    note = page.locator(".muster-log .muster-muted")

    expect(note).to_have_text("2 lines", timeout=15_000)
    (lab.root / "counted").touch()
    expect(log).to_have_text("begin\n40/40\nend", timeout=15_000)
    expect(note).to_have_text("3 lines")


def test_a_chart_has_every_step_however_many_are_told_between_two_ticks(
    open_notebook: Open, page: Page, lab: Server
) -> None:
    notebook = open_notebook(lab, BURST)
    notebook.run()
    chart = page.locator(".muster-chart")
    first, last = chart.locator(".muster-x span").first, chart.locator(".muster-x span").last
    expect(last).to_have_text("5", timeout=30_000)
    expect(first).to_have_text("step 1")

    (lab.root / "burst-seen").touch()

    expect(last).to_have_text("30")
    expect(first).to_have_text("step 1")
    assert (chart.locator("path").get_attribute("d") or "").count("L") == 29, "those of one rank, all of them"
    (lab.root / "burst-seen-again").touch()


# anywidget gives a page two seconds to load a widget. Here that is over at once, as if the page were so slow.
HURRY = """() => {
    window.patient = AbortSignal.timeout;
    AbortSignal.timeout = () => {
        const hurried = new AbortController();
        queueMicrotask(() => hurried.abort());
        return hurried.signal;
    };
}"""


def test_a_page_that_takes_long_to_load_the_view_shows_the_run(open_notebook: Open, page: Page, lab: Server) -> None:
    notebook = open_notebook(lab, run_cell(1000, wait=False))
    page.evaluate(HURRY)
    try:
        notebook.run()
        await_training(page)
    finally:
        page.evaluate("() => { AbortSignal.timeout = window.patient }")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".jp-OutputArea-output table")).to_contain_text("stopped")


STACKS = """
import time
from pathlib import Path
from muster.dashboard.display import dashboard_of
from muster.events import Event

class Cluster:
    run_dir = Path()
    ask_to_stop = None
    def stacks(self): return {"rank 0 (worker-0)": 'File "train.py", line 7, in step'}

dashboard = dashboard_of(Cluster())
dashboard(Event("run_requested", data={"job": {"name": "one-hangs"}}))
for rank in range(2):
    dashboard(Event("process_started", f"worker-{rank}", {"pid": 2, "rank": rank}))
dashboard(Event("process_exited", "worker-1", {"pid": 2, "rank": 1, "exit_code": 0}))
ends = time.monotonic() + 60
while not Path("asked").exists() and time.monotonic() < ends: time.sleep(0.1)
dashboard.close()
"""


def test_where_every_rank_is_tells_also_of_those_that_have_ended(open_notebook: Open, page: Page, lab: Server) -> None:
    notebook = open_notebook(lab, STACKS)
    notebook.run()
    page.get_by_role("button", name="Where does it hang?").click()

    stacks = page.locator(".muster-stacks")
    expect(stacks.locator("summary")).to_have_text(["rank 0 (worker-0): train.py, line 7, in step"])
    expect(stacks).to_contain_text("Ended: worker-1 r1 (exit 0).")
    (lab.root / "asked").touch()
