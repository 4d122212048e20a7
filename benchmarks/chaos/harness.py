"""Run one case: start a real cluster, inject its faults, judge the error, and look for anything left behind."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import muster
from muster.agent import linux
from muster.errors import MusterError
from muster.events import Event

from benchmarks.chaos import surroundings
from benchmarks.chaos.faults import Case, Fault
from benchmarks.chaos.platforms import Here, child_of, platform_named
from benchmarks.chaos.surroundings import Clocks, kernel_time
from benchmarks.chaos.verdicts import is_right

SCRIPT = Path(__file__).with_name("ranks.py")
STEPS, PAUSE = 80, 0.005  # steps of a run without a fault, and seconds of sleep in each
AWAITED = ("send", "cut", "jump", "fill", "stop", "pull")
UP_SECONDS, END_SECONDS, GONE_SECONDS = 120.0, 120.0, 10.0
EXEC_SECONDS = 0.5  # time that a process may take to execute another program


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    Attributes:
        is_right: whether the right process was named, for the right reason.
        error, message: class and message of the error that the run ended with; empty if there was none.
        told_after: seconds from the fault until the run began to end; None if either time is not known.
        gone_after: seconds from the fault until nothing was left; None if the time of the fault is not known.
        left: processes, files and ports that were left behind.
        run_dir: folder of the run, or its id; it is kept if the outcome is not right or something was left.
    """

    is_right: bool
    error: str
    message: str
    told_after: float | None
    gone_after: float | None
    left: tuple[str, ...]
    run_dir: str


class Stage:
    """The surroundings of a case's run: its folders, the ids of its processes, and the means to strike them.

    Attributes:
        pids: process ids by victim, such as ``rank 1``, as the agents report them.
        hosts: addresses of the workers, by name.
        ending_at, struck_at: when the run began to end, and when a fault struck, by the kernel's wall clock.
        awaited: number of faults from outside that the ranks must wait for before they end.
        is_over: whether the run has ended.
    """

    def __init__(self, case: Case, platform: Here, folder: Path, home: Path, clocks: Clocks | None = None) -> None:
        self.case = case
        self.platform = platform
        self.folder = folder
        self.home = home
        self.cluster: muster.Cluster | None = None
        self.pids: dict[str, int] = {}
        self.hosts: dict[str, str] = {}
        self.ending_at: float | None = None
        self.struck_at: float | None = None
        self.clocks = (clocks or Clocks(folder)) if case.family in ("clock", "clocks apart") else None
        self.cut: tuple[int, int] | None = None
        self.is_over = False
        self.awaited = sum(
            fault.is_from_outside and fault.kind.split()[0] in AWAITED and not fault.moment for fault in case.faults
        )
        self._moments: dict[str, threading.Event] = collections.defaultdict(threading.Event)

    def on_event(self, event: Event) -> None:
        """Note the ids of processes, and the phases of the run."""
        if event.kind == "process_started":
            self._started(f"rank {self.case.shape.number(event.worker or '', event.data['rank'])}", event.data["pid"])
        elif event.kind == "worker_ready":
            self.hosts[event.worker or ""] = event.data["host"]
            self._started(f"agent {event.worker}", event.data["pid"])
        elif event.kind == "run_phase":
            if event.data["phase"] == "ending":
                self.ending_at = kernel_time()
            self._moments[event.data["phase"]].set()

    def _started(self, victim: str, pid: int) -> None:
        self.pids[victim] = pid
        self._moments[f"started {victim}"].set()

    def are_ready(self) -> bool:
        """Return whether all ranks have met."""
        return len(list(self.folder.glob("ready-*[0-9]"))) == self.case.shape.ready

    def strike(self, fault: Fault) -> None:
        """Cause a fault from outside, once its moment has come: at another one it would be another fault."""
        moment = self._moments[f"started {fault.victim}" if fault.moment == "started" else fault.moment]
        is_time = moment.is_set if fault.moment else self.are_ready
        has_come = wait(lambda: self.is_over or is_time(), UP_SECONDS + END_SECONDS)
        time.sleep(fault.delay)
        if self.is_over or not has_come:
            return
        try:
            self._strike(fault)
        finally:
            self.awaited -= not fault.moment
            self.all_struck()

    def all_struck(self) -> None:
        """Let the ranks go on, once no more faults from outside are awaited."""
        if not self.awaited:
            (self.folder / "all-struck").touch()

    def _strike(self, fault: Fault) -> None:
        what, _, argument = fault.kind.partition(" ")
        if what == "jump" and self.clocks:
            self.clocks.jump(int(argument))
        elif what == "fill":
            surroundings.fill_disk(self.home)
        elif what == "cut":
            self.struck_at = kernel_time()
            self.cut = (int(fault.victim.split()[1]), int(fault.victim.split()[2]))
            surroundings.cut_link(*self.cut)
        elif what == "pull":
            self.struck_at = kernel_time()
            self.platform.pull_cable(self.hosts[fault.victim.split()[1]])
        elif what == "stop":
            wait(lambda: self.cluster is not None, UP_SECONDS)  # the ranks have met; run_cluster is about to return
            self.struck_at = kernel_time()
            if self.cluster is not None:
                self.cluster.stop()
        elif fault.moment != "ending" or fault.verdict.error == "":
            self._send(fault, int(argument))
        else:  # the run is ending by another fault, from which the time counts
            self._send(fault, int(argument), is_first=False)

    def _send(self, fault: Fault, signum: int, is_first: bool = True) -> None:
        with contextlib.suppress(ProcessLookupError, StopIteration, KeyError):  # the process has ended already
            pid = self.pid_of(fault.victim)
            if is_first and fault.moment != "ending":
                self.struck_at = min(kernel_time(), self.struck_at or float("inf"))
            os.kill(pid, signum)

    def pid_of(self, victim: str) -> int:
        """Return the id of a victim's process; raise ProcessLookupError, StopIteration or KeyError if there is none."""
        what, _, which = victim.partition(" ")
        if victim in self.pids:
            worker = self.case.shape.worker(int(which)) if what == "rank" else which
            return self.platform.pid(self.pids[victim], self.hosts[worker])
        if what in ("guard", "login", "container"):
            find: Callable[[str], int] = getattr(self.platform, what)
            return find(self.hosts.get(which, ""))
        if victim == "launcher":
            return self._launcher()
        return child_of(self.pids[f"agent {which}"], "sshd_config")

    @staticmethod
    def _launcher() -> int:
        """Return the id of the launcher's process. It has no command line for a moment, while it executes a program."""
        deadline = time.monotonic() + EXEC_SECONDS
        while True:
            try:
                return child_of(os.getpid(), "horovod", "mpi_rank.py", "exec_launcher.py")
            except StopIteration:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def fault_time(self) -> float | None:
        """Return when the first fault struck, by the kernel's wall clock, or None if that is not known."""
        noted = [path.stat().st_mtime for path in self.folder.glob("struck-*[0-9]")]
        return min([*noted, *([self.struck_at] if self.struck_at else [])], default=None)


Live = Callable[["Stage"], Outcome]


def run(
    case: Case, keep: Path, live: Live | None = None, staged: type[Stage] = Stage, clocks: Clocks | None = None
) -> Outcome:
    """Run a case in folders of its own, and return its outcome.

    Args:
        keep: folder for the records of cases that are not right or leave something behind.
        live: function that makes the run on a stage; None for ``run_once``.
        staged: class of the stage that ``live`` is called with.
        clocks: the simulated clocks that this process itself sees; None for the real ones.
    """
    base = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    for name in ("tmp", "home"):
        (base / name).mkdir()
    platform = platform_named(case.platform)
    before = {name: os.environ.get(name) for name in ("MUSTER_HOME", "TMPDIR", "MUSTER_DASHBOARD")}
    os.environ.update(MUSTER_HOME=str(base / "home"), TMPDIR=str(base / "tmp"), MUSTER_DASHBOARD="off")
    tempfile.tempdir = str(base / "tmp")
    has_small_disk = case.family == "full logs"
    if has_small_disk:
        surroundings.mount_small_disk(base / "home")
    outcome = None
    try:
        stage = staged(case, platform, platform.make_folder(base), base / "home", clocks)
        apart = next((fault.kind.split()[1] for fault in case.faults if fault.kind.startswith("apart")), "")
        with stage.clocks.shown(apart) if stage.clocks else contextlib.nullcontext():
            outcome = (live or run_once)(stage)
        if stage.cut:
            surroundings.repair_link(*stage.cut)
    finally:
        if clocks:
            clocks.set_right()
        tempfile.tempdir = None
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        if has_small_disk:
            surroundings.empty_disk(base / "home")
        if outcome is None:  # the harness itself has failed
            shutil.rmtree(base, ignore_errors=True)
    if outcome.is_right and not outcome.left:
        shutil.rmtree(base)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        (base / "case.json").write_text(json.dumps({"case": f"{case}", "outcome": asdict(outcome)}, indent=1))
        shutil.rmtree(keep / f"{case.number}", ignore_errors=True)
        shutil.move(str(base), str(keep / f"{case.number}"))
    return outcome


def run_once(stage: Stage) -> Outcome:
    """Run ranks that send each other blocks, cause the case's faults, and return the outcome."""
    case = stage.case
    own = {
        fault.victim.split()[1]: {"kind": fault.kind, "step": fault.step}
        for fault in case.faults
        if not fault.is_from_outside
    }
    orders = {
        "folder": str(stage.folder),
        "topology": case.topology,
        "steps": STEPS,
        "pause": PAUSE,
        "reaction": case.reaction,
        "faults": own,
    }
    slow = [fault for fault in case.faults if fault.kind == "slow"]
    orders["awaits"] = stage.awaited > 0
    orders["has_addresses"] = case.platform in ("hosts", "containers")
    orders["relayed"] = [[int(rank) for rank in fault.victim.split()[1:]] for fault in slow]
    for fault in slow:
        source, target = map(int, fault.victim.split()[1:])
        surroundings.SlowLink(stage.folder, source, target, fault.delay).start()
    outside = [
        fault for fault in case.faults if fault.is_from_outside and fault.kind.split()[0] not in ("slow", "apart")
    ]
    strikers = [threading.Thread(target=stage.strike, args=(fault,), daemon=True) for fault in outside]
    error: MusterError | None = None
    run_dir = Path()
    with stage.platform.used(case) as options:
        try:
            for striker in strikers:
                striker.start()
            stage.cluster = muster.run_cluster(
                worker_script=SCRIPT,
                args=[json.dumps(orders)],
                wait=False,
                timeout_seconds=UP_SECONDS,
                run_timeout=END_SECONDS,
                observers=[stage.on_event],
                **case.options,
                **options,
            ).cluster
            run_dir = stage.cluster.run_dir
            stage.cluster.wait()
        except MusterError as raised:
            error = raised
        stage.platform.repair()
        left = what_is_left(run_dir.name or newest_run(), stage.platform)
        gone_at = kernel_time()
        stage.is_over = True
        for striker in strikers:
            striker.join(GONE_SECONDS)
        struck = stage.fault_time()
    return Outcome(
        is_right=is_right(case, error),
        error=type(error).__name__ if error else "",
        message=error.message if error else "",
        told_after=stage.ending_at - struck if stage.ending_at and struck else None,
        gone_after=gone_at - struck if struck else None,
        left=tuple(left),
        run_dir=str(run_dir),
    )


def newest_run() -> str:
    """Return the id of the run in this process's ``MUSTER_HOME``, or an empty string if there is none."""
    return next((path.name for path in Path(os.environ["MUSTER_HOME"]).glob("runs/*")), "")


def what_is_left(run: str, platform: Here) -> list[str]:
    """Return what is left of a run after ``GONE_SECONDS``, here and on the platform; end its processes here.

    What is looked for here are its processes and scratch folders.
    """

    def left_here() -> list[str]:
        mine = os.getpid()
        pids = [pid for pid in linux.marked("MUSTER_RUN_ID", run) if pid != mine]
        folders = [str(path) for path in Path(tempfile.gettempdir()).glob("muster-*")]
        return [f"process {pid}" for pid in pids] + folders

    wait(lambda: not (left_here() or platform.left()), GONE_SECONDS)
    found = left_here() + platform.left()
    for name in found:
        if name.startswith("process "):
            linux.kill(int(name.split()[1]), signal.SIGKILL)
    return found


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
