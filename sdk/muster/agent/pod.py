"""First program of a worker that is a pod of Kubernetes: unpacks the agent, runs it, and ends as it does.

It is the pod's first process. Its folder of secrets has the agent's source as a zip, and the config; it cannot be
written to, and so the config is copied to where the agent takes it away.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile


def main(secrets: str, home: str) -> int:
    """Run the agent until it ends, and return its status.

    Args:
        secrets: folder with ``agent.zip`` and ``config``.
        home: folder that the worker may write to.
    """
    os.umask(0o077)
    os.makedirs(os.path.join(home, "home"), exist_ok=True)
    with zipfile.ZipFile(os.path.join(secrets, "agent.zip")) as source:
        source.extractall(home)
    with open(os.path.join(secrets, "config")) as file:
        config = json.load(file)
    path = os.path.join(home, "config")
    shutil.copyfile(os.path.join(secrets, "config"), path)
    agent = subprocess.Popen([sys.executable, "-I", "-S", os.path.join(home, "agent", "__main__.py"), "worker", path])
    signal.signal(signal.SIGTERM, lambda *_: agent.terminate())  # it ends its processes first, then itself
    status = agent.wait()
    if not config["session"]:  # that has had the log already
        _print_log(config["log"])
    return status if status >= 0 else 128 - status


def _print_log(log: str) -> None:
    """Print a log, older part first: what a pod has printed can be had after its end."""
    for path in (log + ".1", log):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
