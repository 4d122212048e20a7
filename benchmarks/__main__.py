"""Run benchmarks, print their figures as a table, and update the tables of docs/figures.md.

python -m benchmarks                       run all of them: half an hour
python -m benchmarks startup --quick       run one of them briefly, to see that it works
python -m benchmarks startup --beside DIR  measure another checkout of Muster, in DIR, as well
python -m benchmarks --keep                write the last full results to results.json and docs/figures.md
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import BESIDE, FOLDER, KEPT, RESULTS, Unavailable, described, run, table, write_json

OF_NETWORKS = ("network_schemes", "network_servers")  # each has its own table, and a picture
SUMMARIES = {"hostile": "benchmarks.hostile", "chaos": "benchmarks.chaos.__main__"}  # each has its own table
OF_ATTACKS = tuple(SUMMARIES)
NAMES = (
    "import_time",
    "startup",
    "first_step",
    "second_run",
    "recovery",
    "throughput",
    "warm_throughput",
    "codec_cost",
    "serve_ready",
    "sync",
    "hosts_ready",
    "containers_ready",
    "containers_throughput",
    "kubernetes_ready",
    "kubernetes_load",
    "slurm_ready",
    "slurm_load",
    "thousand_agents",
    "relayed_agents",
    "dashboard_cost",
    *OF_NETWORKS,
    "hostile",
)
FIGURES = FOLDER.parent / "docs" / "figures.md"
BEGIN, END = "<!-- {} -->", "<!-- /{} -->"


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="see that they work, in a minute or two")
    parser.add_argument(
        "--beside", metavar="DIR", help="another checkout of Muster, which startup and hostile measure as well"
    )
    parser.add_argument("--keep", action="store_true", help="measure nothing, update results.json and docs/figures.md")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"there is no benchmark {' or '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if arguments.beside:
        os.environ[BESIDE] = arguments.beside
    if arguments.keep:
        return update_figures(FIGURES) or draw_pictures()
    results = []
    for name in arguments.names or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            results.append(run(name, arguments.quick))
        except Unavailable as error:
            print(f"left out: {error}", file=sys.stderr)
    if results:
        print(table(results))
    return 0


def update_figures(page: Path) -> int:
    """Write the last full results to results.json, and their tables between the page's markers.

    Returns an exit status: 1 if there are no results, or a marker is missing.
    """
    kept = {result["benchmark"]: result for result in (json.loads(KEPT.read_text()) if KEPT.exists() else [])}
    known = (*NAMES, "chaos")  # chaos is not a benchmark, but it has figures
    kept |= {name: json.loads(path.read_text()) for name in known if (path := RESULTS / f"{name}.json").exists()}
    results = [kept[name] for name in known if name in kept]
    if not results:
        print("Nothing has been measured yet: python -m benchmarks", file=sys.stderr)
        return 1
    results = [as_kept(result) for result in results]
    write_json(KEPT, results)
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    for name, content in tables(results).items():
        if BEGIN.format(name) not in text or END.format(name) not in text:
            print(f"{page.name} has no {BEGIN.format(name)} and {END.format(name)} for the table.", file=sys.stderr)
            return 1
        text = between_markers(text, name, content)
    page.write_text(text, encoding="utf-8")
    return 0


def as_kept(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without the values of the single turns."""

    def without_turns(figure: Any) -> Any:
        if not isinstance(figure, Mapping):
            return figure
        return {key: without_turns(value) for key, value in figure.items() if key != "values"}

    figures = {"figures": [without_turns(figure) for figure in result["figures"]]} if "figures" in result else {}
    return {**result, **figures}


def tables(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tables of the page, by the names of its markers."""
    found = {}
    if general := [result for result in results if result["benchmark"] not in OF_NETWORKS + OF_ATTACKS]:
        found["figures"] = table(general)
    for result in results:
        if result["benchmark"] in OF_NETWORKS:
            module = importlib.import_module(f"benchmarks.{result['benchmark']}")
            picture = f"![{module.TITLE}](pictures/{result['benchmark'].replace('_', '-')}.png)"
            found[result["benchmark"]] = "\n\n".join([module.summary(result), described(result["machine"]), picture])
        elif result["benchmark"] in OF_ATTACKS:
            text = importlib.import_module(SUMMARIES[result["benchmark"]]).summary(result)
            busy = f"Load average when it began: {result['machine']['load']:.1f}."
            found[result["benchmark"]] = f"{text}\n\n{described(result['machine'])} {busy}"
    return found


def draw_pictures() -> int:
    """Draw the pictures beside the tables."""
    from benchmarks import network_pictures  # matplotlib is only needed here

    network_pictures.draw_all()
    return 0


def between_markers(text: str, name: str, content: str) -> str:
    """Return the text with ``content``, and nothing else, between the two markers of this name."""
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    sys.exit(main())
