"""The history of one metric, of bounded size however long the run."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple

CURVE_POINTS = 600  # points that a curve keeps at most


class Point(NamedTuple):
    """One value of a metric: when it was reported, at which step (counted over all epochs, if known), and the value."""

    time: float
    step: float | None
    value: float


class Curve:
    """The history of one metric, thinned out evenly at more than ``limit`` points. The newest point always stays.

    It follows one source, the one with the lowest key, as the alternating values of several ranks would only zigzag. If
    the steps go back, as when training resumes from a checkpoint, new points replace those of the same steps.
    """

    def __init__(self, limit: int = CURVE_POINTS) -> None:
        self.limit = limit
        self.last: Point | None = None
        self._source: tuple[Any, ...] | None = None
        self._kept: list[Point] = []
        self._stride = 1
        self._count = 0
        self._sources = 0

    @property
    def mark(self) -> tuple[int, int]:
        """A mark for ``since``: how often the curve has begun anew, and how many points were added since."""
        return self._sources, self._count

    @property
    def points(self) -> list[Point]:
        """The points that are kept, oldest first."""
        if self.last is None or (self._kept and self._kept[-1] is self.last):
            return list(self._kept)
        return [*self._kept, self.last]

    def since(self, seen: tuple[int, int]) -> list[Point]:
        """Return the kept points that were added after a mark of the same source, oldest first."""
        first = -(-seen[1] // self._stride)  # points[i] was the i * stride-th to be added
        points = self._kept[first:]
        if self.last is not None and seen[1] < self._count and not (points and points[-1] is self.last):
            points.append(self.last)
        return points

    def add(self, source: tuple[Any, ...], point: Point) -> bool:
        """Append a point unless it is from another source than the curve follows; return whether it was appended."""
        if self._source is None or source < self._source:
            self._source, self._kept, self._stride, self._count = source, [], 1, 0
            self._sources += 1
        elif source != self._source:
            return False
        elif self.last is not None and _is_before(point, self.last):
            kept = bisect_left(self._kept, True, key=lambda earlier: not _is_before(earlier, point))
            self._kept, self._count = self._kept[:kept], kept * self._stride
            self._sources += 1
        self.last = point
        if self._count % self._stride == 0:
            self._kept.append(point)
        self._count += 1
        if len(self._kept) >= self.limit:
            self._kept = self._kept[::2]
            self._stride *= 2
        return True


def _is_before(point: Point, other: Point) -> bool:
    return point.step is not None and other.step is not None and point.step < other.step
