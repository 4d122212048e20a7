"""Code that makes a container of the workbench a worker: it runs the agent, which may not be installed there.

It is sent as text, with ``unpacking.py`` before it and a call of ``become_worker`` after it.
"""

import contextlib
import gc
import signal
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ContextManager


def become_worker(unpacked: "ContextManager[str]", config: str) -> None:
    """Run the agent until it ends, and exit with an error unless its status is 0.

    Args:
        unpacked: makes the agent's package importable, and a folder for it, and removes that.
        config: path of the agent's config.
    """
    with unpacked as folder:
        agent = subprocess.Popen([sys.executable, "-I", "-S", folder + "/agent/__main__.py", "worker", config])
        with contextlib.suppress(ValueError):  # a container that does not run this in its main thread
            signal.signal(signal.SIGTERM, lambda *_: agent.terminate())  # the agent ends its processes first
        from agent.removal import begin_to_remove_unused  # type: ignore[import-not-found]

        begin_to_remove_unused(folder)
        gc.enable()
        status = agent.wait()
    if status:
        sys.exit("muster: this worker's agent ended with status {}".format(status))
