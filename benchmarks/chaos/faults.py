"""The faults, and the verdict that each of them is due."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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
    """The end that the run must have.

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
        kind: as ``ranks.py`` knows it, or from outside ``send SIGNAL``, ``cut``, ``slow``, ``jump SECONDS``.
        victim: ``link 0 1``, ``clock``, ``rank 1``, ``agent worker-1``, ``guard``, ``launcher``, ``sshd worker-1``.
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
        """True if the harness does it, rather than the rank itself."""
        return self.kind.split()[0] in ("send", "cut", "slow", "jump")


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
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.workers * self.slots


def make(seed: int, number: int, families: tuple[str, ...], strategies: tuple[str, ...]) -> Case:
    """The case of that number."""
    dice = random.Random(f"{seed}-{number}")
    strategy = strategies[dice.randrange(len(strategies))]
    possible = [family for family in families if family not in UNDER_MPI or strategy != "processes"]
    family = possible[number % len(possible)]
    workers, slots = dice.choice([(2, 1), (3, 1), (4, 1), (2, 2)])
    rank = dice.randrange(workers * slots)
    faults, options = FAMILIES[family](dice, rank, slots, workers * slots)
    topology, reaction = dice.choice(TOPOLOGIES), dice.choice(REACTIONS)
    if strategy == "horovod":
        topology = "allreduce"
    return Case(number, family, strategy, topology, workers, slots, reaction, faults, options)


Made = tuple[tuple[Fault, ...], dict[str, float]]


def _exception(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
    name = dice.choice(RAISED)
    said = "DivergedError" if name == "Custom" else name
    return (Fault(f"raise {name}", f"rank {rank}", Verdict("ScriptFailed", f"rank {rank}", said), _step(dice)),), {}


def _exit(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
    how, status = dice.choice(["_exit", "exit", "exit-from-c", "exit-in-thread"]), dice.choice([1, 3, 7, 42, 255])
    verdict = Verdict("ScriptFailed", f"rank {rank}", f"exit status {status}")
    return (Fault(f"{how} {status}", f"rank {rank}", verdict, _step(dice)),), {}


def _signal(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
    name = dice.choice(FATAL)
    number = int(getattr(signal, name))
    if dice.random() < 0.3 and name in ("SIGSEGV", "SIGABRT"):
        kind, delay = {"SIGSEGV": "crash", "SIGABRT": "abort"}[name], 0.0
    elif dice.random() < 0.5:
        kind, delay = f"signal {number}", 0.0
    else:
        kind, delay = f"send {number}", dice.uniform(0.0, 0.4)
    verdict = Verdict("WorkerKilled", f"rank {rank}", f"signal {number} ({name})")
    return (Fault(kind, f"rank {rank}", verdict, _step(dice), delay),), {}


def _two(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
    """Two faults in two ranks at about the same time."""
    other = (rank + 1 + dice.randrange(ranks - 1)) % ranks
    make = dice.choice([_exception, _exit, _signal]), dice.choice([_exception, _exit, _signal])
    (one,), _ = make[0](dice, rank, slots, ranks)
    (two,), _ = make[1](dice, other, slots, ranks)
    return (one, replace(two, step=one.step, delay=one.delay)), {}


def _hang(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
    kind = dice.choice(["hang", f"send {int(signal.SIGSTOP)}"])
    verdict = Verdict("RunStalled", f"rank {rank}", "no progress")
    step = dice.choice(
        ["end", *range(60)]
    )  # before the ranks have met nothing tells one that waits from one that hangs
    return (Fault(kind, f"rank {rank}", verdict, step, dice.uniform(0.0, 0.3)),), {"stall_seconds": 2.0}


def _memory(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
    verdict = Verdict("WorkerOutOfMemory", f"worker-{rank // slots}", "GB of memory")
    return (Fault("memory", f"rank {rank}", verdict, _step(dice)),), {"memory": 0.3}


def _disk(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
    verdict = Verdict("ScriptFailed", f"rank {rank}", "No space left on device")
    return (Fault("disk", f"rank {rank}", verdict, _step(dice)),), {}


def _outside(victim: str, error: str, words: str, signals: tuple[str, ...] = ("SIGKILL",)) -> Callable[..., Made]:
    """Return a maker of kills of something that is no rank; ``{worker}`` stands for a worker's name."""

    def make(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
        worker = f"worker-{rank // slots}"
        number = int(getattr(signal, dice.choice(signals)))
        named = worker if "{worker}" in victim else ""
        verdict = Verdict(error, named, words.format(worker=worker))
        delay = dice.uniform(0.0, 0.4)
        return (Fault(f"send {number}", victim.format(worker=worker), verdict, delay=delay),), {}

    return make


def _step(dice: random.Random) -> int | str:
    moments: list[int | str] = ["start", "end", *[dice.randrange(60) for _ in range(6)]]
    return dice.choice(moments)


def _two_ranks(dice: random.Random, rank: int, ranks: int) -> str:
    """Two ranks between which there is a link in every topology, the sender first."""
    return f"link {rank} {(rank + 1) % ranks}"


def _slow(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
    return (Fault("slow", _two_ranks(dice, rank, ranks), Verdict(""), delay=dice.uniform(0.01, 0.05)),), {}


def _cut(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
    verdict = Verdict("RunStalled", words="the network between them is cut")
    delay = dice.uniform(0.0, 0.2)
    return (Fault("cut", _two_ranks(dice, rank, ranks), verdict, delay=delay),), {"stall_seconds": 3.0}


def _clock(dice: random.Random, rank: int, slots: int, ranks: int) -> Made:
    """The clocks of all workers are set, by up to a day; in half of the cases something fails after that."""
    jump = Fault(f"jump {dice.randrange(-86400, 86400)}", "clock", Verdict(""), delay=dice.uniform(0.0, 0.1))
    if dice.random() < 0.5:
        return (jump,), {}
    (fault,), _ = dice.choice([_exception, _exit])(dice, rank, slots, ranks)
    return (replace(fault, step="end"), replace(jump, verdict=fault.verdict)), {}


FAMILIES: dict[str, Callable[..., Made]] = {
    "exception": _exception,
    "exit": _exit,
    "signal": _signal,
    "two at once": _two,
    "hang": _hang,
    "memory": _memory,
    "disk": _disk,
    "agent": _outside("agent {worker}", "WorkerLost", "{worker} was lost"),
    "guard": _outside("guard", "WorkerLost", "guards the workers"),
    "slow link": _slow,
    "cut link": _cut,
    "clock": _clock,
    "launcher": _outside("launcher", "DriverFailed", "launcher", ("SIGKILL", "SIGTERM", "SIGSEGV")),
    "sshd": _outside("sshd {worker}", "WorkerLost", "{worker} was lost"),
}
UNDER_MPI = ("launcher", "sshd")
