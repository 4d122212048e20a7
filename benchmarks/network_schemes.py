"""Measure communication schemes between two hosts, on links of 100 Mbit/s, 1 Gbit/s and without a limit.

Every rank has a host of its own (``network.py``). Step times are measured with a model that mostly sends when the link
is slow. Accuracies are those of a small network that learns handwritten digits with three seeds, each tested on a
different third of the digits. Baseline of both: dense, which is plain Horovod, in turn within the same run.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measuring import Figure, Target, main
from benchmarks.network import Network, network

TITLE = "Milliseconds of a step and accuracy on digits, by communication scheme and link"
RATES = {"100 Mbit/s": "100mbit", "1 Gbit/s": "1gbit", "no limit": None}
RANKS = 2
LAYERS = 8  # four million parameters
SCRIPT = Path(__file__).parent / "network_ranks.py"
WIDTH = 724  # half a million parameters a layer
BATCH_SIZE = 8  # so few examples that sending takes far longer than computing
DIGITS_BATCH_SIZE = 32
PERIOD = 8  # steps between two exchanges of the schemes that do not send in every step
PERIODIC = ("partial, 8 chunks", "averaging every 8 steps", "block momentum, 8 steps")

# Each scheme is made from muster.training.communication, which only the ranks import, and a name for its collectives.
SCHEMES: Mapping[str, Callable[[Any, str], Any]] = {
    "dense": lambda c, name: c.Dense(name=name),
    "fp16": lambda c, name: c.Reducer(c.FP16(), name=name),
    "8-bit": lambda c, name: c.Reducer(c.KBit(8), name=name),
    "4-bit": lambda c, name: c.Reducer(c.KBit(4), name=name),
    "1-bit": lambda c, name: c.Reducer(c.OneBit(), name=name),
    "top-K 10 %": lambda c, name: c.Reducer(c.TopK(0.1), name=name),
    "top-K 1 %": lambda c, name: c.Reducer(c.TopK(0.01), name=name),
    "partial, 8 chunks": lambda c, name: c.PartialSynchronisation(PERIOD, name=name),
    "averaging every 8 steps": lambda c, name: c.ModelAveraging(PERIOD, name=name),
    "block momentum, 8 steps": lambda c, name: c.BlockMomentum(
        PERIOD * DIGITS_BATCH_SIZE * RANKS, DIGITS_BATCH_SIZE, name=name
    ),
}
DENSE = "dense"
PROMISED = ("top-K 1 %", "1-bit")
# Horovod's ranks exchange control messages a thousand times a second, 0.3 MB/s; 50 times where bytes are counted.
RARE_CONTROL = {"HOROVOD_CYCLE_TIME": "20"}  # milliseconds
SPEED_UP, POINTS_LOST, OVERHEAD = 8, 0.3, 1.08  # bounds for the schemes of PROMISED


def measure(quick: bool) -> list[Figure]:
    """Measure step times at each rate, then bytes, then accuracies."""
    schemes = [DENSE, *PROMISED] if quick else [*SCHEMES]
    figures = []
    with network(RANKS) as hosts:
        for title, rate in RATES.items():
            if quick and title != "100 Mbit/s":
                continue
            hosts.limit(rate)
            taken = on_ranks(hosts, "time", LAYERS, *((2, 2) if quick else (5, 2)), *schemes)
            figures += [step(title, name, taken) for name in schemes]
        hosts.limit("1gbit")
        sent = on_ranks(hosts, "time", LAYERS, 2, 4, *schemes, variables=RARE_CONTROL)
        figures += [counted(name, sent[name]) for name in schemes]
        hosts.limit(None)
        learned = on_ranks(hosts, "learn", *((1, 2) if quick else (3, 40)), *schemes)
    for name in schemes:
        figures += accuracy(name, learned)
    return figures


def on_ranks(
    hosts: Network, *arguments: object, variables: Mapping[str, str] | None = None
) -> dict[str, list[dict[str, float]]]:
    """Return the script's measurements with these arguments, by scheme."""
    what, *rest = map(str, arguments)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "measured.json"
        command = [sys.executable, str(SCRIPT), what, str(out), *rest]
        hosts.wait(hosts.start_ranks(RANKS, command, Path(name), variables))
        hosts.stop()
        taken: dict[str, list[dict[str, float]]] = json.loads(out.read_text())
        return taken


def step(title: str, name: str, taken: dict[str, list[dict[str, float]]]) -> Figure:
    """Return the figure of the milliseconds of a step by a scheme."""
    values, floor = ([turn["seconds"] * 1000 for turn in taken[scheme]] for scheme in (name, DENSE))
    if name == DENSE:
        return Figure(step_title(title, name), "ms", values)
    is_promised = name in PROMISED and title == "100 Mbit/s"
    return Figure(step_title(title, name), "ms", values, DENSE, floor, Target(1 / SPEED_UP) if is_promised else None)


def step_title(title: str, name: str) -> str:
    """Return the title of the figure of a step."""
    return f"{title}: a step, {name}"


def counted(name: str, turns: list[dict[str, float]]) -> Figure:
    """Compare the bytes that a rank says it sends in a step with those its host's network interface counts."""
    by_rank, by_interface = ([turn[key] / 1e6 for turn in turns] for key in ("bytes", "counted"))
    target = Target(OVERHEAD) if name in (DENSE, *PROMISED) else None
    return Figure(f"bytes on the wire in a step, {name}", "MB", by_interface, "by `bytes_sent`", by_rank, target)


def accuracy(name: str, learned: dict[str, list[dict[str, float]]]) -> list[Figure]:
    """Return figures of a scheme's accuracy with each seed, and of what it loses on average."""
    values, floor = ([100 * seed["accuracy"] for seed in learned[scheme]] for scheme in (name, DENSE))
    if name == DENSE:
        return [Figure(accuracy_title(name), "%", values)]
    lost = statistics.mean(floor) - statistics.mean(values)
    target = Target(POINTS_LOST, "points") if name in PROMISED else None
    return [
        Figure(accuracy_title(name), "%", values, DENSE, floor),
        Figure(f"lost on average by {name}", "points", [lost], target=target),
    ]


def accuracy_title(name: str) -> str:
    """Return the title of the figure of an accuracy."""
    return f"digits: accuracy, {name}"


def summary(result: dict[str, Any]) -> str:
    """Return the table of the figures in docs/figures.md, a row for each scheme."""
    figures = {figure["what"]: figure for figure in result["figures"]}
    rates = [title for title in RATES if step_title(title, DENSE) in figures]
    heads = ["scheme", "MB a step", *(f"ms a step, {title}" for title in rates), "accuracy, %"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for name in SCHEMES:
        if step_title(rates[0], name) in figures:
            cells = [name, f"{figures[f'bytes on the wire in a step, {name}']['median']:.3g}"]
            for title in rates:
                cells.append(with_gain(figures[step_title(title, name)]))
            accuracy = figures[accuracy_title(name)]
            cells.append("{:.1f} ({:.1f} to {:.1f})".format(accuracy["median"], *accuracy["quartiles"]))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_gain(figure: dict[str, Any]) -> str:
    """Return the milliseconds of a figure, and how many times faster than dense that is, as text."""
    gain = f" ({1 / figure['ratio']['median']:.2g} ×)" if figure["ratio"] else ""
    return f"{figure['median']:,.{1 if figure['median'] < 100 else 0}f}{gain}"


if __name__ == "__main__":
    main("network_schemes")
