"""Records of running services, in ``serve/<service>`` of :func:`~muster.records.folders.muster_home`.

    keys             its API key, unless it was given a file of keys; removed, and void, when the service ends
    service.json     its session, addresses and platform; removed when the service ends in order
    workers          the platform's ids of all workers that it has launched, one per line
    <worker>.py      the code of a worker
    <worker>.log     the log of a worker

``--print-env`` reads in it where clients find a service, and the next service reads in it what a killed one has left.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import socket
from pathlib import Path
from typing import Any

from muster.agent import leftovers, linux
from muster.agent.removal import remove_folder
from muster.errors import JobError, MusterError
from muster.job import Worker
from muster.platforms import get_platform
from muster.records.folders import make_folder, muster_home, write_json
from muster.records.sessions import is_alive, is_out_of_sight, this_session
from muster.serve.site import ServiceSite
from muster.text.reading import read_json

KEPT = 10  # ended services whose workers' logs are kept


class ServiceRecord:
    """The folder of a service, which only its owner can read.

    Attributes:
        id: the service's name, which also marks the processes of its workers.
        folder: path of the folder.
        keys: path of the file with its own API key, if it has one.
    """

    def __init__(self) -> None:
        self.id = f"serve-{secrets.token_hex(4)}"
        self.folder = muster_home() / "serve" / self.id
        make_folder(self.folder, 0o700)
        self.keys = self.folder / "keys"
        self._owner = self.folder / "service.json"

    def announce(self, platform: str, site: ServiceSite, keys: Path) -> None:
        """Record the service's session, platform, addresses and key file."""
        who = {"session": this_session(), "host": socket.gethostname()}
        write_json(self._owner, {**who, "platform": platform, "site": vars(site), "keys": str(keys)})

    def add(self, worker: Worker) -> None:
        """Record a worker that has been launched."""
        with (self.folder / "workers").open("a") as file:
            file.write(worker.id + "\n")

    def log(self, worker_id: str) -> Path:
        """Return the path of a worker's log."""
        return self.folder / f"{worker_id}.log"

    def keep_code(self, worker_id: str, code: str) -> Path:
        """Write a worker's code to a file."""
        path = self.folder / f"{worker_id}.py"
        path.touch(mode=0o600)
        path.write_text(code, encoding="utf-8")
        return path

    def forget(self, worker_id: str) -> None:
        """Delete a worker's code and log."""
        for path in self.folder.glob(f"{worker_id}.*"):
            with contextlib.suppress(OSError):  # a file that cannot be removed must not fail a request
                path.unlink()

    def close(self) -> None:
        """Record that the service has ended, and all its workers with it."""
        self.keys.unlink(missing_ok=True)
        self._owner.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: the logs of workers are kept
            self.folder.rmdir()


def clean_up() -> list[str]:
    """End the workers of services that were killed on this machine; remove all but the last few ended services.

    Returns:
        What could not be done and why, in words; the next service tries it again.
    """
    troubles = []
    for owner, facts in _records():
        if not is_alive(facts["session"]) and not is_out_of_sight(facts["session"]):
            try:
                _end_workers(owner.parent, facts["platform"])
                (owner.parent / "keys").unlink(missing_ok=True)
                owner.unlink(missing_ok=True)  # another service that is starting may do the same
            except MusterError as error:
                troubles.append(f"What {owner.parent.name}, which was killed, left cannot be ended: {error.message}")
    ended = [path for path in (muster_home() / "serve").glob("serve-*") if not (path / "service.json").exists()]
    with contextlib.suppress(FileNotFoundError):  # another service that is starting does the same
        for folder in sorted(ended, key=lambda path: path.stat().st_mtime)[:-KEPT]:
            remove_folder(folder)
    return troubles


def client_environment(port: int | None) -> str:
    """Return shell lines with the environment of a client of this machine's service, in a new session.

    Args:
        port: port of the service, where there are several; None where there is one.

    Raises:
        JobError: no service runs, or several do.
    """
    running = [facts for _, facts in _records() if is_alive(facts["session"])]
    found = [facts for facts in running if port is None or facts["site"]["url"].endswith(f":{port}")]
    if not running:
        raise JobError("No service of this user runs on this machine.", advice="start `muster serve` first")
    urls = ", ".join(facts["site"]["url"] for facts in running)
    if not found:
        raise JobError(f"No service of this user listens on port {port} of this machine, but {urls}.")
    if len(found) != 1:
        raise JobError(f"It is not clear which of the services is meant: {urls}.", advice="--port PORT")
    (facts,) = found
    site = ServiceSite(**facts["site"])
    engine_id = secrets.token_hex(8)
    variables = {
        **site.environment(engine_id),
        "CDSW_ENGINE_ID": engine_id,
        "CDSW_IP_ADDRESS": site.address,
        "CDSW_MASTER_ID": "",
    }
    key = f'export CDSW_API_KEY="$(head -n 1 {shlex.quote(facts["keys"])})"'
    return "\n".join([key, *(f"export {name}={shlex.quote(value)}" for name, value in variables.items())])


def _records() -> list[tuple[Path, dict[str, Any]]]:
    """Return the records of this machine's services that run or were killed, each with its file."""
    found = []
    for owner in sorted((muster_home() / "serve").glob("serve-*/service.json")):
        with contextlib.suppress(OSError, ValueError):  # the service is just ending
            facts = read_json(owner)
            if facts["host"] == socket.gethostname():  # a home may be shared among machines
                found.append((owner, facts))
    return found


def _end_workers(folder: Path, platform: str) -> None:
    """End the workers and processes of a killed service that its platform has not ended already."""
    launched = folder / "workers"
    ids = launched.read_text().splitlines() if launched.exists() else []
    get_platform(platform).stop(ids)
    leftovers.kill_all(lambda: linux.marked("MUSTER_RUN_ID", folder.name))
