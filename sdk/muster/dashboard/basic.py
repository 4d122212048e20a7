"""The live view where anywidget cannot be loaded: the static picture, repainted, and a stop button."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets

from muster.dashboard import snapshot
from muster.dashboard.base import Controls
from muster.dashboard.clicks import let_clicks_through
from muster.dashboard.live import LiveState

SECONDS_PER_PICTURE = 1.0  # if nothing changes but the elapsed time
SECONDS_PER_BUNDLE = 5.0  # of the picture beside the widget, for pages that can show no widget


class BasicView:
    """A live view that shows a ``LiveState`` with the widgets of ipywidgets alone."""

    cover = remedy = ""
    seconds_per_picture = SECONDS_PER_BUNDLE

    def __init__(self, state: LiveState, folder: Callable[[], Path], controls: Controls) -> None:
        stop = controls.stop
        self._state = state
        self._picture = ipywidgets.HTML()
        self._button = ipywidgets.Button(description="Stop", button_style="danger")
        self._box = ipywidgets.VBox([self._picture, *([self._button] if stop else [])])
        self._version, self._painted_at = -1, float("-inf")
        if stop:
            self._button.on_click(lambda _: stop())
            let_clicks_through(self._button.comm)

    def tick(self) -> None:
        """Paint the picture again if it has changed."""
        with self._state.lock:
            view, now = self._state.view, time.monotonic()
            if view.version == self._version and now - self._painted_at < SECONDS_PER_PICTURE:
                return
            self._version, self._painted_at = view.version, now
            picture, ended = snapshot.to_html(view), view.ended is not None
        self._picture.value = picture
        self._button.disabled = ended

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self._box._repr_mimebundle_(**options)
