"""The view of a notebook that can load no widget: its static picture, taken again every second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from muster.dashboard import snapshot
from muster.dashboard.base import Controls
from muster.dashboard.live import LiveState


class PictureView:
    """A live view that shows nothing by itself: the pictures below it, which need no widget, are all there is."""

    cover = snapshot.NO_WIDGET
    seconds_per_picture = 1.0

    def __init__(self, state: LiveState, folder: Callable[[], Path], controls: Controls) -> None:
        """Take what other views take."""

    def tick(self) -> None:
        """Do nothing."""
