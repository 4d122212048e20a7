"""State of one worker right now, as far as the events have told."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from muster.dashboard.progress import ProcessProgress
from muster.dashboard.text import first_line, size
from muster.text.cleaning import clean

MAX_RANKS = 64  # of one worker; those beyond are left out
MAX_LINE = 500  # characters of a worker's last line
MARK = re.compile(r"--- attempt \d+ ---")  # what no script has printed
FINAL = frozenset({"succeeded", "failed", "stopped", "ended", "timedout", "lost"})
FAILURES = frozenset({"failed", "timedout", "lost"})
GOOD_END = "exit 0"
NOTHING = ProcessProgress()
PHASES = ("requested", "scheduled", "connected", "ready", "training", "done")


@dataclass
class WorkerView:
    """One worker.

    Attributes:
        phase: what it is at, one of ``PHASES``. It only moves forward, unless its process is started again by itself.
        stage: what its process is at before its first step, such as ``importing tensorflow``; empty where unknown.
        listens: whether its process, a server, has begun to.
        entered: when it came to each phase that it has been in.
        cpu: cores that it keeps busy.
        memory: bytes that it uses.
        gpus: names of the devices that it may use.
        gpu: how many of them are busy.
        gpu_memory: bytes of their memory that are in use.
        progress: how far each of its ranks has come; under None that of a worker without ranks.
        ranks: the ranks that run on it, in order.
        received, expected: bytes of the project that have come to it, and that are to come.
        end: how its process ended, such as ``exit 1``; of several ranks the first that failed. Empty where Muster
            stopped it, which says nothing of how it fared.
        raised: type of the exception that its script raised first.
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
    received: int = 0
    expected: int = 0
    exit_code: int | None = None
    signal: int | None = None
    end: str = ""
    raised: str = ""
    reason: str = ""
    last_line: str = ""
    _unfinished: str = field(default="", repr=False)

    @property
    def role(self) -> str:
        """Its role in the cluster, such as ``ps``."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def index(self) -> int:
        """Its index among those of its role."""
        index = self.name.rpartition("-")[2]
        return int(index) if index.isdecimal() else 0

    @property
    def doing(self) -> str:
        """Its stage or phase, as exactly as is known."""
        return self.stage if self.phase == "ready" and self.stage else self.phase

    @property
    def doing_since(self) -> float:
        """Time of the change to this stage or phase, in seconds since the epoch."""
        return self.stage_since if self.phase == "ready" and self.stage else self.phase_since

    @property
    def rank_names(self) -> str:
        """Its ranks in short.

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
        """Sort key that orders workers as people count: ``worker-10`` after ``worker-9``."""
        return (self.role, self.index, self.name)

    @property
    def gpu_use(self) -> str:
        """Busy GPUs of those it has, and GPU memory in use; the number of GPUs where the use is unknown."""
        if not self.gpus:
            return ""
        if self.gpu is None:
            return str(len(self.gpus))
        return f"{self.gpu:.1f}/{len(self.gpus)}, {size(self.gpu_memory)}"

    @property
    def told(self) -> list[ProcessProgress]:
        """The progress of each of its processes that has told how far it is."""
        return [progress for progress in self.progress.values() if progress.has_begun]

    @property
    def slowest(self) -> ProcessProgress:
        """The progress of its process that is furthest back, of those that have told; it stands for the worker."""
        if len(self.progress) == 1:
            return next(iter(self.progress.values()))
        return min(self.told, key=ProcessProgress.order, default=NOTHING)

    @property
    def fraction(self) -> float | None:
        """The part of its work that is done, 0 to 1, all of it once it has succeeded; None where it has not told."""
        fraction = self.slowest.fraction
        return 1.0 if fraction is not None and self.status == "succeeded" else fraction

    @property
    def has_failed(self) -> bool:
        """True if it ended, and not as it was meant to."""
        return self.status in FAILURES

    @property
    def is_coming(self) -> bool:
        """True as long as its agent has not been heard of."""
        return self.phase in ("requested", "scheduled")

    @property
    def news(self) -> str:
        """Reason of its failure, or what it waits for; else its last line."""
        return first_line(self.reason) if (self.has_failed or self.is_coming) and self.reason else self.last_line

    @property
    def ending(self) -> str:
        """End of its process, such as ``exit 1``, or what its script had raised; empty where Muster stopped it."""
        return self.raised or self.end if self.end in ("", GOOD_END) else self.end

    @property
    def rate(self) -> float | None:
        """Examples per second, of all its ranks together."""
        rates = [progress.rate for progress in self.progress.values() if progress.rate is not None]
        return sum(rates) if rates else None

    @property
    def sent(self) -> int | None:
        """Bytes that its ranks have sent to the others for training; None where they have sent or told nothing."""
        return sum(progress.bytes_sent or 0 for progress in self.progress.values()) or None

    def enter(self, phase: str, when: float) -> None:
        """Come to a phase, unless it is in it already or past it."""
        if phase != self.phase and PHASES.index(phase) > PHASES.index(self.phase):
            self.phase, self.phase_since = phase, when
            self.entered[phase] = when

    def begin_again(self, when: float) -> None:
        """Have its one process, which had ended, run again."""
        self.phase, self.phase_since = "ready", when
        self.entered.pop("done", None)
        self.exit_code = self.signal = None
        self.end = self.stage = ""
        self.listens = False

    def of_rank(self, rank: int | None) -> ProcessProgress:
        """The progress of one of its ranks; of the first MAX_RANKS, that is."""
        if rank not in self.progress:
            if len(self.progress) >= MAX_RANKS:
                return ProcessProgress()
            self.progress[rank] = ProcessProgress()
            self.ranks = sorted(rank for rank in self.progress if rank is not None)
        return self.progress[rank]

    def print(self, text: str) -> None:
        """Remember the last line of what it printed that has a letter or a digit."""
        lines = re.split(r"[\r\n]+", self._unfinished + text[-4 * MAX_LINE :])
        self._unfinished = lines[-1][-MAX_LINE:]
        shown = next((line for line in reversed(lines) if any(map(str.isalnum, line)) and not MARK.match(line)), None)
        if shown is not None:
            self.last_line = clean(shown).expandtabs(4).strip()[:MAX_LINE]
