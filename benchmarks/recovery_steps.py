"""Functions that the scripts of ``recovery`` share. Standard library only, so that any interpreter runs it."""

import os
import signal
import time
from pathlib import Path

STEPS, KILLED_AT = 10, 5


def note(folder: Path, rank: int, step: int) -> None:
    """Note that a rank has ended a step, with the time."""
    with (folder / f"steps-{rank}").open("a") as file:
        file.write(f"{time.time()} {step}\n")


def kill_once(folder: Path, step: int) -> None:
    """Kill this process, and note the time, if this is step ``KILLED_AT`` and no process has been killed yet."""
    killed = folder / "killed"
    if step == KILLED_AT and not killed.exists():
        killed.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


def seconds_lost(folder: Path) -> float:
    """Return the seconds from the kill to the end of the step before which it came, on the rank that ends it first."""
    killed = float((folder / "killed").read_text())
    noted = [line.split() for path in folder.glob("steps-*") for line in path.read_text().splitlines()]
    return min(float(end) for end, step in noted if int(step) >= KILLED_AT) - killed
