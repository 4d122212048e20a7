"""Run the notebooks from top to bottom and keep what they show, without the paths of this machine.

.venv/bin/python notebooks/execute.py [NOTEBOOK...]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from traitlets import default

NOTEBOOKS = Path(__file__).resolve().parent
CELL_TIMEOUT = 300  # seconds


class OwnKernel(AsyncKernelManager):
    """A manager that starts this very interpreter as the kernel, whichever others are installed."""

    @default("kernel_spec_manager")
    def _only_the_native_one(self) -> KernelSpecManager:
        return KernelSpecManager(parent=self, kernel_dirs=[])


def execute(path: Path, folder: Path = NOTEBOOKS, **parameters: Any) -> nbformat.NotebookNode:
    """Run a notebook in a kernel of its own.

    Args:
        path: The notebook, which is not changed.
        folder: The kernel's working directory.
        parameters: Values for the variables of the cell tagged ``parameters``.

    Returns:
        The notebook with its outputs.

    Raises:
        PapermillExecutionError: A cell failed.
    """
    return papermill.execute_notebook(
        path,
        None,
        parameters,
        kernel_name="python3",
        kernel_manager_class=OwnKernel,
        execution_timeout=CELL_TIMEOUT,
        cwd=str(folder),
        progress_bar=False,
    )


def as_kept(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the notebook without times and folders of its run: outputs name ``~/muster``, ``~`` and ``/tmp/...``."""
    notebook.metadata.pop("widgets", None)  # what widgets leave behind is in the outputs
    for holder in (notebook, *notebook.cells):
        holder.metadata.pop("papermill", None)
        holder.metadata.pop("execution", None)
        if not holder.metadata.get("tags"):
            holder.metadata.pop("tags", None)
    text = json.dumps(notebook)
    for folder, name in (NOTEBOOKS.parent, "~/muster"), (Path.home(), "~"):
        text = text.replace(json.dumps(str(folder))[1:-1], name)
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/(tmp|muster-)\w+", "/tmp/...", text)
    return nbformat.from_dict(json.loads(text))


def main() -> None:
    """Run the notebooks given, or all of them, and write them back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all in this folder")
    for path in parser.parse_args().notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        started = time.monotonic()
        nbformat.write(as_kept(execute(path)), path)
        print(f"{path.name}: {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
