"""Run faults and print what came of them.

python -m benchmarks.chaos                         100 faults with a new seed
python -m benchmarks.chaos -n 1000 --seed 7        a thousand, always the same
python -m benchmarks.chaos --seed 7 --only 23      the 23rd of them once more
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos import faults, harness, surroundings
from benchmarks.chaos.faults import Case
from benchmarks.chaos.harness import Outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=100, metavar="N", help="how many faults; default: 100")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="default: another one each time")
    possible = ["processes", *(name for name in ("openmpi", "mpich") if shutil.which(f"mpiexec.{name}"))]
    parser.add_argument("--strategies", default=",".join(possible), help="of processes, openmpi, mpich, horovod")
    parser.add_argument("--faults", default=",".join(faults.FAMILIES), help=f"of {', '.join(faults.FAMILIES)}")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="only the fault of that number")
    parser.add_argument("--keep", type=Path, default=Path("/tmp/muster-chaos"), help="where runs told wrong are kept")
    arguments = parser.parse_args()
    families = arguments.faults.split(",")
    if "cut link" in families and surroundings.ISOLATED in os.environ:
        surroundings.prepare_network()
    elif "cut link" in families and surroundings.can_isolate():
        surroundings.isolate()
    elif "cut link" in families:
        print("cut links are left out: that takes root, unshare and ip")
        families.remove("cut link")
    print(f"seed {arguments.seed}", flush=True)
    started = time.monotonic()
    results = []
    for number in range(arguments.n) if arguments.only is None else [arguments.only]:
        case = faults.make(arguments.seed, number, tuple(families), tuple(arguments.strategies.split(",")))
        outcome = harness.run(case, arguments.keep / str(arguments.seed))
        results.append((case, outcome))
        print(line(case, outcome), flush=True)
    print()
    print(table(results))
    print(f"{time.monotonic() - started:.0f} s")
    return 0 if all(outcome.is_right and not outcome.left for _, outcome in results) else 1


def line(case: Case, outcome: Outcome) -> str:
    """One case in a line."""
    what = " and ".join(f"{fault.kind} in {fault.victim} at {fault.step}" for fault in case.faults)
    shape = f"{case.strategy}, {case.topology} of {case.workers}x{case.slots}, reaction {case.reaction}"
    mark = "ok   " if outcome.is_right else "WRONG"
    told = "" if outcome.is_right else f"\n      told: {outcome.error}: {outcome.message}"
    left = f"\n      LEFT: {', '.join(outcome.left)}" if outcome.left else ""
    times = f"{seconds(outcome.told_after)} {seconds(outcome.gone_after)}"
    return f"{mark} {case.number:4} {times} {what} ({shape}){told}{left}"


def table(results: Sequence[tuple[Case, Outcome]]) -> str:
    """Return a table of the outcomes, by family."""
    lines = [
        "| fault | told right | error after: median, maximum | nothing left after | left behind |",
        "|---|---|---|---|---|",
    ]
    families = [*dict.fromkeys(case.family for case, _ in results)]
    for family in [*families, "all"]:
        found = [outcome for case, outcome in results if family in (case.family, "all")]
        right = sum(outcome.is_right for outcome in found)
        told = spread([outcome.told_after for outcome in found if outcome.told_after is not None])
        gone = spread([outcome.gone_after for outcome in found if outcome.gone_after is not None])
        left = sum(bool(outcome.left) for outcome in found)
        lines.append(f"| {family} | {right} of {len(found)} | {told} | {gone} | {left} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} s, {max(values):.2f} s" if values else ""


def seconds(value: float | None) -> str:
    return "     -" if value is None else f"{value:5.2f}s"


if __name__ == "__main__":
    sys.exit(main())
