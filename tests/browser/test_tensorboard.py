"""The dashboard's TensorBoard button, in a real JupyterLab."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.jupyter import Notebook, Server

WRITES_EVENTS = """
import os, sys, time

if "events" in sys.argv:
    from event_files import write_events

    write_events(os.environ["MUSTER_TENSORBOARD"] + "/train")
print("written", flush=True)
time.sleep(600)
"""
RUN = """
import muster, muster.board.tensorboard, pathlib
{before}
from plain import Plain
shown = muster.run_cluster(1, worker_script="board.py", strategy=Plain(), args={args!r})
"""
Open = Callable[..., Notebook]


def running(open_notebook: Open, page: Page, lab: Server, *args: str, before: str = "") -> Notebook:
    """A notebook in whose cell a run has come as far as it gets."""
    (lab.root / "board.py").write_text(WRITES_EVENTS)
    notebook = open_notebook(lab, RUN.format(args=list(args), before=before))
    notebook.run()
    expect(page.locator(".muster-body")).to_contain_text("written", timeout=60_000)
    return notebook


def test_the_button_opens_tensorboard_while_the_cell_runs(open_notebook: Open, page: Page, lab: Server) -> None:
    notebook = running(open_notebook, page, lab, "events")
    button = page.get_by_role("button", name="TensorBoard")

    with page.expect_popup() as popup:
        button.click()
    board = popup.value
    board.wait_for_url("http://127.0.0.1:*/**", timeout=60_000)
    expect(board).to_have_title("TensorBoard")
    expect(board.locator("body")).to_contain_text("loss", timeout=30_000)
    assert notebook.is_running

    # Another click shows the same one, which does not end with the run.
    with page.expect_popup() as popup:
        button.click()
    popup.value.wait_for_url("http://127.0.0.1:*/**")
    assert popup.value.url.split("/")[2] == board.url.split("/")[2]
    page.get_by_role("button", name="Stop", exact=True).click()
    notebook.await_end(10)
    expect(page.locator(".jp-OutputArea-output").first).to_contain_text("For TensorBoard: muster.tensorboard('")
    board.reload()
    expect(board.locator("body")).to_contain_text("loss", timeout=30_000)


def test_what_tensorboard_says_is_in_the_tab_if_it_does_not_come_up(
    open_notebook: Open, page: Page, lab: Server
) -> None:
    broken = "muster.board.tensorboard.PROGRAM = pathlib.Path('/no/such/program.py')"
    running(open_notebook, page, lab, "events", before=broken)

    with page.expect_popup() as popup:
        page.get_by_role("button", name="TensorBoard").click()

    expect(popup.value.locator("body")).to_contain_text("TensorBoard did not come up", timeout=30_000)
    expect(popup.value.locator("body")).to_contain_text("/no/such/program.py")
    expect(page.get_by_role("button", name="TensorBoard")).to_be_enabled()


def test_there_is_no_button_where_the_script_writes_no_events(open_notebook: Open, page: Page, lab: Server) -> None:
    running(open_notebook, page, lab)

    page.wait_for_timeout(1500)
    expect(page.get_by_role("button", name="TensorBoard")).to_be_hidden()
