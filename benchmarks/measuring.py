"""Functions that all benchmarks share: they measure in turns, compute medians and quartiles, and keep results."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")

FOLDER = Path(__file__).parent
HERE = FOLDER.parent
BESIDE = "MUSTER_BENCHMARK_BESIDE"  # the folder of another checkout
RESULTS = FOLDER / "results"  # results measured here, a file for each benchmark
KEPT = FOLDER / "results.json"  # the results that docs/figures.md shows
PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "horovod", "distributed", "ipyparallel")


class Unavailable(Exception):
    """A benchmark cannot be run on this machine, or by this user."""


@dataclass(frozen=True)
class Target:
    """A bound on the ratio to the floor if the unit is ``×``, or else on the figure itself."""

    limit: float
    unit: str = "×"
    at_least: bool = False

    def is_met_by(self, value: float) -> bool:
        """Return whether a median is within the bound."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}".strip()


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        what: name of the figure.
        unit: unit of the values, such as ``s`` or ``steps/s``.
        values: one for each turn.
        floor: name of what was measured beside it.
        floor_values: one for each turn; the turn's value is divided by it.
        target: bound that the figure should keep.
    """

    what: str
    unit: str
    values: Sequence[float]
    floor: str = ""
    floor_values: Sequence[float] = ()
    target: Target | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as plain data."""
        comparable = self.floor_values and all(self.floor_values)
        pairs = zip(self.values, self.floor_values, strict=True) if comparable else ()
        ratios = [value / floor for value, floor in pairs]
        compared = ratios if self.target and self.target.unit == "×" else self.values
        return {
            "what": self.what,
            "unit": self.unit,
            **spread(self.values),
            "floor": {"what": self.floor, **spread(self.floor_values)} if self.floor else None,
            "ratio": spread(ratios) if ratios else None,
            "target": str(self.target) if self.target else None,
            "met": self.target.is_met_by(statistics.median(compared)) if self.target else None,
        }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the median and quartiles of some values, with the values themselves."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return {
        "median": significant(median),
        "quartiles": [significant(low), significant(high)],
        "values": [significant(value) for value in values],
    }


def significant(value: float) -> float:
    """Return the value with four significant digits: no measurement here is more precise than that."""
    return float(f"{value:.4g}")


def by_turns(rounds: int, contenders: Mapping[K, Callable[[], T]]) -> dict[K, list[T]]:
    """Call each contender once a round, every second round in reverse order, and return each one's results."""
    found: dict[K, list[T]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in [*contenders] if number % 2 == 0 else [*reversed([*contenders])]:
            found[name].append(contenders[name]())
    return found


def fresh(function: Callable[..., T], *args: Any) -> T:
    """Call ``function(*args)`` in a new interpreter, in which only its module's imports have been made."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def other_checkout() -> Path | None:
    """Return the folder of another checkout of Muster that is to be measured as well, if any."""
    return Path(os.environ[BESIDE]) if os.environ.get(BESIDE) else None


def commit_of(checkout: Path) -> str:
    """Return the short hash of the commit that is checked out in a folder."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def environment_of(checkout: Path, home: Path) -> dict[str, str]:
    """Return the environment of a program that uses the Muster of a checkout, which keeps its records in ``home``."""
    added = {"PYTHONPATH": str(checkout / "sdk"), "MUSTER_HOME": str(home / "muster"), "MUSTER_DASHBOARD": "off"}
    return {**os.environ, **added}


@contextlib.contextmanager
def private_home() -> Iterator[Path]:
    """Set ``MUSTER_HOME`` to a temporary folder for as long as a benchmark takes, and yield the folder."""
    before = os.environ.get("MUSTER_HOME")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        os.environ["MUSTER_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["MUSTER_HOME"]
            if before is not None:
                os.environ["MUSTER_HOME"] = before


def machine() -> dict[str, Any]:
    """Return the machine's size, its system and versions of packages, and its load."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "processor": processor(),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "packages": {name: version for name in PACKAGES if (version := installed(name))},
    }


def processor() -> str:
    """Return the processor's name, as Linux gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def installed(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def run(name: str, quick: bool) -> dict[str, Any]:
    """Run one benchmark of this folder, write its result to the folder ``results``, and return it."""
    module = importlib.import_module(f"benchmarks.{name}")
    described = machine()  # before the benchmark, which makes the machine busy
    started = time.monotonic()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that benchmarks clean up
    try:
        figures: list[Figure] = module.measure(quick)
    finally:
        signal.signal(signal.SIGTERM, before)
    result = {
        "benchmark": name,
        "quick": quick,
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(time.monotonic() - started),
        "machine": described,
        "figures": [figure.to_dict() for figure in figures],
    }
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"{name}{'-quick' if quick else ''}.json", result)
    return result


def write_json(path: Path, data: Any) -> None:
    """Write plain data to a file, as indented JSON with lists of numbers on a line each."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\n[-+.,\w\s]*\]", lambda found: "".join(found[0].split()).replace(",", ", "), text)
    path.write_text(text + "\n", encoding="utf-8")


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the figures as a Markdown table, with the machine that they were measured on below it."""
    lines = ["| what | measured | beside it | ratio | target |", "|---|---|---|---|---|"]
    lines += [row(figure) for result in results for figure in result["figures"]]
    machines = dict.fromkeys(described(result["machine"]) for result in results)
    loads = [result["machine"]["load"] for result in results]
    busy = f"Load average when they began: {min(loads):.1f} to {max(loads):.1f}."
    said = ["Medians, with quartiles in brackets, measured by turns.", *machines, busy, *measured_on(results)]
    return "\n".join([*lines, "", *said])


def measured_on(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences that say on which day each benchmark was run, as later changes may have changed its figures."""
    days: dict[str, list[str]] = {}
    for result in results:
        if "date" in result:
            days.setdefault(result["date"], []).append(result["benchmark"])
    return [f"Measured on {day}: {', '.join(names)}." for day, names in sorted(days.items())]


def row(figure: Mapping[str, Any]) -> str:
    """Return one figure as a row of the table."""
    floor, ratio, target = figure["floor"], figure["ratio"], figure["target"]
    cells = [
        figure["what"],
        amount(figure, figure["unit"]),
        f"{floor['what']}: {amount(floor, figure['unit'])}" if floor else "",
        f"{ratio['median']:.3g}" if ratio else "",
        f"{target} {'met' if figure['met'] else '**missed**'}" if target else "",
    ]
    return f"| {' | '.join(cells)} |"


def amount(measured: Mapping[str, Any], unit: str) -> str:
    """Return a median with its unit and quartiles, as text."""
    low, high = measured["quartiles"]
    brackets = f" ({low:.3g} to {high:.3g})" if low != high else ""
    return f"{measured['median']:.3g} {unit}{brackets}".strip()


def described(machine: Mapping[str, Any]) -> str:
    """Return a sentence that describes a machine."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gb']:g} GB, {machine['system']}, "
        f"Python {machine['python']}, {packages}."
    )


def main(name: str) -> None:
    """Run one benchmark from the command line, and print its table."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="see that it works, in seconds")
    print(table([run(name, parser.parse_args().quick)]))
