"""Run the benchmarks, print their figures as a table, and keep them where the README's table comes from.

python -m benchmarks                       all of them, a quarter of an hour
python -m benchmarks startup --quick       one of them, only to see that it works
python -m benchmarks --readme              the last full results of each into results.json and the README
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.measuring import FOLDER, KEPT, RESULTS, run, table, write_json

NAMES = ("import_time", "startup", "first_step", "throughput", "serve_ready", "thousand_agents", "dashboard_cost")
README = FOLDER.parent / "README.md"
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="see that they work, in a minute or two")
    parser.add_argument("--readme", action="store_true", help="measure nothing, bring the README up to date")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"there is no benchmark {' or '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if arguments.readme:
        return update_readme(README)
    results = []
    for name in arguments.names or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results.append(run(name, arguments.quick))
    print(table(results))
    return 0


def update_readme(readme: Path) -> int:
    """Keep the last full results, and put their table between the README's two markers."""
    kept = {result["benchmark"]: result for result in (json.loads(KEPT.read_text()) if KEPT.exists() else [])}
    kept |= {name: json.loads(path.read_text()) for name in NAMES if (path := RESULTS / f"{name}.json").exists()}
    results = [kept[name] for name in NAMES if name in kept]
    if not results:
        print("Nothing has been measured yet: python -m benchmarks", file=sys.stderr)
        return 1
    write_json(KEPT, results)
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    if BEGIN not in text or END not in text:
        print(f"{readme.name} has no {BEGIN} and {END} to put the table between.", file=sys.stderr)
        return 1
    readme.write_text(between_markers(text, table(results)), encoding="utf-8")
    return 0


def between_markers(text: str, content: str) -> str:
    """The text with the content, and nothing else, between the two markers."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{content}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    sys.exit(main())
