"""The live view of a run in a notebook: a widget that is sent diffs a few times a second, and answers what it asks.

Messages to the browser are a ``snapshot``, ``diff``, ``log``, ``stopping`` or ``tensorboard``, which says where it is;
those from it ask for a ``snapshot``, for the ``log`` of a worker, to ``stop``, or for a ``tensorboard``. They come on
whatever thread the kernel reads them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from muster.dashboard import web
from muster.dashboard.board import RunBoard
from muster.dashboard.clicks import let_clicks_through
from muster.dashboard.logtail import LogTail
from muster.dashboard.state import LiveState
from muster.text.cleaning import is_file_name

SECONDS_PER_SNAPSHOT = 2.0  # while no question of the browser has been heard


class RunWidget(anywidget.AnyWidget):
    """Shows a ``LiveState``; whoever owns it calls ``tick`` when there may be news.

    Args:
        state: what is shown.
        folder: gives the run's folder.
        stop: asks the run to end, without waiting; None where that cannot be done from here.
    """

    _esm = web.script()
    _css = web.style()
    can_stop = traitlets.Bool(False).tag(sync=True)
    has_tensorboard = traitlets.Bool(False).tag(sync=True)

    def __init__(self, state: LiveState, folder: Callable[[], Path], stop: Callable[[], None] | None) -> None:
        super().__init__(can_stop=stop is not None)
        self._state, self._folder, self._stop = state, folder, stop
        self._board = RunBoard(folder)
        self._sending = threading.Lock()
        self._heard = False
        self._snapshot_at = float("-inf")
        self._followed: tuple[str, LogTail] | None = None
        self.on_msg(self._answer)
        let_clicks_through(self.comm)

    def tick(self) -> None:
        """Send what is new.

        A kernel that is busy with a cell may not hear the first question of a browser, which then waits for a snapshot.
        """
        with self._sending:
            diff = self._state.take_diff()
            if not self._heard and time.monotonic() - self._snapshot_at >= SECONDS_PER_SNAPSHOT and diff:
                self._send_snapshot()
            elif diff:
                self.send(diff)
            self._send_log()
            if not self.has_tensorboard and self._state.view.run and self._board.is_wanted():
                self.has_tensorboard = True

    def _answer(self, _: Any, message: Any, __: Any) -> None:
        ask = message.get("ask") if isinstance(message, dict) else None
        if ask == "stop" and self._stop is not None:
            self._stop()
            self.send({"kind": "stopping"})
            return
        if ask == "tensorboard":
            self._board.open(lambda answer: self.send({"kind": "tensorboard", **answer}))
            return
        with self._sending:
            self._heard = True
            if ask == "snapshot":
                self._send_snapshot()
            elif ask == "log":
                self._follow(message.get("worker"))

    def _send_snapshot(self) -> None:
        self._snapshot_at = time.monotonic()
        self.send(self._state.snapshot())

    def _follow(self, worker: Any) -> None:
        with self._state.lock:
            known = worker in {view.name for view in self._state.view.workers.values()}
        self._followed = (
            (worker, LogTail(self._folder() / "logs" / f"{worker}.log")) if known and is_file_name(worker) else None
        )
        self._send_log(fresh=True)

    def _send_log(self, fresh: bool = False) -> None:
        if self._followed is None:
            return
        worker, tail = self._followed
        text = tail.read()
        if text or fresh:
            self.send({"kind": "log", "worker": worker, "text": text, "fresh": fresh})

    def __repr__(self) -> str:
        return f"<live view of run {self._state.view.run or self._state.view.name or 'that has not started'}>"
