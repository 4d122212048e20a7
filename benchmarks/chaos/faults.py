"""The faults, and the verdict that Muster must reach on each."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.chaos.shapes import Shape, choose_shape, light

RAISED = (
    "ValueError", "KeyError", "ZeroDivisionError", "FileNotFoundError", "UnicodeDecodeError", "RecursionError",
    "Custom", "AssertionError", "MemoryError", "OSError", "StopIteration",
)  # fmt: skip
FATAL = (  # all Term and Core signals of signal(7), less those of MILD; in Python SIGINT is a KeyboardInterrupt
    "SIGABRT", "SIGALRM", "SIGBUS", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT", "SIGIO", "SIGKILL", "SIGPROF", "SIGPWR",
    "SIGQUIT", "SIGSEGV", "SIGSTKFLT", "SIGSYS", "SIGTERM", "SIGTRAP", "SIGUSR2", "SIGVTALRM", "SIGXCPU",
)  # fmt: skip
REAL_TIME = range(34, 65)  # fatal as well; 32 and 33 are reserved by glibc
MILD = (  # SIGUSR1 asks a rank of Muster's for its stack; Python ignores the next two, and the kernel the others
    "SIGUSR1", "SIGPIPE", "SIGXFSZ", "SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH",
)  # fmt: skip
NUMBERS = {"SIGIO": 29, "SIGPWR": 30, "SIGSTKFLT": 16}  # on the machines that Muster runs on, also for old Pythons
REACTIONS = ("raise", "eof", "wrapped", "framework", "truncated", "short", "abort", "exit", str(int(signal.SIGPIPE)))
FROM_OUTSIDE = ("send", "cut", "slow", "jump", "apart", "fill", "stop", "pull")
NOTHING = "nothing"
KILL = f"send {int(signal.SIGKILL)}"
STEP_SECONDS = 0.006  # approximate length of a step


@dataclass(frozen=True)
class Verdict:
    """The end that a run must have.

    Attributes:
        error: class of the error, or several with ``or`` between them; empty if the run must succeed, with ``NOTHING``
            among them if it may.
        victim: what the error must name: ``rank 1``, ``worker worker-1``, ``beside worker-1`` (a worker on its host),
            ``guard`` (any worker of this machine), ``launcher``, ``launcher and ranks that it lets go`` (the launcher
            or one of these ranks), or ``link 0 1`` (both ranks); empty for the fault's victim.
        facts: items that the error's ``failure`` must have.
    """

    error: str
    victim: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: for a fault that a rank causes itself, a kind of ``ranks.py``; for one from outside ``send SIGNAL``,
            ``cut``, ``slow``, ``jump SECONDS``, ``apart`` (the monotonic clocks of the workers), ``fill`` (the disk of
            the run's folder), ``stop`` (by the run's user) or ``pull`` (a host's cable).
        victim: ``link 0 1``, ``clock``, ``disk``, ``run``, ``rank 1``, ``agent worker-1``, ``guard``, ``launcher``,
            ``sshd worker-1``; on hosts ``guard worker-1``, ``login worker-1`` or ``cable worker-1``, which are those
            of the worker's host; ``container worker-1``.
        step: step at which a rank causes the fault: ``start`` is before it has met the others, ``end`` after the last.
        delay: seconds until a fault from outside, from the moment at which all ranks have met.
        moment: what the delay counts from instead: a phase of the run, or ``started``, the start of the victim.
        verdict: the end that the run must have.
    """

    kind: str
    victim: str
    verdict: Verdict
    step: int | str = 0
    delay: float = 0.0
    moment: str = ""

    @property
    def is_from_outside(self) -> bool:
        """True if the harness causes the fault, rather than a rank."""
        return self.kind.split()[0] in FROM_OUTSIDE

    def __str__(self) -> str:
        when = f"{self.delay:.2f} s after {self.moment or 'all met'}" if self.is_from_outside else f"at {self.step}"
        return f"{self.kind} in {self.victim} {when}"


@dataclass(frozen=True)
class Case:
    """A run and its faults; the same seed and number always give the same case.

    With ``restarts`` each fault is in an attempt of its own, the first fault in the first attempt.
    """

    number: int
    family: str
    shape: Shape
    topology: str
    reaction: str
    faults: tuple[Fault, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    platform: str = "local"
    restarts: int = 0

    @property
    def label(self) -> str:
        """The row of the table in which the case counts."""
        if self.restarts:
            return f"restarts: {self.family}"
        return self.family if self.platform == "local" else f"{self.platform}: {self.family}"


Made = tuple[tuple[Fault, ...], dict[str, Any]]
Maker = Callable[[random.Random, int, Shape], Made]


def make(
    seed: int, number: int, families: Sequence[str], strategies: Sequence[str], platforms: Sequence[str] = ("local",)
) -> Case:
    """Return the case of a seed and number."""
    dice = random.Random(f"{seed}-{number}")
    platform, turn = platforms[number % len(platforms)], number // len(platforms)
    shape, turn = choose_shape(dice, turn, strategies if platform in ON_THIS_MACHINE else light(strategies), seed)
    possible = [family for family in families if shape.allows(family) and family in families_of(platform)]
    family = possible[turn % len(possible)]
    rank = dice.randrange(shape.ranks)
    faults, options = families_of(platform)[family](dice, rank, shape)
    topology, reaction = dice.choice(shape.topologies), dice.choice(REACTIONS)
    options = {**options, **shape.options(options)}
    return Case(number, family, shape, topology, reaction, faults, options, platform)


def families_of(platform: str) -> Mapping[str, Maker]:
    """Return the families of faults that make sense on a platform."""
    if platform in ON_THIS_MACHINE:
        return FAMILIES
    elsewhere = {name: FAMILIES[name] for name in ELSEWHERE}
    return {**elsewhere, **ONLY_ON.get(platform, {})}


# -- in one rank ------------------------------------------------------------------------------------------------------


def _exception(dice: random.Random, rank: int, shape: Shape) -> Made:
    name = dice.choice(RAISED)
    said = "DivergedError" if name == "Custom" else name
    rank = shape.runs_script(rank)
    return (Fault(f"raise {name}", f"rank {rank}", _raised(rank, said), _step(dice)),), {}


def _exit(dice: random.Random, rank: int, shape: Shape) -> Made:
    how, status = dice.choice(["_exit", "exit", "exit-from-c", "exit-in-thread"]), dice.choice([1, 3, 7, 42, 255])
    rank = shape.runs_script(rank)
    verdict = Verdict("ScriptFailed", f"rank {rank}", {"kind": "exit", "exit_code": status})
    return (Fault(f"{how} {status}", f"rank {rank}", verdict, _step(dice)),), {}


def _signal(dice: random.Random, rank: int, shape: Shape) -> Made:
    number = dice.choice(REAL_TIME) if dice.random() < 0.2 else number_of(dice.choice(FATAL))
    by_itself = {signal.SIGSEGV: "crash", signal.SIGABRT: "abort"}
    if dice.random() < 0.3 and number in by_itself:
        kind, delay = by_itself[signal.Signals(number)], 0.0
    elif dice.random() < 0.5:
        kind, delay = f"signal {number}", 0.0
    else:
        kind, delay = f"send {number}", dice.uniform(0.0, 0.4)
    if not kind.startswith("send"):
        rank = shape.runs_script(rank)
    return (Fault(kind, f"rank {rank}", _killed(rank, number), _step(dice), delay),), {}


def _mild(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return a fault by a signal that ends no process."""
    number = number_of(dice.choice(MILD))
    return (Fault(f"send {number}", f"rank {rank}", Verdict(""), delay=dice.uniform(0.0, 0.4)),), {}


def number_of(name: str) -> int:
    """Return the number of a signal."""
    return NUMBERS.get(name) or int(getattr(signal, name))


def _hang(dice: random.Random, rank: int, shape: Shape) -> Made:
    kind = dice.choice(["hang", f"send {int(signal.SIGSTOP)}"])
    verdict = Verdict("RunStalled", f"rank {rank}", {"kind": "stalled", "others": []})
    step = dice.choice(
        ["end", *range(60)]
    )  # not "start": until the ranks have met, one that hangs cannot be told from those that wait for it
    return (Fault(kind, f"rank {rank}", verdict, step, dice.uniform(0.0, 0.3)),), {"stall_seconds": 2.0}


def _memory(dice: random.Random, rank: int, shape: Shape) -> Made:
    verdict = Verdict("WorkerOutOfMemory", f"worker {shape.worker(rank)}", {"kind": "memory"})
    return (Fault("memory", f"rank {rank}", verdict, _step(dice)),), {"memory": 0.3}


def _disk(dice: random.Random, rank: int, shape: Shape) -> Made:
    return (Fault("disk", f"rank {rank}", _raised(rank, "OSError"), _step(dice)),), {}


def _raised(rank: int, name: str) -> Verdict:
    return Verdict("ScriptFailed", f"rank {rank}", {"kind": "exception", "type": name})


def _killed(rank: int, number: int) -> Verdict:
    return Verdict("WorkerKilled", f"rank {rank}", {"kind": "signal", "signal": number})


def _step(dice: random.Random) -> int | str:
    moments: list[int | str] = ["start", "end", *[dice.randrange(60) for _ in range(6)]]
    return dice.choice(moments)


# -- in processes that are not ranks ----------------------------------------------------------------------------------


GUARD_GONE = "The process that guards the workers is gone. Its workers are ended."


def _lost(worker: str, error: str = "WorkerLost") -> Verdict:
    return Verdict(error, f"worker {worker}", {"kind": "lost"})


def _lost_with_guard(error: str = "WorkerLost") -> Verdict:
    return Verdict(error, "guard", {"kind": "lost", "message": GUARD_GONE})


def _launcher_ended(number: int) -> Verdict:
    if number == signal.SIGTERM:  # Open MPI's launcher then ends all ranks, in any order, and exits by itself
        return Verdict("LauncherFailed", "launcher and ranks that it lets go")
    return Verdict("LauncherFailed", "launcher", {"kind": "launcher", "signal": number})


def _agent(dice: random.Random, rank: int, shape: Shape) -> Made:
    worker = shape.worker(rank)
    return (Fault(KILL, f"agent {worker}", _lost(worker), delay=dice.uniform(0.0, 0.4)),), {}


def _guard(dice: random.Random, rank: int, shape: Shape) -> Made:
    return (Fault(KILL, "guard", _lost_with_guard(), delay=dice.uniform(0.0, 0.4)),), {}


def _launcher(dice: random.Random, rank: int, shape: Shape) -> Made:
    number = int(dice.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV]))
    return (Fault(f"send {number}", "launcher", _launcher_ended(number), delay=dice.uniform(0.0, 0.4)),), {}


def _sshd(dice: random.Random, rank: int, shape: Shape) -> Made:
    worker = shape.worker(rank)
    return (Fault(KILL, f"sshd {worker}", _lost(worker), delay=dice.uniform(0.0, 0.4)),), {}


def _stop(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return a stop of the run by its user."""
    return (Fault("stop", "run", Verdict("RunStopped"), delay=dice.uniform(0.0, 0.3)),), {}


def _guard_of_host(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return a kill of the guard of a host's workers, which is also the remote end of the login to the host."""
    worker = shape.worker(rank)
    gone = f"The process that guards its workers on {shape.host_of(worker)} has ended."
    verdict = Verdict("WorkerLost", f"beside {worker}", {"kind": "lost", "message": gone})
    return (Fault(KILL, f"guard {worker}", verdict, delay=dice.uniform(0.0, 0.4)),), {}


def _guard_of_service(dice: random.Random, rank: int, shape: Shape) -> Made:
    """The guard of a service's workers is killed: the session sees a workbench that takes all of them away.

    It gives them time to end, in which the training may come to its end.
    """
    verdict = Verdict(f"WorkerPreempted or WorkerLost or {NOTHING}", "guard")
    return (Fault(KILL, "guard", verdict, delay=dice.uniform(0.0, 0.4)),), {}


def _guard_of_containers(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return a kill of the guard that would remove the containers of a session that is gone; the session lives."""
    return (Fault(KILL, f"guard {shape.worker(rank)}", Verdict(""), delay=dice.uniform(0.0, 0.4)),), {}


def _container(dice: random.Random, rank: int, shape: Shape) -> Made:
    worker = shape.worker(rank)
    return (Fault(KILL, f"container {worker}", _lost(worker), delay=dice.uniform(0.0, 0.4)),), {}


def _login(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return an end of the login to a host, which Muster makes again.

    In half of the cases the host's workers reach the session through it (``tunnel``).
    """
    kill = f"send {int(getattr(signal, dice.choice(['SIGKILL', 'SIGTERM'])))}"
    tunnel = {"tunnel": True} if dice.random() < 0.5 else {}
    return (Fault(kill, f"login {shape.worker(rank)}", Verdict(""), delay=dice.uniform(0.0, 0.3)),), tunnel


def _cable(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return a fault that cuts a host off silently, for longer than its workers' lease."""
    worker = shape.worker(rank)
    verdict = Verdict("WorkerLost", f"beside {worker}", {"kind": "lost"})
    return (Fault("pull", f"cable {worker}", verdict, delay=dice.uniform(0.0, 0.3)),), {"lease_seconds": 3.0}


# -- around the ranks -------------------------------------------------------------------------------------------------


def _slow(dice: random.Random, rank: int, shape: Shape) -> Made:
    return (Fault("slow", _link(rank, shape), Verdict(""), delay=dice.uniform(0.01, 0.05)),), {}


def _cut(dice: random.Random, rank: int, shape: Shape) -> Made:
    verdict = Verdict("RunStalled", facts={"kind": "stalled"})
    return (Fault("cut", _link(rank, shape), verdict, delay=dice.uniform(0.0, 0.2)),), {"stall_seconds": 3.0}


def _link(rank: int, shape: Shape) -> str:
    """Return the link from a rank to the next one, which every topology has; the sender is first."""
    return f"link {rank} {(rank + 1) % shape.ranks}"


def _clock(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return a jump of the clocks of session and workers by up to a day, in half of the cases with a later failure."""
    jump = Fault(f"jump {dice.randrange(-86400, 86400)}", "clock", Verdict(""), delay=dice.uniform(0.0, 0.1))
    if dice.random() < 0.5:
        return (jump,), {}
    (fault,), _ = dice.choice([_exception, _exit])(dice, rank, shape)
    return (replace(fault, step="end"), replace(jump, verdict=fault.verdict)), {}


def _apart(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return a failure while each worker's monotonic clock, which times failures, is some seconds ahead."""
    (fault,), _ = dice.choice([_exception, _exit, _signal])(dice, rank, shape)
    return (fault, Fault(f"apart {dice.randrange(1 << 30)}", "clock", fault.verdict)), {}


def _full(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return a full disk of the run's folder, in two thirds of the cases with a failure as well."""
    verdict = Verdict("")
    faults: tuple[Fault, ...] = ()
    if dice.random() < 0.67:
        (fault,), _ = dice.choice([_exception, _exit, _signal])(dice, rank, shape)
        verdict, faults = fault.verdict, (fault,)
    return (*faults, Fault("fill", "disk", verdict)), {}


# -- several at once, or at an unusual moment -------------------------------------------------------------------------


def _two(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return two faults at about the same time, in two ranks, or in a rank and another process."""
    other = (rank + 1 + dice.randrange(shape.ranks - 1)) % shape.ranks
    in_ranks = [_exception, _exit, _signal]
    outside = [_agent, _guard, *([_launcher, _sshd] if shape.has_launcher else [])]
    makers = dice.choice(in_ranks), dice.choice(in_ranks if dice.random() < 0.5 else outside)
    (one,), _ = makers[0](dice, rank, shape)
    (two,), _ = makers[1](dice, other, shape)
    if one.victim == two.victim:  # a strategy in which only one process runs the script
        return (one,), {}
    if makers[1] in outside and not one.is_from_outside:
        step = dice.randrange(60)
        return (replace(one, step=step), replace(two, delay=step * STEP_SECONDS)), {}
    return (one, replace(two, step=one.step, delay=one.delay)), {}


def _start(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return a kill of a process while the cluster starts."""
    worker, lost = shape.worker(rank), "WorkerLost or LaunchRefused"
    choices = [
        Fault(KILL, f"rank {rank}", _killed(rank, signal.SIGKILL), moment="started"),
        Fault(KILL, f"agent {worker}", _lost(worker, lost), moment="started"),
        Fault(KILL, "guard", _lost_with_guard(lost), moment="connecting"),
        Fault(KILL, "guard", _lost_with_guard(lost), moment="starting"),
    ]
    if shape.has_launcher:
        launcher = Fault(KILL, "launcher", _launcher_ended(signal.SIGKILL))
        choices += [replace(launcher, moment="connecting"), replace(launcher, moment="starting")]
        choices.append(Fault(KILL, f"sshd {worker}", _lost(worker, lost), moment="starting"))
    return (replace(dice.choice(choices), delay=dice.choice([0.0, dice.uniform(0.0, 0.1)])),), {}


def _end(dice: random.Random, rank: int, shape: Shape) -> Made:
    """Return a kill of a process while the run ends: by itself, or by another fault, which must remain the cause."""
    victims = [f"rank {rank}", f"agent {shape.worker(rank)}", "guard"]
    victims += ["launcher", f"sshd {shape.worker(rank)}"] if shape.has_launcher else []
    late = Fault(KILL, dice.choice(victims), Verdict(""), moment="ending")
    late = replace(late, delay=dice.choice([0.0, dice.uniform(0.0, 0.05)]))
    if dice.random() < 0.5:
        return (late,), {}
    (fault,), _ = dice.choice([_exception, _exit, _signal])(dice, dice.randrange(shape.ranks), shape)
    return (fault, replace(late, verdict=fault.verdict)), {}


FAMILIES: dict[str, Maker] = {
    "exception": _exception,
    "exit": _exit,
    "signal": _signal,
    "mild signal": _mild,
    "two at once": _two,
    "hang": _hang,
    "memory": _memory,
    "disk": _disk,
    "agent": _agent,
    "guard": _guard,
    "start": _start,
    "end": _end,
    "slow link": _slow,
    "cut link": _cut,
    "clock": _clock,
    "clocks apart": _apart,
    "full logs": _full,
    "launcher": _launcher,
    "sshd": _sshd,
    "stop": _stop,
}
ON_THIS_MACHINE = ("local", "attacked")  # all strategies and families; on others those that make sense there
ELSEWHERE = ("exception", "exit", "signal", "stop", "agent", "guard")  # families for other platforms as well
ON_HOSTS: dict[str, Maker] = {"guard": _guard_of_host, "login": _login, "cable": _cable}
IN_CONTAINERS: dict[str, Maker] = {"guard": _guard_of_containers, "container": _container}
ONLY_ON: dict[str, dict[str, Maker]] = {
    "hosts": ON_HOSTS, "containers": IN_CONTAINERS, "served": {"guard": _guard_of_service},
}  # fmt: skip
EVERYWHERE = (*FAMILIES, *(name for name in (*ON_HOSTS, *IN_CONTAINERS) if name not in FAMILIES))
FOR_ROOT = ("cut link", "clocks apart", "full logs")  # these need network, time and mount namespaces
