"""Words, numbers and signs that all dashboards share."""

from __future__ import annotations

import math
from collections.abc import Sequence

GLYPHS = {  # a status is always shown as glyph, word and colour, so that nobody depends on the colour
    "scheduling": "○",
    "starting": "◔",
    "running": "●",
    "stopping": "◑",
    "succeeded": "✓",
    "failed": "✗",
    "stopped": "■",
    "ended": "✓",
    "timedout": "✗",
    "lost": "?",
}
COLOURS = {
    "scheduling": "bright_black",
    "starting": "yellow",
    "running": "cyan",
    "stopping": "yellow",
    "succeeded": "green",
    "failed": "red",
    "stopped": "bright_black",
    "ended": "bright_black",
    "timedout": "red",
    "lost": "magenta",
}
UNITS = ("B", "kB", "MB", "GB", "TB")
BLOCKS = "▁▂▃▄▅▆▇█"


def first_line(text: str) -> str:
    """Return the text before the first line end.

    >>> first_line("ValueError: no data\\nmore"), first_line("")
    ('ValueError: no data', '')
    """
    return text.partition("\n")[0]


def size(count: float | None, limit: float | None = None) -> str:
    """Return a number of bytes in GB (10**9), with its limit if there is one.

    >>> size(612_000_000), size(612_000_000, 2e9), size(None)
    ('0.61 GB', '0.61/2 GB', '')
    """
    if count is None:
        return ""
    return f"{count / 1e9:.2f}/{limit / 1e9:g} GB" if limit else f"{count / 1e9:.2f} GB"


def volume(count: float | None) -> str:
    """Return a number of bytes in the unit that suits it.

    >>> volume(87), volume(9_360), volume(3_200_000_000), volume(None)
    ('87 B', '9.4 kB', '3.2 GB', '')
    """
    if count is None:
        return ""
    power = 0
    while count >= 1000 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.1f} {UNITS[power]}" if power else f"{count:.0f} B"


def rate(per_second: float | None) -> str:
    """Return examples per second in short form.

    >>> rate(87.6), rate(12_345), rate(None)
    ('88', '12.3k', '')
    """
    if per_second is None:
        return ""
    return f"{per_second / 1000:.1f}k" if per_second >= 10_000 else f"{per_second:.0f}"


def number(value: float, digits: int = 4) -> str:
    """Return a metric's value with ``digits`` significant digits, or without decimals from a thousand on.

    >>> number(0.98765), number(1234.5), number(float("nan")), number(0.98765, 3), number(1234.5, 3)
    ('0.9877', '1234', 'nan', '0.988', '1234')
    """
    return f"{value:.0f}" if abs(value) >= 1000 and math.isfinite(value) else f"{value:.{digits}g}"


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Return a line of at most ``width`` characters that shows the course of ``values``; not finite ones leave gaps.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
    '▁▂▃▄▅▆▇█'
    >>> sparkline([1, float("nan"), 1])
    '▁ ▁'
    """
    if len(values) > width:
        values = [values[index * (len(values) - 1) // (width - 1)] for index in range(width)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite) / 2, max(finite) / 2 - min(finite) / 2  # halves: the full span may overflow a float
    steps = [(value / 2 - low) / span if span and math.isfinite(value) else 0.0 for value in values]
    return "".join(
        BLOCKS[round(step * (len(BLOCKS) - 1))] if math.isfinite(value) else " "
        for value, step in zip(values, steps, strict=True)
    )
