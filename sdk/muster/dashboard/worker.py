"""The current state of one worker, as far as it is known from the events."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.dashboard.last_line import LastLine
from muster.dashboard.progress import ProcessProgress
from muster.dashboard.text import first_line, size

MAX_RANKS = 64  # of one worker; further ones are left out
FINAL = frozenset({"succeeded", "failed", "stopped", "ended", "timedout", "lost"})
FAILURES = frozenset({"failed", "timedout", "lost"})
GOOD_END = "exit 0"
NOTHING = ProcessProgress()
PHASES = ("requested", "scheduled", "connected", "ready", "training", "done")


@dataclass
class WorkerView:
    """The state of one worker.

    Attributes:
        phase: one of ``PHASES``. It only moves forward, unless the worker's process alone is started again.
        stage: the stage of its process before the first step, such as ``importing tensorflow``; empty if unknown.
        listens: whether its process is a server that has begun to listen.
        entered: the time when it entered each phase.
        cpu: the number of cores that it keeps busy.
        memory: bytes of memory in use.
        gpus: names of the GPUs that it may use.
        gpu: the number of its GPUs that are busy.
        gpu_memory: bytes of GPU memory in use.
        progress: the progress of each of its ranks; the key None is for a worker without ranks.
        ranks: the ranks that run on it, in order.
        silent: what is the matter while its agent does not answer or a process of it is suspended, since when, and why,
            where that is known; None while it goes on.
        received, expected: bytes of the project that it has received, and that it will have received in the end.
        end: how its process ended, such as ``exit 3``, or the type of the exception that its script raised; of several
            ranks, of the first that failed. Empty if Muster stopped the process, which does not show whether it did
            well.
    """

    name: str
    status: str = "scheduling"
    address: str = ""
    phase: str = "requested"
    phase_since: float = 0.0
    stage: str = ""
    stage_since: float = 0.0
    listens: bool = False
    entered: dict[str, float] = field(default_factory=dict)
    cpu: float | None = None
    memory: float | None = None
    gpus: tuple[str, ...] = ()
    gpu: float | None = None
    gpu_memory: float | None = None
    progress: dict[int | None, ProcessProgress] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    silent: tuple[str, float, str] | None = None
    received: int = 0
    expected: int = 0
    exit_code: int | None = None
    signal: int | None = None
    end: str = ""
    reason: str = ""
    last_line: str = ""
    _output: LastLine = field(default_factory=LastLine, repr=False)

    @property
    def role(self) -> str:
        """The worker's role in the cluster, such as ``ps``."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def index(self) -> int:
        """The worker's index among the workers of its role."""
        index = self.name.rpartition("-")[2]
        return int(index) if index.isdecimal() else 0

    @property
    def doing(self) -> str:
        """The worker's stage if it is ready and the stage is known, else its phase."""
        return self.stage if self.phase == "ready" and self.stage else self.phase

    @property
    def doing_since(self) -> float:
        """Time when that stage or phase began, in seconds since the epoch."""
        return self.stage_since if self.phase == "ready" and self.stage else self.phase_since

    @property
    def rank_names(self) -> str:
        """The worker's ranks in short form.

        >>> WorkerView("worker-0", ranks=[0, 1, 2, 5, 7, 8]).rank_names
        'r0-2,5,7-8'
        """
        runs: list[list[int]] = []
        for rank in self.ranks:
            if runs and rank == runs[-1][-1] + 1:
                runs[-1] = [runs[-1][0], rank]
            else:
                runs.append([rank])
        return f"r{','.join('-'.join(map(str, run)) for run in runs)}" if runs else ""

    @property
    def natural(self) -> tuple[str, int, str]:
        """Sort key for the natural order of workers: ``worker-10`` after ``worker-9``."""
        return (self.role, self.index, self.name)

    @property
    def gpu_use(self) -> str:
        """Number of busy GPUs out of all, and GPU memory in use; only the number of GPUs if their use is unknown."""
        if not self.gpus:
            return ""
        if self.gpu is None:
            return str(len(self.gpus))
        return f"{self.gpu:.1f}/{len(self.gpus)}, {size(self.gpu_memory)}"

    @property
    def reported(self) -> list[ProcessProgress]:
        """The progress of each process that has reported any."""
        return [progress for progress in self.progress.values() if progress.has_begun]

    @property
    def slowest(self) -> ProcessProgress:
        """The progress of the process that is furthest behind, which stands for the whole worker."""
        if len(self.progress) == 1:
            return next(iter(self.progress.values()))
        return min(self.reported, key=ProcessProgress.order, default=NOTHING)

    @property
    def fraction(self) -> float | None:
        """Fraction of the work that is done, 0 to 1, and 1 once the worker has succeeded; None if it is unknown."""
        fraction = self.slowest.fraction
        return 1.0 if fraction is not None and self.status == "succeeded" else fraction

    @property
    def has_failed(self) -> bool:
        """True if the worker failed, timed out or was lost."""
        return self.status in FAILURES

    @property
    def is_coming(self) -> bool:
        """True until the worker's agent has connected."""
        return self.phase in ("requested", "scheduled")

    @property
    def waits_for(self) -> str:
        """The reason why the worker has not come yet; empty where that is not known, and once it has."""
        return self.reason if self.is_coming and not self.has_failed else ""

    @property
    def news(self) -> str:
        """The reason why the worker failed or has to wait; else the last line of its output."""
        return first_line(self.reason) if (self.has_failed or self.is_coming) and self.reason else self.last_line

    @property
    def rate(self) -> float | None:
        """Examples per second of all ranks of the worker together; None if unknown."""
        rates = [progress.rate for progress in self.progress.values() if progress.rate is not None]
        return sum(rates) if rates else None

    @property
    def sent(self) -> int | None:
        """Bytes that the worker's ranks have sent to others for training; None if none were sent or reported."""
        return sum(progress.bytes_sent or 0 for progress in self.progress.values()) or None

    def take_end(self, end: str) -> None:
        """Remember how a process ended, unless an earlier one of this worker has failed."""
        if self.end in ("", GOOD_END):
            self.end = end or self.end

    def enter(self, phase: str, when: float) -> None:
        """Move forward to a phase; do nothing if the worker is in that phase or past it."""
        if phase != self.phase and PHASES.index(phase) > PHASES.index(self.phase):
            self.phase, self.phase_since = phase, when
            self.entered[phase] = when

    def begin_again(self, when: float) -> None:
        """Go back to the phase ``ready``, as the worker's only process was started again after it had ended."""
        self.phase, self.phase_since = "ready", when
        self.entered.pop("done", None)
        self.exit_code = self.signal = None
        self.end = self.stage = ""
        self.listens = False

    def of_rank(self, rank: int | None) -> ProcessProgress:
        """Return the progress of a rank; beyond the first MAX_RANKS ranks, a new one that is not kept."""
        if rank not in self.progress:
            if len(self.progress) >= MAX_RANKS:
                return ProcessProgress()
            self.progress[rank] = ProcessProgress()
            self.ranks = sorted(rank for rank in self.progress if rank is not None)
        return self.progress[rank]

    def print(self, text: str) -> None:
        """Take some of the worker's output, and remember the last line that says something."""
        self.last_line = self._output.read(text)
