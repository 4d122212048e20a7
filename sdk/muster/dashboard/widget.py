"""The live view of a run in a notebook: a widget that is sent diffs a few times a second, and answers what it asks.

Messages to the browser are a ``snapshot``, a ``diff``, or a ``beat`` where there is nothing new, so that it can tell a
session that is gone; and answers to what it asks for: a ``snapshot``, the end of a worker's ``log`` and what is
``older``, to ``stop``, the ``stacks`` of all ranks, a ``tensorboard``. Questions come on whatever thread the kernel
reads them.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from muster.dashboard import web
from muster.dashboard.base import Controls
from muster.dashboard.clicks import let_clicks_through
from muster.dashboard.frontend import is_jupyter
from muster.dashboard.live import LiveState
from muster.dashboard.logwindow import LogWindow
from muster.dashboard.pictures import NEED_WIDGETS
from muster.dashboard.tensorboard import RunBoard
from muster.errors import MusterError
from muster.text.cleaning import is_file_name

SECONDS_PER_BEAT = 0.5  # a page that hears nothing for two seconds says so
SECONDS_PER_PICTURE = (1.0, 5.0)  # below the live view, at the beginning of the run and later
SECONDS_PER_BUNDLE = (10.0, 60.0)  # the same of the picture beside the view, each of which has that begin anew
SECONDS_PER_SNAPSHOT = 2.0  # while no question of the browser has been heard
BASIC = (
    "<code>MUSTER_DASHBOARD=basic</code> in the kernel's environment has a simpler view, for pages that show none here."
)


class RunWidget(anywidget.AnyWidget):
    """Shows a ``LiveState``; whoever owns it calls ``tick`` when there may be news.

    Args:
        state: what is shown.
        folder: gives the run's folder.
        controls: what can be done with the run.

    Attributes:
        cover: a class of elements that every page where this widget is known puts a live view over. Empty where it has
            to be displayed itself, which no notebook keeps.
    """

    _esm = web.script()
    _css = web.style()
    can_stop = traitlets.Bool(False).tag(sync=True)
    can_say_stacks = traitlets.Bool(False).tag(sync=True)
    is_own = traitlets.Bool(False).tag(sync=True)
    is_live = traitlets.Bool(True).tag(sync=True)
    has_tensorboard = traitlets.Bool(False).tag(sync=True)
    cover = traitlets.Unicode("").tag(sync=True)

    def __init__(self, state: LiveState, folder: Callable[[], Path], controls: Controls) -> None:
        super().__init__(
            can_stop=controls.stop is not None,
            can_say_stacks=controls.stacks is not None,
            is_own=controls.is_own,
            cover=f"muster-live-{secrets.token_hex(8)}" if is_jupyter() else "",
        )
        self._state, self._folder, self._controls = state, folder, controls
        self._board = RunBoard(folder)
        self._sending = threading.Lock()
        self._heard = False
        self._snapshot_at = float("-inf")
        self._told_at = float("-inf")
        self._followed: tuple[str, LogWindow] | None = None
        self.on_msg(self._answer)
        let_clicks_through(self.comm)

    @property
    def seconds_per_picture(self) -> float:
        """The pause between two pictures: short as long as no page has said that it shows the view itself.

        An editor that displays the view would begin it anew with each. So it gets none once it has said so; until then
        it gets few, for pages that show no widget.
        """
        if not self.cover:
            return math.inf if self._heard else self._pause(*SECONDS_PER_BUNDLE)
        return self._pause(*SECONDS_PER_PICTURE) if self._heard else SECONDS_PER_PICTURE[0]

    def _pause(self, least: float, most: float) -> float:
        """A tenth of the time that the run has taken, within bounds."""
        return min(max(least, self._state.view.elapsed / 10), most)

    @property
    def remedy(self) -> str:
        """HTML that says how to have the view in a page that has not said that it shows it."""
        return "" if self._heard else NEED_WIDGETS if self.cover else BASIC

    def tick(self) -> None:
        """Send what is new.

        A kernel that is busy with a cell may not hear the first question of a browser, which then waits for a snapshot.
        """
        with self._sending:
            diff = self._state.take_diff()
            now = time.monotonic()
            if not self._heard and now - self._snapshot_at >= SECONDS_PER_SNAPSHOT:
                self._send_snapshot()  # also without news: a view may have begun since
            elif diff:
                self.send(diff)
            elif now - self._told_at >= SECONDS_PER_BEAT and self._state.view.ended is None:
                self.send({"kind": "beat"})
            else:
                now = self._told_at
            self._told_at = now
            self._send_log()
            if not self.has_tensorboard and self._state.view.run_id and self._board.is_wanted():
                self.has_tensorboard = True

    def _answer(self, _: Any, message: Any, __: Any) -> None:
        if not isinstance(message, dict):
            return
        self._heard = True
        ask = message.get("ask")
        if ask == "stop":
            self._answer_with("stopping", self._controls.stop)
        elif ask == "stacks":
            self._answer_with("stacks", self._controls.stacks)
        elif ask == "tensorboard":
            self._board.open(lambda answer: self.send({"kind": "tensorboard", **answer}))
        elif ask in ("snapshot", "log", "older"):
            with self._sending:
                if ask == "snapshot":
                    self._send_snapshot()
                elif ask == "log":
                    self._follow(message.get("worker"))
                elif self._followed is not None and isinstance(message.get("start"), int):
                    worker, log = self._followed
                    self.send({"kind": "older", "worker": worker, **log.older(message["start"])})

    def _answer_with(self, kind: str, act: Callable[[], Any] | None) -> None:
        """Do what was asked for, on a thread of its own: questions come on threads that others need."""

        def answer() -> None:
            try:
                self.send({"kind": kind, "said": act() if act else None})
            except (MusterError, OSError, TimeoutError) as error:
                self.send({"kind": kind, "error": str(error) or "there is no answer"})

        threading.Thread(target=answer, name="muster-answer", daemon=True).start()

    def _send_snapshot(self) -> None:
        self._snapshot_at = time.monotonic()
        self.send(self._state.snapshot())

    def _follow(self, worker: Any) -> None:
        with self._state.lock:
            known = worker in {view.name for view in self._state.view.workers.values()}
        self._followed = None
        if known and is_file_name(worker):
            self._followed = (worker, LogWindow(self._folder() / "logs" / f"{worker}.log"))
        self._send_log(fresh=True)

    def _send_log(self, fresh: bool = False) -> None:
        if self._followed is None:
            return
        worker, log = self._followed
        news = log.read()
        if news["text"] or fresh:
            self.send({"kind": "log", "worker": worker, **news})
