"""The agent of a worker that is a machine of its own, with no guard above it.

Whoever launched the worker left a config in a file that both see. It holds the run's secrets and is taken away by the
one agent that reads it; where it is gone, nobody waits for this worker. What other agents tell their guard goes into a
second file, which the platform reads once the worker has ended.
"""

import json
import os
import signal
import socket
import sys

from . import agent, frames, linux
from .ssh_server import find_sshd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(path: str) -> None:
    """Be the agent whose config is in the file ``path``, and exit with 0 if its worker ended well."""
    config = take_config(path, os.environ.get("CDSW_ENGINE_ID", ""))
    if config is None:
        sys.exit("muster: nobody waits for this worker any more: {} is gone".format(path))
    signal.pthread_sigmask(signal.SIG_BLOCK, agent.SIGNALS)  # until the agent is ready for them
    linux.signal_at_parent_death(signal.SIGTERM)
    news = os.open(config["news"], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    outcome = agent.main(complete(config, dict(os.environ)), news)
    sys.exit(0 if outcome["status"] in ("succeeded", "stopped") else 1)


def take_config(path: str, engine: str) -> "dict[str, Any] | None":
    """The config in the file, which is removed; None where it is gone, or somebody else was quicker.

    Before it goes ``engine``, the id of this worker, is in the news: who finds the config gone knows who has it.
    """
    try:
        with open(path) as file:
            config = json.load(file)
        with os.fdopen(os.open(config["news"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as news:
            news.write(frames.encode("worker", id=engine))
        os.unlink(path)
    except FileNotFoundError:
        return None
    return dict(config)


def complete(config: "dict[str, Any]", environ: "dict[str, str]") -> "dict[str, Any]":
    """The config with what only the worker itself knows.

    Args:
        config: the worker, as its platform describes it.
        environ: the worker's environment, in which an engine of the workbench says which one it is.
    """
    devices = environ.get("CUDA_VISIBLE_DEVICES") or ",".join(str(number) for number in range(config["gpu"]))
    master = environ.get("CDSW_MASTER_IP") or (config["session"] or {}).get("host", "127.0.0.1")
    return dict(
        config,
        id=environ.get("CDSW_ENGINE_ID", config["name"]),
        address=environ.get("CDSW_IP_ADDRESS") or own_address(master),
        master_address=master,
        may_move=False,
        cores=[],
        gpus=devices.split(",")[: config["gpu"]],
        sshd=find_sshd() if config["ssh"] else None,
        session_process=None,
        # The agent expects the session's environment. An engine's is the same, but for the engine that it names.
        environ=dict(environ, CDSW_ENGINE_ID=environ.get("CDSW_MASTER_ID", "")),
    )


def own_address(other: str) -> str:
    """The address that this machine shows to ``other``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing; the kernel only chooses a route
        return str(probe.getsockname()[0])
