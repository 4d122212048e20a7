"""Measure how long it takes until eight workers launched through ``muster serve`` are ready.

Baseline: the same eight workers, launched directly on this machine. Through the service's REST interface each of them
is an IPython process, as on the workbench, which starts an agent that it was sent. The service runs beforehand.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import startup
from benchmarks.measuring import Figure, by_turns, fresh, main, private_home

SERVE = (sys.executable, "-m", "muster", "serve")


class Service(NamedTuple):
    """A ``muster serve`` that runs: its process, and its port on loopback."""

    pid: int
    port: int


def measure(quick: bool) -> list[Figure]:
    """Measure workers launched through the service and workers launched directly, by turns."""
    with private_home() as home, serving(home):
        contenders = {name: lambda name=name: fresh(startup.muster, name) for name in ("workbench", "local")}
        taken = by_turns(1 if quick else 10, contenders)
    served, direct = ([seconds["ready"] for seconds in taken[name]] for name in ("workbench", "local"))
    title = f"{startup.WORKERS} workers through `muster serve` ready, sshd on each"
    return [
        Figure(title, "s", served, "launched directly", direct),
        *(Figure(f"of that, {phase}", "s", [s[phase] for s in taken["workbench"]]) for phase in startup.PHASES),
    ]


@contextlib.contextmanager
def serving(project: Path) -> Iterator[Service]:
    """Run ``muster serve`` for a project within the block, with this process and its children as its clients."""
    before = dict(os.environ)
    command = [*SERVE, "--port", "0", "--project", str(project)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            line = next(line for line in service.stdout if line.startswith("Serving "))
            port = line.split(" on ")[-1].split(",")[0].rpartition(":")[2]
            os.environ.update(variables(port))
            yield Service(service.pid, int(port))
        finally:
            os.environ.clear()
            os.environ.update(before)
            service.terminate()


def variables(port: str) -> dict[str, str]:
    """Return the variables that point a client at the service on that port."""
    printed = shlex.join([*SERVE, "--print-env", "--port", port])
    done = subprocess.run(["bash", "-c", f'eval "$({printed})" && env -0'], capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if line.startswith("CDSW_"))


if __name__ == "__main__":
    main("serve_ready")
