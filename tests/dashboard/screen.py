"""The contents of a terminal of a known size, and of an output that is none."""

from __future__ import annotations

import io
import re

from muster.dashboard.plain import PlainDashboard
from muster.dashboard.run import RunView
from muster.dashboard.screen import Screen
from muster.events import Event
from rich.console import Console


def painted(view: RunView, width: int = 120, height: int = 24) -> list[str]:
    """The lines that a view fills, without colours."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(Screen(view))
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capture.get()).splitlines()]


def lines(events: list[Event]) -> list[str]:
    """The lines that the dashboard of lines prints of events."""
    stream = io.StringIO()
    dashboard = PlainDashboard(stream)
    for event in events:
        dashboard(event)
    dashboard.close()
    return stream.getvalue().splitlines()
