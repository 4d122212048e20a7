"""The faults, and the verdict that each of them is due."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

RAISED = (
    "ValueError", "KeyError", "ZeroDivisionError", "FileNotFoundError", "UnicodeDecodeError", "RecursionError",
    "Custom", "AssertionError", "MemoryError", "OSError", "StopIteration",
)  # fmt: skip
FATAL = (
    "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGKILL", "SIGTERM", "SIGQUIT", "SIGHUP", "SIGSYS", "SIGTRAP",
    "SIGXCPU", "SIGUSR2", "SIGALRM",
)  # fmt: skip
REACTIONS = ("raise", "eof", "wrapped", "framework", "truncated", "short", "abort", "exit", str(int(signal.SIGPIPE)))
TOPOLOGIES = ("ring", "all")


@dataclass(frozen=True)
class Verdict:
    """What the run must end with.

    Attributes:
        error: class of the error; empty where the run must succeed.
        victim: the rank, or what else, that must be named.
        words: what the message must contain.
    """

    error: str
    victim: str = ""
    words: str = ""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: as ``ranks.py`` knows it, or ``send SIGNAL`` for one that comes from outside.
        victim: ``rank 1``, ``agent worker-1``, ``guard``, ``launcher``, ``sshd worker-1``.
        step: when, for what a rank does itself; ``start`` is before it has met the others, ``end`` when all is done.
        delay: seconds after all have met, for what comes from outside.
        verdict: what must come of it.
    """

    kind: str
    victim: str
    verdict: Verdict
    step: int | str = 0
    delay: float = 0.0

    @property
    def is_from_outside(self) -> bool:
        """Whether the harness does it, rather than the rank itself."""
        return self.kind.startswith("send ")


@dataclass(frozen=True)
class Case:
    """A run and what goes wrong in it; the same for the same seed and number."""

    number: int
    family: str
    strategy: str
    topology: str
    workers: int
    slots: int
    reaction: str
    faults: tuple[Fault, ...]
    options: Mapping[str, float] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.workers * self.slots


def make(seed: int, number: int, families: tuple[str, ...], strategies: tuple[str, ...]) -> Case:
    """The case of that number."""
    dice = random.Random(f"{seed}-{number}")
    family = families[number % len(families)]
    strategy = dice.choice(strategies)
    workers, slots = dice.choice([(2, 1), (3, 1), (4, 1), (2, 2)])
    rank = dice.randrange(workers * slots)
    fault, options = FAMILIES[family](dice, rank, rank // slots)
    return Case(
        number, family, strategy, dice.choice(TOPOLOGIES), workers, slots, dice.choice(REACTIONS), (fault,), options
    )


def _exception(dice: random.Random, rank: int, worker: int) -> tuple[Fault, dict[str, float]]:
    name = dice.choice(RAISED)
    said = "DivergedError" if name == "Custom" else name
    return Fault(f"raise {name}", f"rank {rank}", Verdict("ScriptFailed", f"rank {rank}", said), _step(dice)), {}


def _exit(dice: random.Random, rank: int, worker: int) -> tuple[Fault, dict[str, float]]:
    how, status = dice.choice(["_exit", "exit", "exit-from-c", "exit-in-thread"]), dice.choice([1, 3, 7, 42, 255])
    verdict = Verdict("ScriptFailed", f"rank {rank}", f"exit status {status}")
    return Fault(f"{how} {status}", f"rank {rank}", verdict, _step(dice)), {}


def _signal(dice: random.Random, rank: int, worker: int) -> tuple[Fault, dict[str, float]]:
    name = dice.choice(FATAL)
    number = int(getattr(signal, name))
    if dice.random() < 0.3 and name in ("SIGSEGV", "SIGABRT"):
        kind, delay = {"SIGSEGV": "crash", "SIGABRT": "abort"}[name], 0.0
    elif dice.random() < 0.5:
        kind, delay = f"signal {number}", 0.0
    else:
        kind, delay = f"send {number}", dice.uniform(0.0, 0.4)
    verdict = Verdict("WorkerKilled", f"rank {rank}", f"signal {number} ({name})")
    return Fault(kind, f"rank {rank}", verdict, _step(dice), delay), {}


def _step(dice: random.Random) -> int | str:
    return dice.choice(["start", "end", *[dice.randrange(60) for _ in range(6)]])


FAMILIES = {"exception": _exception, "exit": _exit, "signal": _signal}
