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
import time
import zipfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


DIAL_AGAIN_SECONDS = 1.0  # after which the session is dialled again, where it could not be


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
    if config.get("tunnel") and config["session"]:
        sys.path.insert(0, home)
        config["session"].update(_way(config["session"], os.path.join(home, "tunnel")))
    path = os.path.join(home, "config")
    with open(path, "w") as file:
        json.dump(config, file)
    agent = subprocess.Popen([sys.executable, "-I", "-S", os.path.join(home, "agent", "__main__.py"), "worker", path])
    signal.signal(signal.SIGTERM, lambda *_: agent.terminate())  # it ends its processes first, then itself
    status = agent.wait()
    if not config["session"]:  # that has had the log already
        _print_log(config["log"])
    return status if status >= 0 else 128 - status


def _way(session: "dict[str, Any]", path: str) -> "dict[str, Any]":
    """Return what the agent dials: the session where that answers, or else the end of a tunnel to it.

    Args:
        session: where it is, and its certificate.
        path: of the socket at which a tunnel is asked for.
    """
    from agent.connection import trouble_with  # type: ignore[import-not-found]
    from agent.pod_tunnel import DIAL_SECONDS, HERE, PATIENCE, TunnelEnd  # type: ignore[import-not-found]

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # of a first process it would be ignored
    trouble = trouble_with(session, DIAL_SECONDS) if session["host"] != HERE else "it cannot be dialled from here"
    if not trouble:
        return {}
    end = TunnelEnd(path)
    deadline = time.monotonic() + PATIENCE
    while not end.has_come.wait(DIAL_AGAIN_SECONDS):
        if session["host"] != HERE:  # a pod's network, or a sidecar's, may be up only after its first program
            trouble = trouble_with(session, DIAL_SECONDS)
            if not trouble:
                return {}
        if time.monotonic() > deadline:
            text = (
                "muster: no way to the session at {host}:{port}: {}; nobody came through the cluster's exec for {:g} s"
            )
            sys.exit(text.format(trouble, PATIENCE, **session))
    return {"host": HERE, "port": end.port}


def _print_log(log: str) -> None:
    """Print a log, older part first: what a pod has printed can be had after its end."""
    for path in (log + ".1", log):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
