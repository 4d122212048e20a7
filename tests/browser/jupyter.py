"""A real JupyterLab or Notebook 7 server, and what a person does in its pages."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from tests.support import free_port

TESTS = Path(__file__).parent.parent
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
# What Lab has to offer of its own would stand in front of the page.
SETTINGS = {"notification": {"fetchNews": "false", "checkForUpdates": False}}
CURRENT = "window.jupyterapp.shell.currentWidget"
PROMPTS = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(prompt => prompt.textContent)"
KERNEL = f"{CURRENT}.context.sessionContext.session.kernel"


def chromium() -> str | None:
    """Debian's Chromium; playwright's own is never downloaded."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


@dataclass(frozen=True)
class Server:
    """A server that runs; ``app`` is ``lab`` or ``notebook``."""

    app: str
    address: str
    token: str
    root: Path
    home: Path

    def url(self, name: str) -> str:
        """Return the address where a notebook is shown."""
        if self.app == "lab":
            return f"{self.address}/lab/tree/{name}?reset&token={self.token}"
        return f"{self.address}/notebooks/{name}?token={self.token}"


@contextlib.contextmanager
def serve(app: str, folder: Path, **settings: Any) -> Iterator[Server]:
    """Start a server with a home of its own. ``settings`` are those of apputils, such as ``themes={"theme": ...}``."""
    root, state = folder / "notebooks", folder / "state"
    root.mkdir(parents=True)
    kept = state / "settings" / "@jupyterlab" / "apputils-extension"
    kept.mkdir(parents=True)
    for name, values in {**SETTINGS, **settings}.items():
        (kept / f"{name}.jupyterlab-settings").write_text(json.dumps(values))
    port = free_port()
    token = secrets.token_hex(16)
    application = "LabApp" if app == "lab" else "JupyterNotebookApp"
    command = [
        sys.executable, "-m", "jupyter", app, "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}",
        f"--{application}.expose_app_in_browser=True",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.news_url=None",
    ]  # fmt: skip
    with (state / "server.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment(folder), stdout=log, stderr=log, start_new_session=True)
        try:
            address = f"http://127.0.0.1:{port}"
            _await_answer(process, f"{address}/api/status?token={token}", state / "server.log")
            yield Server(app, address, token, root, folder / "home")
        finally:
            process.terminate()  # it ends its kernels first
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def environment(folder: Path) -> dict[str, str]:
    """The environment of a server and its kernels: a home of their own, and the tests to import from."""
    state = folder / "state"
    paths = {f"JUPYTER_{name}_DIR": str(state / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    paths |= {f"JUPYTERLAB_{name}_DIR": str(state / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    folders = [str(TESTS.parent), str(TESTS), str(TESTS.parent / "sdk"), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, folders))
    ours = {"IPYTHONDIR": str(state / "ipython"), "MUSTER_HOME": str(folder / "home"), "PYTHONPATH": path}
    env = {**os.environ, **paths, **ours, "JUPYTER_PLATFORM_DIRS": "1"}
    env.pop("MUSTER_DASHBOARD", None)
    return env


def _await_answer(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=1).read()
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def write_notebook(path: Path, *cells: str) -> None:
    """A notebook with these cells."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel}
    )
    nbformat.write(notebook, path)


class Notebook:
    """A notebook in a page, driven as a person would. ``page`` is playwright's."""

    def __init__(self, server: Server, page: Any, name: str) -> None:
        self.server, self.page, self.name = server, page, name
        self.path = server.root / name
        if server.app == "lab" and page.url.startswith(server.address):
            open_it = f"window.jupyterapp.commands.execute('docmanager:open', {{path: '{name}'}})"
            page.evaluate(f"async () => {{ await {open_it} }}")
            page.wait_for_function(f"{CURRENT}?.context?.path === '{name}'")
            self._await_kernel()
        else:
            self.load()

    def load(self) -> None:
        """Load the whole page, and wait until the notebook's kernel has answered."""
        self.page.goto(self.server.url(self.name))
        self.page.wait_for_function("window.jupyterapp && window.jupyterapp.restored")
        self.page.evaluate("async () => { await window.jupyterapp.restored }")
        self._await_kernel()

    def _await_kernel(self) -> None:
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        self.page.wait_for_function(f"(() => {{ try {{ return !!{KERNEL}.status }} catch {{ return false }} }})()")

    def run(self) -> None:
        """Run all cells, without waiting for them."""
        self.page.wait_for_function(f"{KERNEL}.status === 'idle'")
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")

    def await_end(self, seconds: float = 60) -> None:
        """Wait until all cells have run. The kernel's own status will not do: each answer to a click makes it idle."""
        self.page.wait_for_function(f"{PROMPTS}.every(text => /[0-9]/.test(text))", timeout=seconds * 1000)

    @property
    def is_running(self) -> bool:
        """Return whether a cell runs."""
        return bool(self.page.evaluate(f"{PROMPTS}.some(text => text.includes('*'))"))

    def save(self) -> nbformat.NotebookNode:
        """Save it, and read what was saved."""
        self.page.evaluate(f"async () => {{ await {CURRENT}.context.save() }}")
        saved: nbformat.NotebookNode = nbformat.read(self.path, as_version=4)
        return saved

    def shut_down(self) -> None:
        """End its kernel."""
        self.page.evaluate(f"async () => {{ await {CURRENT}.context.sessionContext.shutdown() }}")

    def close(self) -> None:
        """End its kernel, and close its tab in Lab."""
        self.shut_down()
        self.page.evaluate(f"() => {{ {CURRENT}.dispose() }}")
