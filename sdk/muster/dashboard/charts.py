"""Charts of the metrics for an HTML page: SVG in the data URL of an image, which notebooks keep."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape

from muster.dashboard.curve import Curve
from muster.dashboard.run import RunView
from muster.dashboard.text import number

MAX_CHARTS = 4
WIDTH, HEIGHT = 396, 132
LEFT, RIGHT, TOP, BOTTOM = 58, 388, 24, 108  # edges of the area with the curves; texts stand outside
LETTER = 7  # the width of a digit beside the axis, at most
VARIANT = re.compile(r"(val|validation|test|eval|train)_(.+)")
COLOURS = {"train": "#1a73e8", "val": "#d2691e", "test": "#188038"}  # each stands out on white and on black
GREY = "#808080"

Points = Sequence[tuple[float, float]]


def charts(view: RunView) -> str:
    """Return a chart for each kind of metric with several values: loss with val_loss, accuracy with val_accuracy."""
    drawn = [chart(family, variants) for family, variants in _families(view) if _has_course(variants.values())]
    pictures = [f'<img alt="{escape(label)}" src="{_address(picture)}">' for label, picture in drawn[:MAX_CHARTS]]
    return f'<div style="margin:6px 0">{" ".join(pictures)}</div>' if pictures else ""


def chart(family: str, variants: dict[str, Points]) -> tuple[str, str]:
    """Return a chart's text alternative, and the chart: training solid, validation dashed, a lone value a dot."""
    values = [value for points in variants.values() for _, value in points if math.isfinite(value)] or [0.0]
    steps = [step for points in variants.values() for step, _ in points]
    low, high, first, last = min(values), max(values), min(steps), max(steps)
    bounds = _apart(high, low)
    left = max(LEFT, 8 + LETTER * max(map(len, bounds)))

    def position(point: tuple[float, float]) -> tuple[float, float]:
        x = left + (RIGHT - left) * (point[0] - first) / ((last - first) or 1)
        y = BOTTOM - 2 - (BOTTOM - TOP - 4) * (point[1] - low) / ((high - low) or 1)
        return x, y

    newest = [f"{variant} {number(points[-1][1])}" for variant, points in variants.items()]
    label = f"{family}: {', '.join(newest)}"
    axes = f'<path d="M{left} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="{GREY}" stroke-opacity=".6"/>'
    texts = [
        _text(left - 6, TOP + 8, bounds[0], "end") if high > low else "",
        _text(left - 6, BOTTOM, bounds[1], "end"),
        _text(left, BOTTOM + 16, f"{first:.0f}"),
        _text(RIGHT, BOTTOM + 16, f"{last:.0f}", "end"),
    ]
    lines = [_line(variant, points, position) for variant, points in variants.items()]
    content = "".join([_caption(family, variants), axes, *texts, *lines])
    return label, (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui,sans-serif">{content}</svg>'
    )


def _apart(high: float, low: float) -> list[str]:
    """Return both bounds of an axis, in as few digits as tell them apart, at least 3 and at most 6."""
    written = [[number(high, digits), number(low, digits)] for digits in range(3, 7)]
    return next((both for both in written if both[0] != both[1]), written[0])


def _families(view: RunView) -> list[tuple[str, dict[str, Points]]]:
    families: dict[str, dict[str, Points]] = {}
    for name, curve in view.curves.items():
        match = VARIANT.fullmatch(name)
        variant, family = match.groups() if match else ("train", name)
        families.setdefault(family, {})[variant] = _points(curve, view.started or 0.0)
    return sorted(families.items(), key=lambda item: (item[0] != "loss", "acc" not in item[0]))


def _points(curve: Curve, started: float) -> Points:
    """Return the points of a curve: by step, or by second where the script counts no steps."""
    return [(point.time - started if point.step is None else point.step, point.value) for point in curve.points]


def _has_course(curves: Iterable[Points]) -> bool:
    return any(len(points) > 1 for points in curves)


def _caption(family: str, variants: dict[str, Points]) -> str:
    """Return the caption of a chart: the metric's name, cut to leave room for the newest values, and these values."""
    newest = {variant: number(points[-1][1], 3) for variant, points in variants.items()}
    if len(variants) > 1:
        newest = {variant: f"{variant} {value}" for variant, value in newest.items()}
    room = WIDTH - 2 - sum(28 + 6.5 * len(words) for words in newest.values())
    most = max(int(room / 8), 4)
    name = family if len(family) <= most else f"{family[: most - 1]}…"
    left = min(LEFT, room - 8 * len(name))
    keys = [
        f'<tspan dx="10" fill="{COLOURS[_kind(variant)]}" font-weight="bold">{_key(variant, points)}</tspan>'
        f'<tspan dx="4" font-weight="normal" font-size="12">{escape(newest[variant])}</tspan>'
        for variant, points in variants.items()
    ]
    return (
        f'<text x="{max(left, 2):g}" y="14" font-size="13" font-weight="bold" fill="{GREY}">'
        f"<tspan>{escape(name)}</tspan>{''.join(keys)}</text>"
    )


def _key(variant: str, points: Points) -> str:
    """Return the key of a curve as text, so that the caption flows however wide the letters are."""
    return "●" if len(points) == 1 else "- -" if _kind(variant) == "val" else "—"


def _line(variant: str, points: Points, position: Callable[[tuple[float, float]], tuple[float, float]]) -> str:
    """Return a curve, with a gap where a value is not finite; a dot if there is only one finite value."""
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) == 1:
        return _dot(variant, *position(finite[0]))
    path, pen = [], "M"
    for point in points:
        if math.isfinite(point[1]):
            x, y = position(point)
            path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L" if math.isfinite(point[1]) else "M"
    return f'<path d="{"".join(path)}" {_stroke(variant)}/>'


def _dot(variant: str, x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{COLOURS[_kind(variant)]}"/>'


def _stroke(variant: str) -> str:
    dashes = ' stroke-dasharray="5 4"' if _kind(variant) == "val" else ""
    return f'fill="none" stroke="{COLOURS[_kind(variant)]}" stroke-width="1.7" stroke-linejoin="round"{dashes}'


def _kind(variant: str) -> str:
    if variant == "train":
        return "train"
    return "val" if variant.startswith("val") else "test"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="11" text-anchor="{anchor}" fill="{GREY}">{escape(text)}</text>'


def _address(picture: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(picture.encode()).decode()
