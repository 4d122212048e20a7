"""Pictures of the repository's notebooks, for readers without an installation: python -m benchmarks.notebook_pages

Renders each notebook, with the outputs that it has in git, top to bottom, as PNG in docs/pictures/. No notebook is run
(notebooks/execute.py does that).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from benchmarks.terminal_picture import PICTURES, REPOSITORY
from tests.browser.jupyter import CHROMIUM_FLAGS, chromium

NOTEBOOKS = REPOSITORY / "notebooks"
WIDTH, SCALE = 1240, 1  # width of the page in pixels, and device pixels to each
COLOURS = 96  # number of colours in a picture, enough for text and a few drawings


def picture_of(notebook: Path) -> Path:
    """Return the path of a notebook's picture."""
    return PICTURES / f"notebook-{notebook.stem.replace('_', '-')}.png"


def paint(page: Page, notebook: Path, folder: Path) -> None:
    """Take the picture of one notebook."""
    exporter = HTMLExporter(embed_images=True)  # type: ignore[no-untyped-call]
    html, _ = exporter.from_notebook_node(nbformat.read(notebook, as_version=4))
    source = folder / f"{notebook.stem}.html"
    source.write_text(html, encoding="utf-8")
    page.goto(source.as_uri(), wait_until="domcontentloaded")
    page.wait_for_timeout(500)  # until all is laid out
    path = picture_of(notebook)
    page.locator("main").screenshot(path=path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path.relative_to(REPOSITORY))


def main() -> None:
    """Take the pictures of all notebooks."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, device_scale_factor=SCALE)
        page.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
        for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
            paint(page, notebook, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
