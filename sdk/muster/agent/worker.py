"""The agent of a worker that is a separate machine, without a guard.

The platform has left a config in a file that both can access. It contains the run's secrets, and the one agent that
reads it removes it; if the file is gone, nobody waits for this worker. Messages that other agents send to their guard
are written to a second file, which the platform reads once the worker has ended.
"""

import json
import os
import signal
import socket
import sys
import time

from . import agent, frames, linux
from .connection import encoded
from .link import AGAIN_SECONDS, NOT_READY, REDIAL_PAUSES, Unreachable
from .places import settle
from .removal import lock, remove_folder

UNPACKED = "muster-agent-"  # begins the name of the folder into which it is unpacked on workers
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(path: str) -> None:
    """Run the agent whose config is in the file ``path``, and exit with 0 if its worker ended well."""
    config = take_config(path, dict(os.environ))
    if config is None:
        sys.exit("muster: nobody waits for this worker any more: {} is gone".format(path))
    parent = os.getppid()
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    is_own = os.path.basename(folder).startswith(UNPACKED)
    if is_own:
        lock(folder)  # the process that has unpacked it may be killed
    signal.pthread_sigmask(signal.SIG_BLOCK, agent.SIGNALS)  # until the agent is ready for them
    linux.signal_at_parent_death(signal.SIGTERM)
    news = os.open(config["news"], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    lack = _what_lacks(config, dict(os.environ))
    if lack:
        os.write(news, frames.encode("worker", status="failed", reason=lack))
        sys.exit(1)
    try:
        config = complete(config, dict(os.environ), folder)
    except Unreachable as error:
        os.write(news, frames.encode("worker", status="failed", reason="Its agent failed: {}.".format(error)))
        sys.exit(1)
    outcome = agent.main(config, news)
    if os.getppid() != parent and is_own:  # otherwise the parent, which unpacked it, removes it
        remove_folder(folder)
    sys.exit(0 if outcome["status"] in ("succeeded", "stopped") else 1)


def take_config(path: str, environ: "dict[str, str]") -> "dict[str, Any] | None":
    """Read the config from a file, and remove the file; return None where it is gone, or another worker was quicker.

    Before that, this worker's id (from its environment) is written to the news, so that the platform knows who has read
    the config.
    """
    try:
        with open(path) as file:
            config = json.load(file)
        own_id = environ.get(config["variables"]["id"], "")
        with os.fdopen(os.open(config["news"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as news:
            news.write(frames.encode("worker", id=own_id))
        os.unlink(path)
    except FileNotFoundError:
        return None
    return dict(config)


def _what_lacks(config: "dict[str, Any]", environ: "dict[str, str]") -> str:
    """Return, in words, what this worker lacks of what it is to have; empty where it has all."""
    counts_gpus = config["gpu"] and config.get("counts_gpus")
    if not config.get("needs") and not counts_gpus:
        return ""
    from .needs import lacking_gpus, what_lacks  # only here, as subprocess takes a while to import

    lack = what_lacks(config["needs"], environ) if config.get("needs") else ""
    return lack or (lacking_gpus(config["gpu"], environ) if counts_gpus else "")


def complete(config: "dict[str, Any]", environ: "dict[str, str]", folder: str) -> "dict[str, Any]":
    """Return the config, completed with facts that only the worker itself knows.

    Args:
        config: the worker, as its platform describes it. ``variables`` has the names of the variables in which the
            platform says a worker's ``id``, its ``address`` and that of its ``session``, and what the names of all of
            the platform's ``own`` variables begin with.
        environ: the worker's environment.
        folder: a folder that is removed with the worker.

    Raises:
        Unreachable: it has no way to the session.
    """
    sshd = None
    if config["ssh"]:
        from .ssh_server import sshd_or_none  # only here, as subprocess takes a while to import

        sshd = sshd_or_none()
    config = settle(config, folder)
    names = config["variables"]
    devices = environ.get("CUDA_VISIBLE_DEVICES") or ",".join(str(number) for number in range(config["gpu"]))
    known = config["session"] or {"host": "127.0.0.1", "port": 0}
    session = (environ.get(names["session"]) or known["host"], known["port"])
    return dict(
        config,
        address=environ.get(names["address"]) or address_towards(session),
        may_move=False,
        hidden=[],
        cores=[],
        gpus=devices.split(",")[: config["gpu"]],
        sshd=sshd,
        session_process=None,
        environ=environ,
        identity={name: value for name, value in environ.items() if name.startswith(names["own"])},
        address_variables=[names["address"]],
    )


def address_towards(session: "tuple[str, int]") -> str:
    """Return the address from which this machine connects to the session, once its network is ready.

    Raises:
        Unreachable: it is not ready in time.
    """
    began = time.monotonic()
    while True:
        try:
            return own_address(session[0])
        except OSError as error:
            if error.errno not in NOT_READY or time.monotonic() > began + AGAIN_SECONDS:
                raise Unreachable(session, error) from error
        time.sleep(REDIAL_PAUSES[0])


def own_address(other: str) -> str:
    """Return the address from which this machine connects to ``other``. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(encoded(other), 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing; the kernel only chooses a route
        return str(probe.getsockname()[0])
