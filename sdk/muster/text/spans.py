"""Time spans as users write them, such as ``1h30m``."""

from __future__ import annotations

import re

UNITS = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(d|h|min|m|s|$)")


def seconds_of(text: str) -> float | None:
    """Return the time span in a text, in seconds; None if it has none.

    >>> seconds_of("1h30m"), seconds_of("600"), seconds_of("soon")
    (5400.0, 600.0, None)
    """
    rest, found = text.strip().lower(), 0.0
    while match := PART.match(rest):
        found, rest = found + float(match[1]) * UNITS[match[2] or "s"], rest[match.end() :]
    return None if rest or not text.strip() else found
