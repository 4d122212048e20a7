"""Times as the APIs of platforms write them."""

from __future__ import annotations

import re
from datetime import datetime

FRACTION = re.compile(r"\.[0-9]+")  # of a second: with nanoseconds it has more digits than Python 3.10 reads


def timestamp(text: object) -> float | None:
    """Return an ISO 8601 time in seconds since the epoch; None for anything else, and for Go's zero time (the year 1).

    >>> timestamp("2026-01-02T03:04:05.250000000Z"), timestamp("2026-01-02T04:04:05+01:00")
    (1767323045.25, 1767323045.0)
    >>> timestamp("0001-01-01T00:00:00Z"), timestamp("soon"), timestamp(None)
    (None, None, None)
    """
    found = FRACTION.search(str(text))
    try:
        at = datetime.fromisoformat(FRACTION.sub("", str(text), count=1).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
    return at + float(found[0] if found else 0) if at > 0 else None
