"""Run faults and print what came of them.

python -m benchmarks.chaos                         100 faults with a new seed
python -m benchmarks.chaos -n 1000 --seed 7        a thousand, always the same
python -m benchmarks.chaos --seed 7 --only 23      the 23rd of them once more
python -m benchmarks.chaos --seed 7 --first 100 --results FILE      the second hundred, added to those in FILE
python -m benchmarks.chaos --platforms hosts,isolated      into workers on hosts, and into some without our files
python -m benchmarks.chaos --restarts              into a training that is tried again, and must learn the very same
python -m benchmarks.chaos --collect FILE          the table of all that FILE has
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos import faults, kept, lanes, platforms, restarting, shapes, surroundings
from benchmarks.chaos.faults import Case
from benchmarks.chaos.harness import Outcome
from benchmarks.chaos.kept import Kept
from benchmarks.measuring import RESULTS, machine, write_json


def main() -> int:
    arguments = parse()
    if arguments.collect:
        return told(kept.read(arguments.collect), arguments.record)
    families, strategies = arguments.faults.split(","), arguments.strategies.split(",")
    is_isolated = surroundings.can_isolate()
    if not is_isolated and set(families) & set(faults.FOR_ROOT):
        families = [family for family in families if family not in faults.FOR_ROOT]
        print(f"{', '.join(faults.FOR_ROOT)} are left out: they take root, unshare and ip")
    platforms = arguments.platforms.split(",")
    print(f"seed {arguments.seed}", flush=True)
    numbers = range(arguments.first, arguments.first + arguments.n) if arguments.only is None else [arguments.only]
    if arguments.restarts:
        cases = [restarting.make(arguments.seed, number, families, strategies) for number in numbers]
    else:
        cases = [faults.make(arguments.seed, number, families, strategies, platforms) for number in numbers]
    results: list[Kept] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):  # what has come until then counts
        for case, outcome in lanes.run(cases, arguments.keep / str(arguments.seed), arguments.lanes, is_isolated):
            results.append(kept.Kept.of(arguments.seed, case, outcome))
            print(line(case, outcome), flush=True)
            if arguments.results:
                kept.add(arguments.results, results[-1])
    return told(results, arguments.record)


def told(results: Sequence[Kept], is_recorded: bool) -> int:
    """Print the table of what came of the cases, and return the exit status that says whether all was right."""
    if not results:
        return 1
    loads = [result.load for result in results]
    seeds = ", ".join(map(str, sorted({result.seed for result in results})))
    text = (
        f"{table(results)}\n\n{len(results)} faults, seed {seeds}; load average {min(loads):.1f} to {max(loads):.1f}."
    )
    print(f"\n{text}")
    if is_recorded:
        RESULTS.mkdir(exist_ok=True)
        write_json(RESULTS / "chaos.json", {"benchmark": "chaos", "machine": machine(), "text": text, "figures": []})
    return 0 if all(result.is_right and not result.left for result in results) else 1


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=100, metavar="N", help="how many faults; default: 100")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of these; default: 0")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="default: another one each time")
    possible = shapes.available()
    parser.add_argument("--strategies", default=",".join(possible), help=f"of {', '.join(possible)}")
    parser.add_argument("--faults", default=",".join(faults.EVERYWHERE), help=f"of {', '.join(faults.EVERYWHERE)}")
    parser.add_argument("--platforms", default="local", help=f"of {', '.join(platforms.available())}; default: local")
    parser.add_argument(
        "--restarts",
        action="store_true",
        help=f"into a training with checkpoints and restarts={restarting.RESTARTS}, on this machine",
    )
    parser.add_argument("--only", type=int, metavar="NUMBER", help="only the fault of that number")
    parser.add_argument("--lanes", type=int, default=1, metavar="N", help="how many at the same time; default: 1")
    parser.add_argument("--keep", type=Path, default=Path("/tmp/muster-chaos"), help="where runs told wrong are kept")
    parser.add_argument("--results", type=Path, metavar="FILE", help="where to add what came of each")
    parser.add_argument("--collect", type=Path, metavar="FILE", help="run nothing, print the table of such a file")
    parser.add_argument("--record", action="store_true", help="keep the table for docs/figures.md")
    return parser.parse_args()


def line(case: Case, outcome: Outcome) -> str:
    """One case in a line."""
    what = " and ".join(map(str, case.faults))
    mark = "ok   " if outcome.is_right else "WRONG"
    told = "" if outcome.is_right else f"\n      told: {outcome.error}: {outcome.message}"
    left = f"\n      LEFT: {', '.join(outcome.left)}" if outcome.left else ""
    times = f"{seconds(outcome.told_after)} {seconds(outcome.gone_after)}"
    setting = f"{case.shape}, {case.topology}, reaction {case.reaction}"
    return f"{mark} {case.number:4} {times} {case.label}: {what} ({setting}){told}{left}"


def table(results: Sequence[Kept]) -> str:
    """Return a table of the outcomes, by family."""
    lines = [
        "| fault | told right | error after: median, maximum | nothing left after | left behind |",
        "|---|---|---|---|---|",
    ]
    families = [*dict.fromkeys(result.family for result in results)]
    for family in [*families, "all"]:
        found = [result for result in results if family in (result.family, "all")]
        right = sum(result.is_right for result in found)
        told = spread([result.told_after for result in found if result.told_after is not None])
        gone = spread([result.gone_after for result in found if result.gone_after is not None])
        left = sum(result.left > 0 for result in found)
        lines.append(f"| {family} | {right} of {len(found)} | {told} | {gone} | {left} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} s, {max(values):.2f} s" if values else ""


def seconds(value: float | None) -> str:
    return "     -" if value is None else f"{value:5.2f}s"


if __name__ == "__main__":
    sys.exit(main())
