"""The TensorBoard of a run: offered once the script has written event files, and started on request."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.board.tensorboard import TensorBoard, tensorboard
from muster.errors import MusterError
from muster.records.folders import TENSORBOARD

CHECK_SECONDS = 1.0


def has_events(folder: Path) -> bool:
    """Return whether a run has written event files for TensorBoard into its folder."""
    # Not rglob, which fails where a script removes a folder meanwhile.
    return any("tfevents" in name for _, _, names in os.walk(folder / TENSORBOARD) for name in names)


def hint(folder: Path) -> str:
    """Return the call that opens a run's TensorBoard, for a picture without buttons; empty if there are no events."""
    if not has_events(folder):
        return ""
    logdir, home = folder / TENSORBOARD, Path.home()
    shown = Path("~", logdir.relative_to(home)) if logdir.is_relative_to(home) else logdir
    return f"For TensorBoard: muster.tensorboard({str(shown)!r})"


class RunBoard:
    """At most one TensorBoard for the files in ``tensorboard`` below a run's folder, which ``folder`` returns."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._checked_at = float("-inf")
        self._starting = threading.Lock()
        self._board: TensorBoard | None = None

    def is_wanted(self) -> bool:
        """Return whether there are event files. Checks once a second at most, and returns False in between."""
        if time.monotonic() - self._checked_at < CHECK_SECONDS:
            return False
        self._checked_at = time.monotonic()
        return has_events(self._folder())

    def open(self, tell: Callable[[dict[str, Any]], None]) -> None:
        """Start the TensorBoard on a new thread, and call ``tell`` there with its ``url``, or with an ``error``."""
        threading.Thread(target=lambda: tell(self._answer()), name="muster-tensorboard", daemon=True).start()

    def _answer(self) -> dict[str, Any]:
        with self._starting:
            try:
                if self._board is None or not self._board.is_running:
                    self._board = tensorboard(self._folder() / TENSORBOARD)
            except MusterError as error:
                return {"error": str(error)}
            return {"url": self._board.url}
