"""Pictures of the dashboard in JupyterLab, from real runs: python -m benchmarks.notebook_picture

Trains the MNIST script with Horovod on three workers from a notebook, as a user would, and takes pictures of the cell:
during training, and after a run has failed because the data of one rank are missing. PNG, in docs/pictures/, light and
dark.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.terminal_picture import ABSENT_DATA, PICTURES, REPOSITORY
from tests.browser.jupyter import CHROMIUM_FLAGS, Notebook, Server, chromium, serve, write_notebook

CELL = """import muster

muster.run_cluster(3, cpu=0.5, strategy="horovod", worker_script="{script}"{options})"""
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
FROM_PROGRESS = 0.63  # share of the training after which the picture is taken: early in one of the 8 epochs
ENOUGH = f"(document.querySelector('.muster-progress progress')?.value ?? 0) > {FROM_PROGRESS}"


def main() -> None:
    """Take all pictures, in each theme."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        for name, theme in THEMES.items():
            with tempfile.TemporaryDirectory() as folder, serve("lab", Path(folder), themes={"theme": theme}) as server:
                link_scripts(server)
                take_training(browser, server, PICTURES / f"notebook-{name}.png")
                take_failure(browser, server, PICTURES / f"notebook-failed-{name}.png")
        browser.close()


def link_scripts(server: Server) -> None:
    """Link the training scripts beside the notebook, and write one there that fails."""
    for script in (REPOSITORY / "worker_scripts").glob("*.py"):
        (server.root / script.name).symlink_to(script)
    (server.root / "absent_data.py").write_text(ABSENT_DATA)


def take_training(browser: Browser, server: Server, path: Path) -> None:
    """Take a picture of the dashboard during training, with the log of a worker."""
    cell = CELL.format(script="mnist_horovod.py", options=', args=["--epochs", 8]')
    page, notebook = open_notebook(browser, server, cell)
    notebook.run()
    page.wait_for_function(ENOUGH, timeout=400_000)
    page.click(".muster-body >> text=worker-0")
    page.wait_for_timeout(800)
    take(page, path)
    page.get_by_role("button", name="Stop").click()
    notebook.await_end()
    notebook.shut_down()
    page.context.close()


def take_failure(browser: Browser, server: Server, path: Path) -> None:
    """Take a picture of the dashboard that a failed run leaves."""
    page, notebook = open_notebook(browser, server, CELL.format(script="absent_data.py", options=""))
    notebook.run()
    notebook.await_end(400)
    page.evaluate("document.querySelectorAll('.jp-OutputArea-child')[1]?.remove()")  # the traceback below it
    take(page, path)
    notebook.shut_down()
    page.context.close()


def open_notebook(browser: Browser, server: Server, cell: str) -> tuple[Page, Notebook]:
    """Return a page as large as a laptop's screen, and the notebook of one cell that is open in it."""
    write_notebook(server.root / "mnist.ipynb", cell)
    page = browser.new_context(viewport={"width": 1360, "height": 1200}, device_scale_factor=1.5).new_page()
    notebook = Notebook(server, page, "mnist.ipynb")
    page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
    return page, notebook


def take(page: Page, path: Path) -> None:
    """Take a picture of the cell with its output, and of nothing else on the page."""
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement?.blur()")
    page.locator(".jp-Notebook .jp-CodeCell").first.screenshot(path=path)
    print(path.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
