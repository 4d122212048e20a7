"""``make demo``: train a small convolutional network on handwritten digits twice, and show that nothing is left behind.

The first training uses a parameter server and two workers, the second Horovod on two workers. Both are ordinary runs.
After each, the processes, ports and temporary files of this machine are searched for anything that it left.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import muster
from muster.agent.linux import marked
from muster.errors import MusterError, PlatformUnsupported
from muster.events.data import Listening, ProcessExited, ProcessStarted, WorkerReady
from muster.records.runs import Run
from muster.runtime.extras import extra
from muster.text.cleaning import clean
from muster.text.shown import duration

try:
    with extra("demo"):
        import psutil
except MusterError as error:
    if __name__ != "__main__":
        raise
    sys.exit(clean(error))

SSH_PORT = 2222
SCRIPTS = Path(__file__).parents[3] / "worker_scripts"
LEAST_ACCURACY = 0.95
RUN_TIMEOUT = 600  # seconds
START_UNCERTAINTY = 1.0  # seconds by which the system may be wrong about when a process started
EXAMPLES = 6000  # most to train with: MNIST, if it is on the machine, has more; scikit-learn's digits are fewer
NEXT = """\
To go on: . .venv/bin/activate
  muster show last                              the training that ended last
  jupyter lab notebooks/mnist_horovod.ipynb     the same in a notebook"""
DATA = re.compile(r"^(.+): ([\d,]+) to train, ([\d,]+) to test$", re.MULTILINE)


@dataclass(frozen=True)
class Training:
    """One of the trainings that the demo shows."""

    title: str
    script: str
    strategy: str
    epochs: int
    n_ps: int = 0


TRAININGS = (
    Training("1 parameter server and 2 workers", "mnist_ps_tf2.py", "parameter_server", epochs=7, n_ps=1),
    Training("Horovod on 2 workers", "mnist_horovod.py", "horovod", epochs=5),
)


@dataclass(frozen=True)
class TrainingOutcome:
    """Outcome of a training. ``left`` names what was found afterwards and should not be there."""

    training: Training
    data: str
    accuracy: float
    seconds: float
    left: Sequence[str]

    @property
    def is_good(self) -> bool:
        """True if it learned enough and cleaned up."""
        return self.accuracy >= LEAST_ACCURACY and not self.left


def main() -> int:
    """Run the demo, and return its exit status."""
    if not SCRIPTS.is_dir():
        print(f"The demo needs the scripts of Muster's repository, and there is no {SCRIPTS}.", file=sys.stderr)
        return 1
    outcomes = []
    skipped = False
    for training in TRAININGS:
        print(f"\n{training.title}, training {training.script}\n")
        try:
            outcomes.append(train(training))
        except PlatformUnsupported as error:
            skipped = True
            print(f"\nSKIPPED: {training.title}.\n{clean(error)}", file=sys.stderr)
        except MusterError as error:
            print(f"\n{clean(error)}", file=sys.stderr)
            return 1
    print("\n" + "\n".join(line for outcome in outcomes for line in report(outcome)))
    if skipped:
        print("\nNOT EVERYTHING WAS SHOWN: a part was skipped, for the reason given above.")
    print(f"\n{NEXT}")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def train(training: Training) -> TrainingOutcome:
    """Run one training, watch it, and look for what it left.

    Raises:
        MusterError: it failed, or this machine cannot host it.
    """
    with own_temporary_folder() as folder:
        address = muster.run_cluster(
            n_workers=2,
            n_ps=training.n_ps,
            worker_script=SCRIPTS / training.script,
            strategy=training.strategy,
            args=("--limit-train", str(EXAMPLES), "--epochs", str(training.epochs)),
            run_timeout=RUN_TIMEOUT,
        )
        result = address.cluster.result
        run = Run(result.run_dir)
        left = [*processes_left(run), *ports_left(run), *files_left(folder)]
    return TrainingOutcome(training, data_of(run), result.metrics.get("test_accuracy", 0.0), result.seconds, left)


@contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """Put all temporary files of this process and its children into a new folder, so that leftovers can be found."""
    before, inherited = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="demo-", dir="/tmp") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before
            del os.environ["TMPDIR"]
            if inherited is not None:
                os.environ["TMPDIR"] = inherited


def processes_left(run: Run) -> list[str]:
    """Return, in words, the processes of a run that still exist.

    These are the processes marked with its id, those that it recorded, and children of this process since it began.
    """
    ended = run.started_at + run.seconds
    pids = set(marked("MUSTER_RUN_ID", run.run_id))
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.create_time() > run.started_at - START_UNCERTAINTY:
                pids.add(child.pid)
    for event in run.events():
        pid = event.data.pid if isinstance(event.data, (WorkerReady, ProcessStarted, ProcessExited)) else None
        if pid is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                if run.started_at <= psutil.Process(pid).create_time() <= ended:  # else a later one of the same number
                    pids.add(pid)
    return [f"process {pid} ({_title(pid)})" for pid in sorted(pids)]


def _title(pid: int) -> str:
    """Return the command line of a process, as ``ps`` would show it, cut to 80 characters."""
    try:
        process = psutil.Process(pid)
        return clean(" ".join(process.cmdline()) or process.name())[:80]
    except psutil.Error:
        return "it has just ended"


def ports_left(run: Run) -> list[str]:
    """Return, in words, the ports on which the run's workers, or this process for the run, still listen."""
    hosts = {event.data.host for event in run.events() if isinstance(event.data, WorkerReady)}
    ports = {SSH_PORT} | {event.data.port for event in run.events() if isinstance(event.data, Listening)}
    everywhere = {"0.0.0.0", "::"}
    listening = [
        (host, port)
        for host, port in _listening(psutil.net_connections("tcp"))
        if host in hosts or (host in everywhere and port in ports - {SSH_PORT})
    ]
    mine = _listening(psutil.Process().net_connections("tcp"))
    return [f"port {host}:{port}" for host, port in (*listening, *mine)]


def _listening(sockets: Iterable[Any]) -> list[tuple[str, int]]:
    """Return the addresses and ports of those sockets that listen."""
    return [(socket.laddr.ip, socket.laddr.port) for socket in sockets if socket.status == psutil.CONN_LISTEN]


def files_left(folder: Path) -> list[str]:
    """Return, in words, the files in the folder of temporary files."""
    return [f"file {path}" for path in sorted(folder.rglob("*"))]


def data_of(run: Run) -> str:
    """Return the line that the script printed about its data set: the name, and the numbers of examples."""
    for worker in run.worker_names:
        said = DATA.search(run.logs(worker))
        if said:
            return said[0]
    return "digits that the script did not name"


def report(outcome: TrainingOutcome) -> list[str]:
    """Return lines of text about a training's outcome."""
    verdict = "" if outcome.accuracy >= LEAST_ACCURACY else f", which is less than {LEAST_ACCURACY:.0%}"
    return [
        outcome.training.title,
        f"  data           {clean(outcome.data)}",
        f"  test accuracy  {outcome.accuracy:.2%}{verdict}",
        f"  time           {duration(outcome.seconds)}",
        f"  left behind    {', '.join(outcome.left) or 'no process, no port, no temporary file'}",
    ]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
