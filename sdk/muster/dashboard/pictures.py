"""The view for notebooks that cannot load widgets: a static picture, replaced by a new one every second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.dashboard.base import Controls
from muster.dashboard.live import LiveState

NEED_WIDGETS = (
    "<code>pip install 'muster[notebook]'</code> in the kernel's environment, and <code>pip install anywidget</code> "
    "in the Jupyter server's where that is another, has runs live here, with logs and buttons."
)


class PictureView:
    """A live view that shows nothing itself: all there is to see are the dashboard's pictures, which need no widget."""

    cover = "muster-picture"  # no page puts a view over this class
    seconds_per_picture = 1.0
    remedy = NEED_WIDGETS

    def __init__(self, state: LiveState, folder: Callable[[], Path], controls: Controls) -> None:
        """Accept the arguments of the other live views."""

    def tick(self) -> None:
        """Do nothing."""

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return {}
