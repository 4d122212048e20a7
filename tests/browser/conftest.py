"""A browser and servers that the tests of a file share; without Chromium all of them are skipped.

They end with the file, because an event loop seems to run in the main thread as long as Playwright does.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Browser, Dialog, Error, Page, sync_playwright

from tests.browser.jupyter import CHROMIUM_FLAGS, Notebook, Server, chromium, serve, write_notebook

TRAINING = (Path(__file__).parent / "training.py").read_text()
numbers = itertools.count()

Open = Callable[..., Notebook]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder as slow, and skip it if there is no Chromium."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if chromium() is None:
                item.add_marker(pytest.mark.skip(reason="there is no Chromium here (apt-get install chromium)"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Provide JupyterLab with its default settings."""
    with serve("lab", tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="module")
def notebook7(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Provide Notebook 7 with a dark theme."""
    with serve("notebook", tmp_path_factory.mktemp("notebook"), themes={"theme": "JupyterLab Dark"}) as server:
        yield server


@pytest.fixture(scope="module")
def deaf_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Provide JupyterLab whose kernels receive no clicks while a cell runs, as it was before subshells."""
    settings = {"kernels-settings": {"commsOverSubshells": "disabled"}}
    with serve("lab", tmp_path_factory.mktemp("deaf"), **settings) as server:
        yield server


@pytest.fixture(scope="module")
def bare_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Provide JupyterLab without extensions for widgets, which only its kernels have, as in separate environments."""
    folder = tmp_path_factory.mktemp("bare")
    kept = folder / "state" / "config" / "labconfig"
    kept.mkdir(parents=True)
    disabled = {"@jupyter-widgets/jupyterlab-manager": True, "anywidget": True}
    (kept / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))
    with serve("lab", folder) as server:
        yield server


@pytest.fixture(scope="module")
def kept_pages() -> list[Page]:
    """Return a list that keeps the page of the last test that passed, as another notebook opens faster than Lab loads.

    Lab takes five seconds to load, and one to open another notebook.
    """
    return []


@pytest.fixture
def page(browser: Browser, kept_pages: list[Page], request: pytest.FixtureRequest) -> Iterator[Page]:
    """Provide a page, which tests with notebooks share; fail the test on errors of the widget or calls of ``alert``."""
    n_failed = request.session.testsfailed
    page = kept_pages.pop() if kept_pages else browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    failures: list[str] = []

    def on_error(error: Error) -> None:
        # A widget's code is loaded from a blob; notebooks have errors of their own, which are not ours to find.
        if "blob:" in (error.stack or ""):
            failures.append(str(error))

    def on_dialog(dialog: Dialog) -> None:
        if dialog.type == "beforeunload":  # a page is left though a run has drawn in the notebook since it was saved
            dialog.accept()
            return
        failures.append(f"alert: {dialog.message}")
        dialog.dismiss()

    page.on("pageerror", on_error)
    page.on("dialog", on_dialog)
    yield page
    page.remove_listener("pageerror", on_error)
    page.remove_listener("dialog", on_dialog)
    passed = request.session.testsfailed == n_failed and not failures
    if passed and "open_notebook" in request.fixturenames and page.locator(".jp-Notebook").count() == 0:
        for popup in page.context.pages[1:]:
            popup.close()
        kept_pages.append(page)
    else:
        page.context.close()
    assert failures == []


@pytest.fixture
def open_notebook(page: Page) -> Iterator[Open]:
    """Provide a function that writes a notebook and opens it on a server; its kernel ends with the test."""
    opened: list[Notebook] = []

    def open_it(server: Server, *cells: str) -> Notebook:
        (server.root / "train.py").write_text(TRAINING)
        name = f"notebook-{next(numbers)}.ipynb"
        write_notebook(server.root / name, *cells)
        opened.append(Notebook(server, page, name))
        return opened[-1]

    yield open_it
    for notebook in opened:
        notebook.close()


@pytest.fixture
def accessibility() -> Callable[[Page], Any]:
    """Return a function that checks the dashboard in a page with axe-core, and returns the violations."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    def violations(page: Page) -> list[str]:
        found = axe.run(page, context=".muster").response
        assert len(found["passes"]) > 10, "it has looked"
        return [f"{violation['id']}: {violation['nodes'][0]['html']}" for violation in found["violations"]]

    return violations
