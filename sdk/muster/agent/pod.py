"""Code of a pod's first process, which makes the pod a worker: it runs the agent, and ends as it does.

A program in the pod's folder of secrets runs ``unpacking.py``, then it, both from the agent's package there, and then
calls ``main``. The folder has the config, too. It is read-only, so the config is copied to a folder from which the
agent can remove it.
"""

import contextlib
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


DIAL_AGAIN_SECONDS = 1.0  # between two attempts to dial the session


def main(packed: bytes, secrets: str, home: str, make_importable: "Callable[[bytes, str], object]") -> None:
    """Run the agent until it ends, and exit with its status.

    Args:
        packed: the agent's package.
        secrets: folder with its ``config``.
        home: folder that the worker may write to.
        make_importable: makes the agent's package importable, given a folder to write it into where that has to be.
    """
    os.umask(0o077)
    os.makedirs(os.path.join(home, "home"), exist_ok=True)
    make_importable(packed, home)
    with open(os.path.join(secrets, "config")) as file:
        config = json.load(file)
    if config.get("tunnel") and config["session"]:
        config["session"].update(_way(config["session"], os.path.join(home, "tunnel")))
    path = os.path.join(home, "config")
    with open(path, "w") as file:
        json.dump(config, file)
    from agent.forking import start_agent, status_of  # type: ignore[import-not-found]

    status = status_of(start_agent(path, dict(os.environ)))
    if not config["session"]:  # a session has received the log already
        _print_log(config["log"])
    sys.exit(status if status >= 0 else 128 - status)


def _way(session: "dict[str, Any]", path: str) -> "dict[str, Any]":
    """Return the address that the agent is to dial instead of the session's; empty where the session itself answers.

    That address is the pod's end of a tunnel to the session.

    Args:
        session: the session's address and certificate.
        path: path of the socket at which programs that carry the tunnel connect.
    """
    from agent.connection import trouble_with  # type: ignore[import-not-found]
    from agent.package import program  # type: ignore[import-not-found]
    from agent.pod_tunnel import DIAL_SECONDS, HERE, PATIENCE, TunnelEnd  # type: ignore[import-not-found]

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which a pod's first process ignores by default
    trouble = trouble_with(session, DIAL_SECONDS) if session["host"] != HERE else "it cannot be dialled from here"
    if not trouble:
        return {}
    program()  # so that the tunnel's other program is there as a file
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
    """Print a log, its older part first, as a pod's output can be read after its end."""
    for path in (log + ".1", log):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            sys.stdout.buffer.writelines(file)
    sys.stdout.flush()
