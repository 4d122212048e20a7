"""A place of its own for a test that does harm: run clusters there, find their processes, see what is left of them.

A run may live in this process (:meth:`Scene.start`) or in a notebook, a process of its own (:meth:`Scene.notebook`).
Both ways its journal tells where everything is.

Workers are on this machine; with ``make elsewhere`` those of tests marked ``anywhere`` are on hosts and in containers
of Podman's as well, and, where an engine's own word for an end counts, of Docker's. Their processes are this
machine's, too, under other ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.agent import linux
from muster.events import Event
from muster.platforms import kept
from muster.records import lookup, runs
from muster.run.address import ClusterAddress
from muster.run.cluster import Cluster
from muster.run.milestones import Milestones
from muster.run.orchestrator import Orchestrator
from muster.runtime.background import background_loop, in_thread

from tests.engines import HOSTS_AND_CONTAINERS, SHARING_NOTHING
from tests.plain import Plain
from tests.support import command_line, environment, eventually, is_gone

PROMPT = 15.0  # seconds that noticing a fault may take beside other tests; usually it takes a third of a second
GONE = 8.0  # seconds that everything may take to be gone; usually it takes some tenths
GONE_ELSEWHERE = 60.0
SLEEP = "import time; print('ready', flush=True); time.sleep(600)"
MPI_DAEMONS = ("orted", "hydra_pmi_proxy")
POOL = "between two runs of a pool"
HERE = ["here", pytest.param(POOL, marks=pytest.mark.elsewhere)]
anywhere = pytest.mark.parametrize("scene", [*HERE, *HOSTS_AND_CONTAINERS], indirect=True)
anywhere_and_on_docker = pytest.mark.parametrize("scene", [*HERE, *SHARING_NOTHING], indirect=True)
# Fails where it finds files of another run, or what that has changed in its processes.
LOOKS = """
import numpy
import os, tempfile

assert not os.listdir(tempfile.gettempdir())
assert "LEFT" not in os.environ and not hasattr(numpy, "left")
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


class Scene:
    """One test's working directory, home and temporary folder.

    Args:
        folder: the working directory, which is also the current one.
        temp: where scratch folders go. Its path is short, and no other test uses it.
    """

    def __init__(self, folder: Path, temp: Path) -> None:
        self.folder = folder
        self.temp = temp
        self.home = Path(os.environ["MUSTER_HOME"])
        self._seen: set[tuple[int, int]] = set()
        self._known: dict[tuple[str | None, int], int] = {}  # ids here, by worker and its own id
        self._notebooks: list[Notebook] = []
        self.is_pooled = False

    # -- making something happen --------------------------------------------------------------------------------------

    def script(self, text: str, name: str = "train.py") -> str:
        """Write a script into the working directory; its name."""
        text = textwrap.dedent(text)
        if self.is_pooled and text.startswith(("import ", "from ", "\nimport ", "\nfrom ")):
            text = "import numpy; " + text  # so that its rank is a fork of the template; no line gets another number
        (self.folder / name).write_text(text)
        return name

    def start(self, script: str = SLEEP, n_workers: int = 2, **options: Any) -> Cluster:
        """A cluster in this process that runs this text and is up. Without a strategy each worker runs the script."""
        if self.is_pooled and kept.shared().warmth["state"] == "none":
            self._see_another_run()
        options.setdefault("strategy", Plain())
        address: ClusterAddress = muster.run_cluster(
            n_workers, worker_script=self.script(script), wait=False, **options
        )
        return address.cluster

    def run(self, script: str, n_workers: int = 2, **options: Any) -> Cluster:
        """The same, until it has ended. Raises what went wrong."""
        cluster = self.start(script, n_workers, **options)
        cluster.wait()
        return cluster

    def notebook(self, cell: str, **variables: str) -> Notebook:
        """A session in a process (and process group) of its own, which runs this cell and ends."""
        notebook = Notebook(self, textwrap.dedent(cell), variables)
        self._notebooks.append(notebook)
        return notebook

    def fake_sshd(self, then: str = "exec sleep 600") -> str:
        """An sshd that never listens, so that no worker gets ready; its path."""
        path = self.folder / "sshd"
        path.write_text(f'#!/bin/sh\n[ "$1" = -V ] && exit 0\n{then}\n')
        path.chmod(0o755)
        return str(path)

    # -- what the journal knows ---------------------------------------------------------------------------------------

    @property
    def recorded(self) -> runs.Run:
        """The newest run."""
        return lookup.open_run()

    def events(self, kind: str, worker: str | None = None) -> list[Event]:
        """Return the events in the newest run's journal so far."""
        found = self.recorded.events() if lookup.list_runs() else iter(())
        return [event for event in found if event.kind == kind and worker in (None, event.worker)]

    def wait_for_phase(self, phase: str) -> None:
        """Wait until the run has reached a phase; in training, until every script is ready."""
        eventually(lambda: phase in [event.data["phase"] for event in self.events("run_phase")], f"{phase} begins")
        if phase == "training":
            self.wait_for_output()

    def wait_for_output(self, *workers: str) -> None:
        """Wait until the scripts of these workers (none: of all) have said that they are ready."""

        def are_ready() -> bool:
            logs = [
                self.recorded.run_dir / "logs" / f"{worker}.log" for worker in workers or self.recorded.worker_names
            ]
            return bool(logs) and all(log.exists() and b"ready" in log.read_bytes() for log in logs)

        eventually(are_ready, "the scripts run", timeout=60)

    @contextlib.contextmanager
    def timed_from_output_on(self) -> Iterator[None]:
        """Have the time limit of runs in the block begin once their scripts have said that they are ready.

        A busy machine may need longer to start a script than a test has its run last.
        """
        usual = Orchestrator._train

        async def train(orchestrator: Orchestrator, milestones: Milestones) -> None:
            if orchestrator.limits.run is not None:  # other runs, as the pool's, say nothing
                await in_thread(self.wait_for_output)
            await usual(orchestrator, milestones)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Orchestrator, "_train", train)
            yield

    def noticed_after(self, since: float) -> float:
        """Seconds from then until the run began to end."""
        phases = {event.data["phase"]: event.time for event in self.events("run_phase")}
        seconds = phases["ending"] - since
        ended = self.events("run_ended")[0].time - since
        print(f"noticed after {seconds:.2f} s, ended after {ended:.2f} s")
        return seconds

    # -- processes ----------------------------------------------------------------------------------------------------

    def pid(self, part: str) -> int:
        """A process of the newest run.

        ``guard``, ``launcher``, ``mpiexec``, ``session``, ``rank 1``, or ``agent worker-0``, ``sshd worker-0``,
        ``process worker-0``, ``daemon worker-0`` (mpiexec's).
        """
        kind, _, which = part.partition(" ")
        if kind == "session":
            return int(self._first("run_requested").data["session"]["pid"])
        if kind == "guard":
            # In the journal once an agent has said hello; before that it is the child of the session that it guards.
            return self._child_of(self.pid("session"), "agent/__main__.py guard")
        if kind == "launcher":
            return self._child_of(self._launchers_parents(), "/horovod_")
        if kind == "mpiexec":
            return self._child_of(self._launchers_parents(), "/mpiexec")
        if kind == "rank":
            return self._pid_here(self._first("process_started", rank=int(which)))
        if kind == "process":
            return self._pid_here(self._first("process_started", which))
        if kind == "agent":
            return self._pid_here(self._first("worker_ready", which))
        if kind == "daemon":
            below = linux.descendants(self.pid(f"agent {which}"), linux.snapshot())
            return next(pid for pid in below if Path(command_line(pid).split()[0]).name in MPI_DAEMONS)
        assert kind == "sshd", part
        return self._child_of(self.pid(f"agent {which}"), "sshd_config")

    def _launchers_parents(self) -> tuple[int, ...]:
        """The session, and the first worker's agent: all launchers start there elsewhere, here what serves ranks."""
        return (self.pid("session"), *([self.pid("agent worker-0")] if self.events("worker_ready") else []))

    def agents(self) -> list[int]:
        """All agents, also of workers that have not said hello."""
        guard = self.pid("guard")  # once: each look for it reads of all processes of the machine
        return [pid for pid, process in linux.snapshot().items() if process.parent == guard]

    def kill(self, *parts: str | int, signum: int = signal.SIGKILL) -> float:
        """Kill processes as nearly at once as can be; when that was."""
        pids = [part if isinstance(part, int) else self.pid(part) for part in parts]
        self.remember()
        assert len(self._seen) >= len(self.recorded.worker_names), "the run's processes are not found"
        if len(pids) > 1:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)  # none of them may act on the end of another
        for pid in pids:
            os.kill(pid, signum)
        return time.time()

    @contextlib.contextmanager
    def session_held(self) -> Iterator[None]:
        """Keep the session from hearing and doing anything: all that happens meanwhile reaches it at once."""
        release = threading.Event()
        background_loop().call_soon_threadsafe(release.wait)
        try:
            yield
        finally:
            release.set()

    def remember(self) -> None:
        """Take note of all processes that live now, however well they may hide later: all of them must be gone."""
        processes = linux.snapshot()
        for pid in self._marked():
            found = [pid, *linux.descendants(pid, processes)] if pid != os.getpid() else []
            self._seen.update((pid, processes[pid].start) for pid in found if pid in processes)

    def left_behind(self) -> list[str]:
        """Return what is there of all runs: processes, scratch folders, listeners on port 2222, threads."""
        pids = {*self._marked(), *(pid for pid, start in self._seen if linux.is_running(pid, start))}
        living = [notebook.process.pid for notebook in self._notebooks if notebook.process.poll() is None]
        living += self._of_the_pool()
        left = [f"process {pid}: {command_line(pid)}" for pid in sorted(pids.difference(living)) if not is_gone(pid)]
        left += [f"folder {path}" for path in self.temp.glob("muster-*")]
        left += [f"listener {host}:2222" for host in _ssh_listeners() & self._hosts()]
        return left + [f"thread {thread.name}" for thread in threading.enumerate() if "platform" in thread.name]

    def assert_nothing_left(self, within: float = GONE) -> None:
        """Fail where something of a run is still there; hosts, and engines of containers, take their time."""
        started = time.monotonic()
        within = within if self.is_here else GONE_ELSEWHERE
        while (left := self.left_behind()) and time.monotonic() - started < within:
            time.sleep(0.01)
        assert not left, "\n".join(left)

    # -- a pool -------------------------------------------------------------------------------------------------------

    def keep_a_pool(self) -> None:
        """Have all runs from now on start on one pool, whose template has imported NumPy."""
        os.environ["MUSTER_REUSE"] = "1"  # of this process, and of notebooks
        kept._shared[:] = [kept.KeptPlatform(None)]
        self.is_pooled = True

    def assert_a_pool_hands_on_nothing(self) -> None:
        """Fail where something of a run is still there while its pool is, or reaches the pool's next run."""
        self.assert_nothing_left()
        self._see_another_run()
        self.assert_nothing_left()
        kept.shared().close()
        self.is_pooled = False

    def _see_another_run(self) -> None:
        """Run a script on the pool that fails where it finds anything of another run; then its template is there."""
        script = self.folder / self.script(LOOKS, "looks.py")
        muster.run_cluster(2, worker_script=script, strategy="processes", dashboard=False)
        eventually(lambda: kept.shared().warmth["state"] == "ready", "the pool is warm", timeout=20)

    def _of_the_pool(self) -> set[int]:
        """The processes of the pool itself: its guard, and the template."""
        pool = kept.shared() if self.is_pooled else None
        platform = pool._platform if pool is not None else None
        if pool is None or platform is None:
            return set()
        guard = platform._guard  # which is there before any worker whose handle would tell of it
        return {int(str(pool.warmth["pid"])), *([guard.pid] if guard is not None else [])}

    def close(self) -> None:
        """End everything, however the test went."""
        if os.environ.pop("MUSTER_REUSE", None):
            kept.shared().close()
            kept._shared.clear()
        for notebook in self._notebooks:
            notebook.process.kill()
            notebook.process.wait()
        for pid, start in self._seen:
            if linux.is_running(pid, start):
                linux.kill(pid)
        for pid in self._marked():
            linux.kill(pid)

    def _marked(self) -> set[int]:
        """Processes with this scene's home or one of its runs in their environment, or its folder in their command."""
        runs = (f"MUSTER_RUN_ID={run.run_id}".encode() for run in _recorded())
        marks = {os.fsencode(f"MUSTER_HOME={self.home}"), *runs}
        return {
            pid
            for pid in linux.all_pids()
            if pid != os.getpid()
            and (not marks.isdisjoint(linux.environment_of(pid)) or str(self.temp) in command_line(pid))
        }

    def _hosts(self) -> set[str]:
        return {
            str(event.data["host"]) for run in _recorded() for event in run.events() if event.kind == "worker_ready"
        }

    def _first(self, kind: str, worker: str | None = None, rank: int | None = None) -> Event:
        def found() -> list[Event]:
            return [event for event in self.events(kind, worker) if rank is None or event.data["rank"] == rank]

        event: Event = eventually(found, f"{kind} of {worker}")[0]
        return event

    @property
    def is_here(self) -> bool:
        """True if workers' processes have the ids here that they have for themselves."""
        return not os.environ.get("MUSTER_PLATFORM")

    def _pid_here(self, event: Event) -> int:
        """Return the id on this machine of the process that an agent reports: of itself, or of one it has started."""
        told = int(event.data["pid"])
        if self.is_here:
            return told
        if (event.worker, told) not in self._known:
            self._known[event.worker, told] = self._look_for(event.worker, told)
        return self._known[event.worker, told]

    def _look_for(self, worker: str | None, told: int) -> int:
        marks = {f"MUSTER_RUN_ID={self.recorded.run_id}".encode(), f"MUSTER_WORKER={worker}".encode()}
        processes = linux.snapshot()
        for pid in processes:
            if marks <= linux.environment_of(pid):
                while pid in processes:
                    if _own_id(pid) == told:
                        return pid
                    pid = processes[pid].parent
        raise AssertionError(f"process {told} of {worker} is not found")

    @staticmethod
    def _child_of(parent: int | tuple[int, ...], words: str) -> int:
        parents = parent if isinstance(parent, tuple) else (parent,)

        def found() -> list[int]:
            children = [pid for pid, process in linux.snapshot().items() if process.parent in parents]
            return [pid for pid in children if words in command_line(pid)]

        pid: int = eventually(found, f"a child of {parent} that runs {words}")[0]
        return pid


class Notebook:
    """A session in a process of its own, which runs one cell."""

    def __init__(self, scene: Scene, cell: str, variables: dict[str, str]) -> None:
        self._outcome = scene.folder / f"outcome-{len(list(scene.folder.glob('outcome-*')))}.json"
        self._outcome.touch()
        self._output = self._outcome.with_suffix(".txt")
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("notebook.py")), cell, str(self._outcome)],
                cwd=scene.folder,
                env=environment(**variables, PYTHONPATH=os.pathsep.join(sys.path)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def interrupt(self, times: int = 1, pause: float = 0.0, group: bool = False) -> float:
        """Press Ctrl-C; when that was, the first time."""
        send: Callable[[int, int], None] = os.killpg if group else os.kill
        first = time.time()
        for number in range(times):
            time.sleep(pause if number else 0)
            send(self.process.pid, signal.SIGINT)
        return first

    def outcome(self, timeout: float = 30) -> dict[str, Any]:
        """Return the cell's outcome: ``raised`` (class name or None), ``text`` and ``repr`` of the error, ``at``."""
        status = self.process.wait(timeout)
        text = self._outcome.read_text()
        assert text, f"the notebook ended with {status}:\n{self.output}"
        outcome: dict[str, Any] = json.loads(text)
        return outcome

    @property
    def output(self) -> str:
        """Its output so far."""
        return self._output.read_text(errors="replace")


def _own_id(pid: int) -> int:
    """Return a process's id in its own namespace; 0 where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.split("NSpid:")[1].split("\n")[0].split()[-1])


def _recorded() -> list[runs.Run]:
    return lookup.list_runs()


def _ssh_listeners() -> set[str]:
    """Addresses that somebody listens on, port 2222."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        host, _, port = local.partition(":")
        if state == "0A" and int(port, 16) == 2222:
            found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(host))))
    return found
