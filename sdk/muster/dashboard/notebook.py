"""The dashboard below a notebook's cell: live while the run is under way, and a static picture of its end from then on.

Notebooks save no widgets. So a static picture is displayed from the beginning, and replaced by a new one now and then.
The page puts the live view over the picture if it can. Elsewhere the view itself is displayed together with the
picture, and only the picture is saved.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from muster.dashboard import snapshot
from muster.dashboard.base import Controls
from muster.dashboard.baseline import rate_of_one_worker
from muster.dashboard.live import LiveState
from muster.dashboard.tensorboard import hint
from muster.dashboard.ticker import Ticker
from muster.events import Event, EventKind
from muster.records.runs import Run

WIDGET = "application/vnd.jupyter.widget-view+json"


class LiveView(Protocol):
    """Protocol of live views: IPython can display them, and they show a ``LiveState`` at each tick.

    ``cover`` is the CSS class of the elements over which a page puts the view, or empty if the view has to be displayed
    itself. A new static picture is made after ``seconds_per_picture``, or earlier if something happens that a saved
    notebook should show. It includes ``remedy``, HTML that says how to get the view on a page that does not show it.
    """

    @property
    def cover(self) -> str: ...  # noqa: D102

    @property
    def seconds_per_picture(self) -> float: ...  # noqa: D102

    @property
    def remedy(self) -> str: ...  # noqa: D102

    def _repr_mimebundle_(self, **options: Any) -> Any: ...

    def tick(self) -> None:
        """Show the changes, if there are any."""
        ...


MakeView = Callable[[LiveState, Callable[[], Path], Controls], LiveView]


class NotebookDashboard:
    """Shows a run below every cell that displays the dashboard.

    Args:
        make_view: returns the live view, given the state, ``folder`` and ``controls``.
        folder: returns the run's folder.
        controls: the actions that the view offers on the run.
    """

    def __init__(
        self,
        make_view: MakeView,
        folder: Callable[[], Path],
        controls: Controls,
    ) -> None:
        self.state = LiveState()
        self._folder = folder
        self._live = make_view(self.state, folder, controls)
        self._ticker = Ticker(self._tick, self._finish)
        self._compared = False
        self._pictured: tuple[tuple[str, ...], float] = ((), float("-inf"))
        self._handles: list[Any] = []
        self._cell = -1
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Take one event into account, and show it with the next tick."""
        self.state(event)
        if event.kind == EventKind.RUN_ENDED:
            self.close()

    def show(self) -> None:
        """Display the dashboard below the cell that runs, once for each cell."""
        from IPython import get_ipython
        from IPython.display import display

        cell = getattr(get_ipython(), "execution_count", -1)
        with self._lock:
            if self._cell == cell != -1:
                return  # such as in a cell that starts a cluster and has it as its last line, too
            self._cell = cell
            if self._closed:
                display(self._static(), raw=True)
                return
            self._handles.append(display(self._bundle(), raw=True, display_id=True))
        self._ticker.start()

    def close(self) -> None:
        """Put the static picture where the live view was, and show no further events. Idempotent."""
        with self._lock:
            self._closed = True
        self._ticker.close()

    def _finish(self) -> None:
        self._add_hint()
        self._take_picture()
        self._live.tick()  # for a page that has been loaded again, which still shows the live view

    def _tick(self) -> None:
        if not self._compared and self.state.view.job:
            self._compared = True  # on this thread rather than on that of the event, since many files are read
            self.state.view.single_rate = rate_of_one_worker(self.state.view.job)
        self._live.tick()
        view, now = self.state.view, time.monotonic()
        remedy = self._live.remedy if self._live.cover else ""  # another once a page has shown the view
        stage = (view.run_id, view.phase, view.status, view.exception, remedy)
        if stage != self._pictured[0] or now - self._pictured[1] >= self._live.seconds_per_picture:
            self._pictured = (stage, now)
            self._take_picture()

    def _take_picture(self) -> None:
        bundle = self._bundle() if self._handles else {}
        for handle in self._handles:
            handle.update(bundle, raw=True)

    def _add_hint(self) -> None:
        """Add a note that says how to open TensorBoard, since the picture that stays has no buttons."""
        with self.state.lock:
            text = hint(self._folder()) if self.state.view.run_id else ""
            if text:
                self.state.view.notes.append(text)

    def _bundle(self) -> dict[str, Any]:
        """Return the MIME bundle of the picture, and of the view, too, if that has to be displayed itself."""
        if self._closed or self._live.cover:
            return self._static()
        found = self._live._repr_mimebundle_()
        data = found[0] if isinstance(found, tuple) else found  # a tuple has metadata, too
        return {**self._static(), WIDGET: data[WIDGET]}

    def _static(self) -> dict[str, str]:
        with self.state.lock:
            view = self.state.view
            run = Run(self._folder()) if view.run_id else None
            live = self._live
            return snapshot.mime_bundle(view, run, cover="" if self._closed else live.cover, remedy=live.remedy)
