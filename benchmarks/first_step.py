"""Measure the time from the call to the end of the first training step, and from the last step to the prompt.

Two workers train with Horovod. Baseline: a bare horovodrun with the same arguments, script and numbers of threads, on
two hosts whose sshd already listens; Muster's time includes launching its workers. Ranks that agents start
(``launcher="agents"``) are compared with the same baseline. To find out whether an interpreter's Horovod has gloo takes
seconds, once, and Muster remembers it: ``cold`` is the first run of Muster with an interpreter.
"""

from __future__ import annotations

from benchmarks import bare_horovod, training
from benchmarks.measuring import Figure, Target, by_turns, main, private_home

LIMIT = 1
AGENTS_LIMIT = 0.6


def measure(quick: bool) -> list[Figure]:
    """Measure Muster's first run ever, later runs, runs whose ranks the agents start, and bare horovodrun, by turns."""
    with private_home() as home, bare_horovod.hosts(training.WORKERS) as hosts:

        def cold() -> dict[str, float]:
            (home / "horovod-has-gloo").unlink(missing_ok=True)
            return training.by_muster()

        contenders = {
            "cold": cold,
            "warm": training.by_muster,
            "agents": lambda: training.by_muster(launcher="agents"),
            "bare": lambda: training.by_horovodrun(hosts),
        }
        if not quick:
            training.by_muster()  # a first run after a long time reads TensorFlow from the disk
        found = by_turns(1 if quick else 8, contenders)
    taken, ends = ({name: [run[key] for run in runs] for name, runs in found.items()} for key in ("seconds", "end"))
    title, floor = f"first step with Horovod, {training.WORKERS} workers", "bare `horovodrun` on hosts that are up"
    return [
        Figure(title, "s", taken["warm"], floor, taken["bare"], Target(LIMIT)),
        Figure(f"{title}, ranks by the agents", "s", taken["agents"], floor, taken["bare"], Target(AGENTS_LIMIT)),
        Figure(f"{title}, first run ever", "s", taken["cold"], floor, taken["bare"]),
        Figure(f"last step to prompt with Horovod, {training.WORKERS} workers", "s", ends["warm"], floor, ends["bare"]),
    ]


if __name__ == "__main__":
    main("first_step")
