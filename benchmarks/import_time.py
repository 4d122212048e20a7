"""Measure how long ``import muster`` takes beyond the start of Python, and whether it loads a large package."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.measuring import Figure, Target, by_turns, main

LIMIT_MS = 150
FOREIGN = """
import sys
before = set(sys.modules)
import muster
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - {"muster"}
print(*sorted(loaded - sys.stdlib_module_names))
"""


def measure(quick: bool) -> list[Figure]:
    """Measure whole processes with and without the import, by turns, and count the packages that it loads."""
    contenders = {code: lambda code=code: seconds(code) for code in ("import muster", "pass")}
    by_turns(1, contenders)  # so that all modules are compiled
    taken = by_turns(3 if quick else 40, contenders)
    extra = [(with_it - bare) * 1000 for with_it, bare in zip(*taken.values(), strict=True)]
    heavy = foreign_modules()
    return [
        Figure("`import muster`, beyond the start of Python", "ms", extra, target=Target(LIMIT_MS, "ms")),
        Figure(
            f"packages that `import muster` loads: {', '.join(heavy) or 'none'}", "", [len(heavy)], target=Target(0, "")
        ),
    ]


def seconds(code: str) -> float:
    """Return the seconds that a Python process takes to run ``code``."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def foreign_modules() -> list[str]:
    """Return the names of the third-party packages that ``import muster`` loads."""
    done = subprocess.run([sys.executable, "-c", FOREIGN], check=True, capture_output=True, text=True)
    return done.stdout.split()


if __name__ == "__main__":
    main("import_time")
