"""Put random faults into random ranks, and print a table of Muster's verdicts.

python -m benchmarks.chaos                         run 100 faults with a new seed
python -m benchmarks.chaos -n 1000 --seed 7        run a thousand, the same each time
python -m benchmarks.chaos --seed 7 --only 23      run only the 23rd of them, here or on another machine
python -m benchmarks.chaos --seed 7 --first 100 --results FILE      run the second hundred; add them to those in FILE
python -m benchmarks.chaos --platforms hosts,isolated      run them on hosts, and on workers without shared files
python -m benchmarks.chaos --restarts              run a training with restarts, which must learn exactly the same
python -m benchmarks.chaos --collect FILE          print the table of all faults in FILE
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos import faults, kept, lanes, platforms, restarting, shapes, surroundings
from benchmarks.chaos.faults import Case
from benchmarks.chaos.harness import Outcome
from benchmarks.chaos.kept import Kept
from benchmarks.measuring import RESULTS, machine, write_json

# Options that faults are drawn from by default: the same on every machine, whatever is installed there.
ALL = {"strategies": ",".join(shapes.ALL), "faults": ",".join(faults.EVERYWHERE), "platforms": "local"}


def main() -> int:
    arguments = parse()
    if arguments.collect:
        return told(kept.read(arguments.collect), arguments.record)
    families, strategies = arguments.faults.split(","), arguments.strategies.split(",")
    is_isolated = surroundings.can_isolate()
    wanted = arguments.platforms.split(",")
    print(replay(arguments), flush=True)
    numbers = range(arguments.first, arguments.first + arguments.n) if arguments.only is None else [arguments.only]
    if arguments.restarts:
        cases = [restarting.make(arguments.seed, number, families, strategies) for number in numbers]
    else:
        cases = [faults.make(arguments.seed, number, families, strategies, wanted) for number in numbers]
    results: list[Kept] = []
    for case in cases:
        if why := lacks(case, is_isolated):
            print(f"skip  {case.number:4} {case.label} ({case.shape}): {why}; not counted")
    cases = [case for case in cases if not lacks(case, is_isolated)]
    if not cases:
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):  # results until then count
        for case, outcome in lanes.run(cases, arguments.keep / str(arguments.seed), arguments.lanes, is_isolated):
            results.append(kept.Kept.of(arguments.seed, case, outcome))
            print(line(case, outcome), flush=True)
            if arguments.results:
                kept.add(arguments.results, results[-1])
    return told(results, arguments.record)


def told(results: Sequence[Kept], is_recorded: bool) -> int:
    """Print the table of the results, and return the exit status: 0 if all cases were right and nothing was left."""
    if not results:
        return 1
    told = figures(results)
    print(f"\n{summary(told)}")
    if is_recorded:
        RESULTS.mkdir(exist_ok=True)
        described = {"benchmark": "chaos", "date": time.strftime("%Y-%m-%d"), "machine": machine()}
        write_json(RESULTS / "chaos.json", {**described, **told})
    return 0 if all(result.is_right and not result.left for result in results) else 1


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=100, metavar="N", help="how many faults; default: 100")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of these; default: 0")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="default: another one each time")
    parser.add_argument("--strategies", default=ALL["strategies"], help=f"of {ALL['strategies']}")
    parser.add_argument("--faults", default=ALL["faults"], help=f"of {ALL['faults']}")
    parser.add_argument(
        "--platforms", default=ALL["platforms"], help=f"of {', '.join(platforms.PLATFORMS)}; default: local"
    )
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
    """Return a line of text about one case; what was wrong is on further lines."""
    what = " and ".join(map(str, case.faults))
    mark = "ok   " if outcome.is_right else "WRONG"
    told = "" if outcome.is_right else f"\n      told: {outcome.error}: {outcome.message}"
    left = f"\n      LEFT: {', '.join(outcome.left)}" if outcome.left else ""
    times = f"{seconds(outcome.told_after)} {seconds(outcome.gone_after)}"
    setting = f"{case.shape}, {case.topology}, reaction {case.reaction}"
    return f"{mark} {case.number:4} {times} {case.label}: {what} ({setting}){told}{left}"


def replay(arguments: argparse.Namespace) -> str:
    """Return the options with which any machine draws the same faults: the seed, and those that narrow the draw."""
    narrowed = [f"--{name} {shlex.quote(value)}" for name in ALL if (value := getattr(arguments, name)) != ALL[name]]
    narrowed += ["--restarts"] if arguments.restarts else []
    return " ".join([f"--seed {arguments.seed}", *narrowed])


def lacks(case: Case, is_isolated: bool) -> str:
    """Return, in words, what this machine lacks for a case; an empty string if it lacks nothing.

    Such cases are drawn all the same, so that the draw does not depend on the machine.
    """
    if case.family in faults.FOR_ROOT and not is_isolated:
        return "not here: it takes root, unshare and ip"
    missing = [case.shape.strategy] if case.shape.strategy not in shapes.available() else []
    missing += [case.platform] if case.platform not in platforms.available() else []
    return f"not here: {' and '.join(missing)}" if missing else ""


def figures(results: Sequence[Kept]) -> dict[str, Any]:
    """Return the numbers of the results, by kind of fault."""
    families = [*dict.fromkeys(result.family for result in results)]
    loads = [result.load for result in results]
    return {
        "seeds": sorted({result.seed for result in results}),
        "load": [min(loads), max(loads)],
        "kinds": [
            of_kind(family, [r for r in results if family in (r.family, "all")]) for family in [*families, "all"]
        ],
    }


def of_kind(name: str, results: Sequence[Kept]) -> dict[str, Any]:
    """Return the numbers of one kind of fault; ``told`` and ``gone`` are seconds, as in ``Outcome``."""
    return {
        "kind": name,
        "faults": len(results),
        "right": sum(result.is_right for result in results),
        "told": spread([result.told_after for result in results if result.told_after is not None]),
        "gone": spread([result.gone_after for result in results if result.gone_after is not None]),
        "left": sum(result.left > 0 for result in results),
    }


def summary(told: Mapping[str, Any]) -> str:
    """Return the numbers as a table, with the seeds and the machine's load below it."""
    low, high = told["load"]
    count = next(kind["faults"] for kind in told["kinds"] if kind["kind"] == "all")
    seeds = ", ".join(map(str, told["seeds"]))
    return f"{table(told['kinds'])}\n\n{count} faults, seed {seeds}; load average {low:.1f} to {high:.1f}."


def table(kinds: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a row for each kind of fault."""
    lines = [
        "| fault | told right | error after: median, maximum | nothing left after | left behind |",
        "|---|---|---|---|---|",
    ]
    for kind in kinds:
        told, gone = (
            f"{kind[name]['median']:.2f} s, {kind[name]['maximum']:.2f} s" if kind[name] else ""
            for name in ("told", "gone")
        )
        lines.append(f"| {kind['kind']} | {kind['right']} of {kind['faults']} | {told} | {gone} | {kind['left']} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> dict[str, float] | None:
    return {"median": round(statistics.median(values), 3), "maximum": round(max(values), 3)} if values else None


def seconds(value: float | None) -> str:
    return "     -" if value is None else f"{value:5.2f}s"


if __name__ == "__main__":
    sys.exit(main())
