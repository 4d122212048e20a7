"""The live view of a run in a notebook: a widget that sends diffs a few times a second, and answers the browser.

Messages to the browser are a ``snapshot``, a ``diff``, or a ``beat`` if there is nothing new, so that the page notices
when the session is gone; and answers to its requests: for a ``snapshot``, the end of a worker's ``log`` and the lines
that are ``older``, to ``stop`` the run, for the ``stacks`` of all ranks and for a ``tensorboard``. Requests arrive on
whatever thread the kernel reads them.

A page handles the messages of all runs of a notebook in turn. One that is sent more than it can handle would show each
run later and later, so it asks for some seconds of ``quiet`` of all runs when a message has waited long.
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
from muster.dashboard.frontend import is_jupyter, when_cell_ends
from muster.dashboard.live import LiveState
from muster.dashboard.logwindow import LogWindow
from muster.dashboard.pictures import NEED_WIDGETS
from muster.dashboard.tensorboard import RunBoard
from muster.errors import MusterError
from muster.text.cleaning import is_file_name

SECONDS_PER_BEAT = 0.5  # a page that hears nothing for two seconds says so
SECONDS_PER_PICTURE = (1.0, 5.0)  # of the picture below the live view, at the beginning of the run and later
SECONDS_PER_BUNDLE = (10.0, 60.0)  # the same for a picture displayed with the view, which each new one starts anew
MOST_SECONDS_OF_QUIET = 10.0  # that a page gets at once
SECONDS_PER_SNAPSHOT = 2.0  # until a request of the browser has been heard
BASIC = (
    "<code>MUSTER_DASHBOARD=basic</code> in the kernel's environment has a simpler view, for pages that show none here."
)

BLOCKED = "A page that is loaded again while a cell runs shows this; with <code>wait=False</code> it is live again."


class RunWidget(anywidget.AnyWidget):
    """A widget that shows a ``LiveState``. Its owner calls ``tick`` when there may be changes.

    Args:
        state: the state to show.
        folder: returns the run's folder.
        controls: the actions that the page offers on the run.

    Attributes:
        own_id: the model's id, by which its page finds it.
        cover: CSS class of the elements over which every page that knows this widget puts a live view. Empty if the
            widget has to be displayed itself, though no notebook saves it.
    """

    _esm = web.script()
    _css = web.style()
    can_stop = traitlets.Bool(False).tag(sync=True)
    can_say_stacks = traitlets.Bool(False).tag(sync=True)
    is_own = traitlets.Bool(False).tag(sync=True)
    is_live = traitlets.Bool(True).tag(sync=True)
    has_tensorboard = traitlets.Bool(False).tag(sync=True)
    _quiet_until = float("-inf")  # of all runs, which a page has one queue for
    own_id = traitlets.Unicode("").tag(sync=True)
    cover = traitlets.Unicode("").tag(sync=True)

    def __init__(self, state: LiveState, folder: Callable[[], Path], controls: Controls) -> None:
        own_id = secrets.token_hex(16)
        super().__init__(
            model_id=own_id,
            own_id=own_id,
            can_stop=controls.stop is not None,
            can_say_stacks=controls.stacks is not None,
            is_own=controls.is_own,
            cover=f"muster-live-{own_id}" if is_jupyter() else "",
        )
        self._state, self._folder, self._controls = state, folder, controls
        self._board = RunBoard(folder)
        self._is_in_cell = True
        when_cell_ends(self._leave_cell)
        self._sending = threading.Lock()
        self._heard = False
        self._snapshot_at = float("-inf")
        self._told_at = float("-inf")
        self._followed: tuple[str, LogWindow] | None = None
        self.on_msg(self._answer)
        let_clicks_through(self.comm)

    @property
    def seconds_per_picture(self) -> float:
        """Seconds between two static pictures, few until a page has reported that it shows the live view.

        In an editor, which displays the view together with the picture, each picture would restart the view. So there
        are few pictures at first, for pages that show no widget, and none once the editor has reported.
        """
        if self._is_quiet:
            return math.inf
        if not self.cover:
            return math.inf if self._heard else self._pause(*SECONDS_PER_BUNDLE)
        return self._pause(*SECONDS_PER_PICTURE) if self._heard else SECONDS_PER_PICTURE[0]

    def _pause(self, least: float, most: float) -> float:
        """Return a tenth of the seconds that the run has taken, within bounds."""
        return min(max(least, self._state.view.elapsed / 10), most)

    @property
    def _is_quiet(self) -> bool:
        return time.monotonic() < self._quiet_until and self._state.view.ended is None

    @property
    def remedy(self) -> str:
        """HTML that says how to get the live view here, or to keep it when the page is loaded again."""
        if not self._heard:
            return NEED_WIDGETS if self.cover else BASIC
        is_waited_for = self._is_in_cell and self._controls.is_own
        return BLOCKED if self.cover and is_waited_for else ""

    def _leave_cell(self) -> None:
        self._is_in_cell = False

    def tick(self) -> None:
        """Send the changes; without any a beat, now and then; and nothing while a page has asked for quiet.

        Until the first request of a browser is heard, snapshots are sent without one: a kernel that is busy with a cell
        may not hear it, and the browser waits for its snapshot.
        """
        with self._sending:
            if self._is_quiet:
                return
            diff = self._state.take_diff()
            now = time.monotonic()
            if not self._heard and now - self._snapshot_at >= SECONDS_PER_SNAPSHOT:
                self._send_snapshot()  # also without changes: a view may have been opened since
            elif diff:
                self._send_at(now, diff)
            elif now - self._told_at >= SECONDS_PER_BEAT and self._state.view.ended is None:
                self._send_at(now, {"kind": "beat", "number": self._state.number})
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
        elif ask == "quiet" and isinstance(message.get("seconds"), (int, float)):
            RunWidget._quiet_until = time.monotonic() + min(message["seconds"], MOST_SECONDS_OF_QUIET)
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
        """Call ``act`` on a new thread and send its result: requests arrive on threads that must not be blocked."""

        def answer() -> None:
            try:
                self.send({"kind": kind, "said": act() if act else None})
            except (MusterError, OSError, TimeoutError) as error:
                self.send({"kind": kind, "error": str(error) or "there is no answer"})

        threading.Thread(target=answer, name="muster-answer", daemon=True).start()

    def _send_snapshot(self) -> None:
        self._snapshot_at = time.monotonic()
        self._send_at(self._snapshot_at, {**self._state.snapshot(), "unasked": not self._heard})

    def _send_at(self, now: float, message: dict[str, Any]) -> None:
        """Send a message with its time, by which a page finds out how long it has waited."""
        self.send({**message, "sent": now})

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
