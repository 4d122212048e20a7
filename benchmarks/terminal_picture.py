"""Pictures of the terminal view, from real runs: python benchmarks/terminal_picture.py

Trains the MNIST script with Horovod on three workers, once as it is and once with the data of one rank missing, and
writes what a terminal shows at one moment of each run as SVG to docs/pictures/.
"""

from __future__ import annotations

import io
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from muster.checks.script import make_script
from muster.dashboard.fold import fold
from muster.dashboard.run import RunView
from muster.dashboard.screen import Screen
from muster.errors import MusterError
from muster.events import Event
from muster.job import Job, Resources
from muster.run.cluster import Cluster
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

REPOSITORY = Path(__file__).parents[1]
PICTURES = REPOSITORY / "docs" / "pictures"
WIDTH, HEIGHT = 128, 14  # characters
ABSENT_DATA = """
import runpy

import mnist_data
from muster.training import horovod

load = mnist_data.load


def load_share(data, limit_train):
    horovod.init()
    return load("/data/share-1" if horovod.rank() == 1 else data, limit_train)


mnist_data.load = load_share
runpy.run_module("mnist_horovod", run_name="__main__")
"""
# The picture uses a font of the reader's system, so that no browser has to fetch one.
WITHOUT_WEB_FONTS = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def events_of(script: Path) -> list[Event]:
    """Return all events of one training, even if it fails."""
    events: list[Event] = []
    environment = {"PYTHONPATH": str(REPOSITORY / "worker_scripts")}
    job = Job(make_script(script), n_workers=3, resources=Resources(cpu=0.5), env=environment, name="mnist")
    with suppress(MusterError), Cluster(job, strategy="horovod", observers=[events.append]) as cluster:
        cluster.wait()
    return events


def middle_of_training(events: list[Event]) -> int:
    """Return the number of events up to two thirds of the reports of progress."""
    progress = [index for index, event in enumerate(events) if event.kind == "progress"]
    return progress[len(progress) * 2 // 3] + 1


def picture(events: list[Event]) -> str:
    """Return a picture of the terminal after these events, as SVG."""
    view = RunView(clock=lambda: events[-1].time)
    for event in events:
        fold(view, event)
    console = Console(file=io.StringIO(), width=WIDTH, height=HEIGHT, record=True, force_terminal=True)
    console.print(Screen(view))
    return console.export_svg(title="muster", code_format=WITHOUT_WEB_FONTS, unique_id="terminal")


def main() -> None:
    """Write the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    training = events_of(REPOSITORY / "worker_scripts" / "mnist_horovod.py")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "mnist_absent_data.py"
        script.write_text(ABSENT_DATA, encoding="utf-8")
        failed = events_of(script)
    for name, events in (("training", training[: middle_of_training(training)]), ("failed", failed)):
        path = PICTURES / f"terminal-{name}.svg"
        path.write_text(picture(events), encoding="utf-8")
        print(path.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
