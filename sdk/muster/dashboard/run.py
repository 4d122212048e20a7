"""The current state of a run, as dashboards show it, and what follows from it.

It is computed from the run's events alone (:mod:`muster.dashboard.fold`), and its size is bounded by the number of
workers, however long the run. Times are seconds since the epoch, as in the events. All text in it is safe for a
terminal; for HTML it must still be escaped.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.dashboard.attempts import MOST, AttemptView
from muster.dashboard.curve import Curve
from muster.dashboard.progress import ProcessProgress
from muster.dashboard.worker import WorkerView
from muster.job import SERVER
from muster.text.shown import duration

MAX_NOTES = 8
MAX_WAITS = 3  # different reasons for which workers wait, of those that are shown above them
SERVING = "serving"  # the stage of a server that has begun to listen


@dataclass
class RunView:
    """The state of a whole run.

    Attributes:
        status: running, succeeded, failed, stopped or lost.
        phase: launching, connecting, starting, training, ending; ended.
        launcher: the program that starts the ranks in this phase; empty if there is none.
        moved: time of the last event other than ``usage``; if that is long ago, the run may be stuck.
        job: description of the job, from the event ``run_requested``.
        memory_limit: bytes of memory that each worker may use.
        ps_memory_limit: bytes of memory that each parameter server may use.
        exception: the traceback of the first script that raised an exception of its own; until there is one, of the
            first script that raised because another process had failed.
        exception_is_echo: whether ``exception`` is of the latter kind.
        attempts: the attempts so far, the newest of them if there are very many.
        single_rate: examples per second of the same job on a single worker, from an earlier run.
        metrics_from: the worker whose rank the metrics come from, and the progress of that rank.
        has_stepped: whether any process has begun to train.
        stages: the number of workers at each stage before their first step.
        silent: names of the workers that are silent, in the order in which they became so.
        version: the number of events so far, by which dashboards notice changes.
    """

    clock: Callable[[], float] = time.time
    name: str = ""
    strategy: str = ""
    status: str = "running"
    phase: str = "launching"
    phase_since: float = 0.0
    launcher: str = ""
    started: float | None = None
    ended: float | None = None
    moved: float = 0.0
    run_id: str = ""
    job: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    advice: str = ""
    culprit: str = ""
    error: str = ""
    exception: str = ""
    exception_is_echo: bool = False
    memory_limit: int | None = None
    ps_memory_limit: int | None = None
    single_rate: float | None = None
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_NOTES))
    attempts: deque[AttemptView] = field(default_factory=lambda: deque(maxlen=MOST))
    workers: dict[str, WorkerView] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    metrics_from: tuple[str, ProcessProgress] | None = None
    has_stepped: bool = False
    stages: Counter[str] = field(default_factory=Counter)
    silent: dict[str, None] = field(default_factory=dict)
    version: int = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the run was requested or, once it has ended, that it took."""
        if self.started is None:
            return 0.0
        return max((self.ended if self.ended is not None else self.clock()) - self.started, 0.0)

    @property
    def sent(self) -> float | None:
        """Fraction of the project that the workers have received, 0 to 1; None before and after the transfer."""
        if self.phase != "starting" or self.status != "running":
            return None
        expected = sum(worker.expected for worker in self.workers.values())
        received = sum(worker.received for worker in self.workers.values())
        return received / expected if received < expected else None

    @property
    def doing(self) -> str:
        """Phase of the run or, from the phase ``training`` to the first step, the stage that most workers are at."""
        if self.sent is not None:
            return "sending the project"
        if self.launcher:
            return f"{self.launcher} starts the ranks"
        if self.phase != "training" or self.has_stepped:
            return self.phase
        if self.stages[SERVING] == len(self.workers) > 0:
            return SERVING
        return next((stage for stage, count in self.stages.most_common() if count and stage != SERVING), self.phase)

    @property
    def remarks(self) -> list[str]:
        """The notes and, while workers are on their way, what these wait for now, each text once; and who is silent."""
        if self.status != "running":
            return [*self.notes]
        waits = dict.fromkeys(worker.waits_for for worker in self.workers.values() if worker.waits_for)
        return [*self.notes, *[*waits][:MAX_WAITS], *self.silences]

    @property
    def silences(self) -> list[str]:
        """Texts about the workers that do not go on: on the first of them, and on how many more there are."""
        named = [
            f"{self.workers[name].name} {self.silence_of(self.workers[name])}" for name in [*self.silent][:MAX_WAITS]
        ]
        more = len(self.silent) - len(named)
        return [*named, f"So it is with {more} more."] if more else named

    def silence_of(self, worker: WorkerView) -> str:
        """Return what is the matter with a worker that does not go on, and for how long; empty if it goes on."""
        if worker.silent is None:
            return ""
        text, since, why = worker.silent
        return f"{text} for {duration(max(self.clock() - since, 0.0))}. {why}".rstrip()

    def news_of(self, worker: WorkerView) -> str:
        """Return why a worker is silent, why it failed or what it waits for, or else the last line of its output."""
        return self.silence_of(worker) or worker.news

    @property
    def other_remarks(self) -> list[str]:
        """The remarks without those that say what ended an attempt, for views with a table of attempts."""
        said = {attempt.reason for attempt in self.attempts}
        return [remark for remark in self.remarks if remark not in said]

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric."""
        return {name: curve.last.value for name, curve in self.curves.items() if curve.last is not None}

    @property
    def slowest_worker(self) -> WorkerView | None:
        """The worker with the process that is furthest behind, of those that have reported progress."""
        told = [worker for worker in self.workers.values() if worker.slowest.has_begun]
        return min(told, key=lambda worker: worker.slowest.order(), default=None)

    @property
    def slowest(self) -> ProcessProgress | None:
        """The progress of the process that is furthest behind."""
        worker = self.slowest_worker
        return worker.slowest if worker else None

    @property
    def fraction(self) -> float | None:
        """Fraction of the work that the slowest process has done, 0 to 1, and 1 once the run has succeeded.

        While the project is sent to the workers, the fraction that has arrived; None if unknown.
        """
        if self.sent is not None:
            return self.sent
        fraction = self.slowest.fraction if self.slowest else None
        return 1.0 if fraction is not None and self.status == "succeeded" else fraction

    @property
    def position(self) -> list[str]:
        """Percentage and position of the slowest process, in words.

        If the run succeeded though that process never reported its last step, the last position that it reported.
        """
        slowest = self.slowest
        if self.status == "succeeded" and slowest and not slowest.has_told_its_end:
            return [f"last told: {slowest.position}"]
        part = [] if self.fraction is None else [f"{100 * self.fraction:.0f} %"]
        return [*part, slowest.position] if slowest and self.sent is None else part

    @property
    def laggard(self) -> WorkerView | None:
        """The slowest worker if the run is under way and another process is well ahead of it, else None."""
        slowest = self.slowest_worker
        others = (progress for worker in self.workers.values() for progress in worker.reported)
        if slowest is None or self.status != "running":
            return None
        return slowest if any(slowest.slowest.is_well_behind(other) for other in others) else None

    def limit_of(self, worker: WorkerView) -> int | None:
        """Return the bytes of memory that a worker may use; None if unknown."""
        return self.ps_memory_limit if worker.role == SERVER else self.memory_limit

    @property
    def share_reporting(self) -> str:
        """The number of ranks that have reported progress, out of all ranks of the same roles, in words.

        Empty if all have reported progress, and once the run has succeeded.
        """
        roles = {worker.role for worker in self.workers.values() if worker.slowest.has_begun}
        alike = [worker for worker in self.workers.values() if worker.role in roles]
        told = sum(len(worker.reported) for worker in alike)
        expected = sum(max(len(worker.progress), 1) for worker in alike)
        noun = "workers" if expected == len(alike) else "ranks"
        return f"told by {told} of {expected} {noun}" if self.status != "succeeded" and told < expected else ""

    @property
    def time_left(self) -> float | None:
        """Estimated seconds until the slowest process is done, at its average pace; None if unknown."""
        slowest = self.slowest
        goes_on = self.status == "running" and self.phase != "ending"
        return slowest.time_left(self.clock()) if slowest and goes_on else None

    @property
    def efficiency(self) -> float | None:
        """Scaling efficiency, 0 to 1: the rate per worker divided by ``single_rate``; None if unknown."""
        if not self.single_rate:
            return None
        rates = [worker.rate for worker in self.workers.values() if worker.rate is not None]
        return sum(rates) / (len(rates) * self.single_rate) if len(rates) > 1 else None

    @property
    def rate(self) -> float | None:
        """Examples per second of all workers together; None if unknown."""
        rates = [worker.rate for worker in self.workers.values() if worker.rate is not None]
        return sum(rates) if rates else None

    @property
    def cause(self) -> str:
        """Reason why the run did not succeed, preceded by the culprit's name unless the reason contains it."""
        return f"{self.culprit}: {self.reason}" if self.culprit and self.culprit not in self.reason else self.reason

    @property
    def logs_command(self) -> str:
        """Command that prints the workers' output; empty if the run has no workers yet."""
        return f"muster logs {self.run_id}" if self.run_id and self.workers else ""

    @property
    def census(self) -> str:
        """Number of workers of each status, in words."""
        return ", ".join(f"{count} {status}" for status, count in sorted(self.counts().items()))

    def has_done_its_part(self, worker: WorkerView) -> bool:
        """Return whether a worker is a server that was stopped because all other workers had succeeded."""
        others = {other.status for other in self.workers.values() if not other.listens or other.status != "stopped"}
        return worker.listens and worker.status == "stopped" and others == {"succeeded"}

    def in_order(self) -> list[WorkerView]:
        """Return the workers in natural order, after the culprit and the other failed workers."""
        return sorted(
            self.workers.values(),
            key=lambda worker: (worker.name != self.culprit, not worker.has_failed, worker.natural),
        )

    def phase_of(self, worker: WorkerView) -> str:
        """Return a worker's stage or phase and how long it has lasted, or how the worker ended."""
        if worker.phase == "done":
            return worker.end
        now = self.ended if self.ended is not None else self.clock()
        return f"{worker.doing} {duration(max(now - worker.doing_since, 0.0))}"

    def counts(self) -> dict[str, int]:
        """Return the number of workers of each status."""
        counts: dict[str, int] = {}
        for worker in self.workers.values():
            counts[worker.status] = counts.get(worker.status, 0) + 1
        return counts
