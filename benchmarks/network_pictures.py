"""Draw pictures of the network benchmarks from results.json: python -m benchmarks --keep

Writes PNG files to docs/pictures/: how long a step takes with each communication scheme on each link, with the accuracy
that it reaches; and examples per second with ring allreduce and with parameter servers, by number of workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks import network_schemes, network_servers
from benchmarks.measuring import FOLDER, KEPT

PICTURES = FOLDER.parent / "docs" / "pictures"
COLOURS = ("#1a73e8", "#d2691e", "#188038")
Figures = Mapping[str, Mapping[str, Any]]


def draw_all() -> None:
    """Draw a picture of each network benchmark that has results."""
    kept = {result["benchmark"]: result for result in json.loads(KEPT.read_text())}
    drawn: dict[str, Callable[[Figures, Path], None]] = {"network_schemes": schemes, "network_servers": servers}
    for name, draw in drawn.items():
        if name in kept:
            path = PICTURES / f"{name.replace('_', '-')}.png"
            draw({figure["what"]: figure for figure in kept[name]["figures"]}, path)
            print(path.relative_to(FOLDER.parent))


def schemes(figures: Figures, path: Path) -> None:
    """Draw step times, on a logarithmic scale, beside accuracies."""
    rates = [title for title in network_schemes.RATES if network_schemes.step_title(title, "dense") in figures]
    names = [name for name in network_schemes.SCHEMES if network_schemes.step_title(rates[0], name) in figures][::-1]
    picture, (times, accuracies) = pyplot.subplots(
        1, 2, sharey=True, figsize=(10, 0.35 * len(names) + 1.5), width_ratios=(3, 1), layout="constrained"
    )
    for title, colour in zip(rates, COLOURS, strict=False):
        medians, spreads = of([figures[network_schemes.step_title(title, name)] for name in names])
        times.errorbar(medians, range(len(names)), xerr=spreads, fmt="o", color=colour, label=title, capsize=3)
    times.set_xscale("log")
    times.set_xlabel("milliseconds a step, two workers, 4.2 million parameters")
    times.set_yticks(range(len(names)), names)
    times.legend(title="link")
    medians, spreads = of([figures[network_schemes.accuracy_title(name)] for name in names])
    accuracies.errorbar(medians, range(len(names)), xerr=spreads, fmt="o", color="#808080", capsize=3)
    accuracies.set_xlabel("accuracy on digits, %")
    finish(picture, (times, accuracies), path)


def servers(figures: Figures, path: Path) -> None:
    """Draw examples per second over the number of workers, by ring allreduce and with parameter servers."""
    counts = [count for count in network_servers.WORKERS if f"{count} workers, ring allreduce" in figures]
    picture, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for way, colour in zip(
        ("ring allreduce", *map(network_servers.title, network_servers.SERVERS)), COLOURS, strict=True
    ):
        medians, spreads = of([figures[f"{count} workers, {way}"] for count in counts])
        axes.errorbar(counts, medians, spreads, marker="o", color=colour, label=way, capsize=3)
    axes.set_xticks(counts)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("workers, each on a link of 100 Mbit/s")
    axes.set_ylabel("examples a second, one million parameters")
    axes.legend()
    finish(picture, (axes,), path)


def of(measured: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[list[float]]]:
    """Return the medians, and how far the quartiles are below and above them."""
    spreads = [[abs(figure["quartiles"][side] - figure["median"]) for figure in measured] for side in (0, 1)]
    return [figure["median"] for figure in measured], spreads


def finish(picture: Any, every: tuple[Axes, ...], path: Path) -> None:
    """Style the axes of a picture, and save it."""
    for axes in every:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    picture.savefig(path, dpi=120)
    pyplot.close(picture)
