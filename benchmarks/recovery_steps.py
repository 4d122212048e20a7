"""Common parts of the scripts that ``recovery`` trains with. Standard library only: any interpreter runs it."""

import os
import signal
import time
from pathlib import Path

STEPS, KILLED_AT = 10, 5


def note(folder: Path, rank: int, step: int) -> None:
    """Note when a rank has ended a step."""
    with (folder / f"steps-{rank}").open("a") as file:
        file.write(f"{time.time()} {step}\n")


def kill_once(folder: Path, step: int) -> None:
    """Kill this process before a step, and note when; never a second time."""
    killed = folder / "killed"
    if step == KILLED_AT and not killed.exists():
        killed.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


def seconds_lost(folder: Path) -> float:
    """Return the seconds from the kill to the end of the step that it was in, on the rank that comes to it first."""
    killed = float((folder / "killed").read_text())
    noted = [line.split() for path in folder.glob("steps-*") for line in path.read_text().splitlines()]
    return min(float(end) for end, step in noted if int(step) >= KILLED_AT) - killed
