"""The Python stacks of a worker's processes, also of those that are stuck.

A process that takes part has registered SIGUSR1 with ``faulthandler``, with ``stacks-<pid>`` in the scratch folder as
its file (:mod:`~muster.agent.runner` does so). To any other process the signal would be deadly, so the file decides.
"""

import os
import signal

from . import linux
from .loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

PREFIX = "stacks-"
DELAY = 0.25  # seconds that faulthandler gets to write


def ask_for_stacks(loop: Loop, scratch: str, on_stacks: "Callable[[int, str], object]") -> None:
    """Ask all processes for their stacks, and call ``on_stacks(pid, text)`` for each a moment later."""
    own = set(linux.descendants(os.getpid(), linux.snapshot()))
    for name in os.listdir(scratch):
        pid = int(name[len(PREFIX) :]) if name.startswith(PREFIX) and name[len(PREFIX) :].isdigit() else 0
        if pid in own:
            _ask(loop, pid, os.path.join(scratch, name), on_stacks)


def _ask(loop: Loop, pid: int, path: str, on_stacks: "Callable[[int, str], object]") -> None:
    before = os.path.getsize(path)

    def collect() -> None:
        with open(path, "rb") as file:
            file.seek(before)
            on_stacks(pid, file.read().decode("utf-8", "replace"))

    linux.kill(pid, signal.SIGUSR1)
    loop.call_later(DELAY, collect)
