"""The session of the benchmark ``startup``: it makes runs of two workers that have nothing to do, one by one.

    startup_session.py RUNS

Prints a line of JSON: for each run its seconds, and the CPU seconds of the session and of all processes that it has
started. It uses the Muster on its path.
"""

import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import muster


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all its descendants that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    """Make the runs, and print their figures."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "nothing.py"
        script.write_text("pass\n")
        for _ in range(int(sys.argv[1])):
            cpu, started = cpu_seconds(), time.perf_counter()
            with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
                muster.run_cluster(2, strategy="processes", worker_script=script)
            found.append({"seconds": time.perf_counter() - started, "cpu": cpu_seconds() - cpu})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
