"""Running a training with ``restarts=3`` and a fault in one attempt, or in each of several.

After faults that another attempt may not meet, the run must end with exactly the weights of a training that nothing
interrupts, after one further attempt for each fault. A failure that another attempt would meet must end the run at
once.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import muster
from muster.errors import MusterError
from muster.events import Event
from muster.failure.failures import CRASHES
from muster.text.names import signal_name

from benchmarks.chaos import faults, harness, verdicts
from benchmarks.chaos.faults import Case, Fault
from benchmarks.chaos.harness import Outcome, Stage
from benchmarks.chaos.platforms import Here
from benchmarks.chaos.shapes import MPI, Shape
from benchmarks.chaos.surroundings import Clocks, kernel_time

RESTARTS = 3
AMONG = 8  # one training in so many is Horovod's, which takes much longer, if there are others
SCRIPT = Path(__file__).with_name("trains.py")
FAMILIES = ("signal", "agent", "guard", "launcher", "sshd", "start", "exception", "exit", "hang", "memory", "stop")


def make(seed: int, number: int, families: Any, strategies: Any) -> Case:
    """Return the case of a seed and number, with a fault in each of its first attempts."""
    dice = random.Random(f"restarts-{seed}-{number}")
    possible = [name for name in strategies if name in ("processes", *MPI)]
    if "horovod" in strategies and (not possible or number % AMONG == AMONG // 2):
        shape = Shape("horovod", 2, 1)
    else:
        workers, slots = dice.choice([(2, 1), (3, 1), (2, 2)])
        shape = Shape(dice.choice(possible), workers, slots)
    usable = [family for family in FAMILIES if family in families and shape.allows(family)]
    family = usable[number % len(usable)]
    hit: list[Fault] = []
    for attempt in range(1, 1 + dice.choice([1, 1, 2, 3])):
        found, options = faults.FAMILIES[family](dice, dice.randrange(shape.ranks), shape)
        fault = found[0]
        if not fault.is_from_outside:
            fault = replace(fault, step=15 * (attempt - 1) + dice.randrange(1, 14))  # each attempt comes further
        hit.append(fault)
        if told_at_once(family, fault):
            break
    options = {**options, **shape.options(options), "restarts": RESTARTS}
    return Case(
        number, family, shape, topology_of(shape), dice.choice(faults.REACTIONS), tuple(hit), options, restarts=RESTARTS
    )


def topology_of(shape: Shape) -> str:
    """Return how its ranks send each other gradients."""
    return "allreduce" if "allreduce" in shape.topologies else "all"


def told_at_once(family: str, fault: Fault) -> bool:
    """Return whether a failure is one that another attempt would meet again, as ``docs/restarts.md`` has it."""
    return family in ("exception", "exit", "hang", "memory", "stop") or fault.verdict.facts.get("signal") in CRASHES


def reasons_for(fault: Fault) -> tuple[str, ...]:
    """Return words of which the reason for another attempt must contain some after a fault; reasons are text only."""
    facts = fault.verdict.facts
    if not facts:  # a launcher that ends its ranks before it ends itself: either may be told first
        return "itself failed", "The launcher dropped"
    if facts["kind"] == "launcher":
        return ("itself failed",)
    return (signal_name(facts["signal"]) if facts["kind"] == "signal" else str(facts.get("message", "was lost")),)


class Attempts(Stage):
    """The surroundings of all attempts of a run; a fault from outside waits for its attempt.

    Attributes:
        attempt: number of the current attempt.
        begun: reasons for the further attempts, in order.
        steps: the last step that each worker has reported in each attempt.
    """

    def __init__(self, case: Case, platform: Here, folder: Path, home: Path, clocks: Clocks | None = None) -> None:
        super().__init__(case, platform, folder, home, clocks)
        self.attempt = 1
        self.begun: list[str] = []
        self.steps: dict[tuple[int, str | None], int] = {}

    def on_event(self, event: Event) -> None:
        """Note reported steps and new attempts; forget the processes of an attempt that has failed."""
        if event.kind == "run_attempt":
            self.pids.clear()
            self._moments = collections.defaultdict(threading.Event)
            self.begun.append(event.data["reason"])
            self.attempt = event.data["attempt"]
        if event.kind == "progress":
            key = (self.attempt, event.worker)
            self.steps[key] = max(event.data["step"] or 0, self.steps.get(key, 0))
        super().on_event(event)

    def came_no_further(self, worker: str | None) -> bool:
        """Return whether a worker has come no further in the current attempt than in all earlier ones."""
        before = [step for (attempt, name), step in self.steps.items() if name == worker and attempt < self.attempt]
        return self.steps.get((self.attempt, worker), 0) <= max(before, default=0)

    def are_ready(self) -> bool:
        """Return whether the ranks of this attempt have met."""
        return len(list((self.folder / str(self.attempt)).glob("ready-*[0-9]"))) == self.case.shape.ready

    def strike_in(self, attempt: int, fault: Fault) -> None:
        """Cause a fault from outside, in this attempt."""
        harness.wait(lambda: self.is_over or self.attempt == attempt, harness.UP_SECONDS)
        self.strike(fault)

    def all_struck(self) -> None:
        """Let the ranks of this attempt go on."""
        folder = self.folder / str(self.attempt)
        folder.mkdir(exist_ok=True)
        (folder / "all-struck").touch()

    def fault_time(self) -> float | None:
        """Return when the last fault struck."""
        noted = [path.stat().st_mtime for path in self.folder.glob("*/struck-*[0-9]")]
        return max([*noted, *([self.struck_at] if self.struck_at else [])], default=None)


def run(stage: Stage) -> Outcome:
    """Run a training with the case's faults, and return the outcome."""
    assert isinstance(stage, Attempts), "the harness was told which"
    case = stage.case
    hits = [*enumerate(case.faults, 1)]
    orders = orders_for(stage.folder, case.reaction, case.topology)
    outside = [(attempt, fault) for attempt, fault in hits if fault.is_from_outside]
    orders["faults"] = {
        f"{attempt} {fault.victim.split()[1]}": {"kind": fault.kind, "step": fault.step}
        for attempt, fault in hits
        if not fault.is_from_outside
    }
    orders["awaited"] = [str(attempt) for attempt, _ in outside]
    strikers = [threading.Thread(target=stage.strike_in, args=hit, daemon=True) for hit in outside]
    error: MusterError | None = None
    try:
        for striker in strikers:
            striker.start()
        stage.cluster = train(orders, case.options, [stage.on_event])
        stage.cluster.wait()
    except MusterError as raised:
        error = raised
    run_id = harness.newest_run()
    left = harness.what_is_left(run_id, stage.platform)
    gone_at = kernel_time()
    stage.is_over = True
    for striker in strikers:
        striker.join(harness.GONE_SECONDS)
    struck = stage.fault_time()
    wrong = what_is_wrong(case, stage, error, weights(Path(orders["checkpoints"])))
    return Outcome(
        is_right=not wrong,
        error=type(error).__name__ if error else "",
        message=f"{wrong} {error.message if error else ''}".strip(),
        told_after=stage.ending_at - struck if stage.ending_at and struck else None,
        gone_after=gone_at - struck if struck else None,
        left=tuple(left),
        run_dir=run_id,
    )


def what_is_wrong(case: Case, stage: Attempts, error: MusterError | None, learnt: list[str]) -> str:
    """Return, in words, what is wrong with the end of a run; an empty string if nothing is."""
    last = case.faults[-1]
    if told_at_once(case.family, last):
        if len(stage.begun) != len(case.faults) - 1:
            return f"There were {len(stage.begun)} further attempts: {stage.begun}."
        return "" if verdicts.is_right(replace(case, faults=(last,)), error) else "The wrong end."
    if error is not None and "no further attempt is made" in error.message:  # hit again before it had come further
        return "" if stage.came_no_further(error.worker) else "It had come further, and was not tried again."
    if case.family == "start" and type(error).__name__ == "LaunchRefused":
        return ""  # a launch that fails ends the run at once
    if error is not None:
        return f"It did not end well, after {len(stage.begun)} further attempts."
    if len(stage.begun) != len(case.faults):
        return f"There were {len(stage.begun)} further attempts, for {len(case.faults)} faults: {stage.begun}."
    for fault, reason in zip(case.faults, stage.begun, strict=True):
        if not any(words in reason for words in reasons_for(fault)):
            return f"An attempt was ended by something else than {fault}: {reason}"
    if learnt != uninterrupted(case.shape):
        return "The weights are not those of a training that nothing interrupts."
    return ""


@functools.cache
def uninterrupted(shape: Shape) -> list[str]:
    """Return the weights that the ranks of a cluster end with if there is no fault; each shape is trained once."""
    base = Path(os.environ["TMPDIR"]).parent / "uninterrupted"
    base.mkdir()
    orders = orders_for(base, "raise", topology_of(shape))
    train(orders, shape.options({}), []).wait()
    return weights(Path(orders["checkpoints"]))


def orders_for(folder: Path, reaction: str, topology: str) -> dict[str, Any]:
    """Make the folder of the checkpoints, and return the script's orders for a training without faults."""
    (folder / "checkpoints").mkdir()
    return {
        "folder": str(folder),
        "checkpoints": str(folder / "checkpoints"),
        "reaction": reaction,
        "topology": topology,
        "faults": {},
        "awaited": [],
    }


def train(orders: dict[str, Any], options: Any, observers: list[Any]) -> muster.Cluster:
    """Start a training, and return its cluster."""
    cluster: muster.Cluster = muster.run_cluster(
        worker_script=SCRIPT,
        args=[json.dumps(orders)],
        wait=False,
        timeout_seconds=harness.UP_SECONDS,
        run_timeout=harness.END_SECONDS,
        observers=observers,
        **options,
    ).cluster
    return cluster


def weights(folder: Path) -> list[str]:
    """Return the hashes of the weights that the ranks have left, in the order of their file names."""
    return [path.read_text() for path in sorted(folder.glob("weights-*"))]
