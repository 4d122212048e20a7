"""Measure the steps per second of LeNet, trained with Horovod on two workers of this machine.

Baseline: a bare horovodrun with the same script and the same numbers of threads (``bare_horovod.THREADS``: one for
operations, four between them). Muster also reports every step to a session, which prints them, and gives each worker
a core of its own where there are enough.
"""

from __future__ import annotations

from benchmarks import bare_horovod, training
from benchmarks.measuring import Figure, Target, by_turns, main, private_home

STEPS = 50  # in an epoch; the first epoch is not counted
LIMIT = 0.98


def measure(quick: bool) -> list[Figure]:
    """Measure short runs by Muster and by a bare horovodrun, by turns."""
    options = ("--steps", str(10 if quick else STEPS), "--epochs", str(2 if quick else 4))
    with private_home(), bare_horovod.hosts(training.WORKERS) as hosts:
        taken = by_turns(
            1 if quick else 8,
            {
                "muster": lambda: training.by_muster(*options)["steps_per_second"],
                "bare": lambda: training.by_horovodrun(hosts, *options)["steps_per_second"],
            },
        )
    title = f"training LeNet with Horovod, {training.WORKERS} workers"
    target = Target(LIMIT, at_least=True)
    return [Figure(title, "steps/s", taken["muster"], "bare `horovodrun`", taken["bare"], target)]


if __name__ == "__main__":
    main("throughput")
