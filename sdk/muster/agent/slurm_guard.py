"""The guard of a session's jobs on the login node of a Slurm cluster, at the far end of the session's login.

It runs Slurm's commands and keeps the submissions' files for its platform, and relays the agents' connections: compute
nodes reach this machine, and ssh forwards a port of it to the session. Once the login has ended, however that came, it
cancels the session's jobs, queued ones too, and removes their files.
"""

import contextlib
import os
import re
import time

from . import linux, slurm_site
from .host_guard import IDLE_SECONDS, HostGuard, channel_of_login
from .relay import MOST, SPARE, TcpRelay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channels import PipeChannel

PATIENCE = 1800.0  # seconds after which it gives up cleaning up
RETRY_SECONDS = 1.0  # between two attempts


class SlurmGuard(HostGuard):
    """The guard of one platform object's jobs.

    Args:
        channel, folder: as of any guard at the far end of a login.
    """

    requests = ("hello", "close", "slurm", "watch", "relay", "end_relay")
    longest_silence = IDLE_SECONDS  # as it takes the jobs along at once

    def __init__(self, channel: "PipeChannel", folder: str) -> None:
        super().__init__(channel, folder)
        self._labels: "list[str]" = []
        self._folders: "list[str]" = []
        self._relays: "dict[int, TcpRelay]" = {}  # by port

    def run(self) -> None:
        """Serve until the login ends; then cancel the session's jobs, and remove their files."""
        super().run()
        with contextlib.suppress(OSError):
            self._channel.close()  # the session does not wait for what follows
        deadline = time.monotonic() + PATIENCE
        while (self._labels or self._folders) and time.monotonic() < deadline:
            try:
                slurm_site.clean_up(self._labels, self._folders)
                return
            except OSError:
                time.sleep(RETRY_SECONDS)

    def _do_hello(self, lease: float, word: str, python: str) -> "dict[str, Any]":
        if slurm_site.missing(["sbatch"])["programs"]:
            slurm_site.take_environment_of_a_terminal()
        return super()._do_hello(lease, word, python)

    def _do_slurm(self, call: str, fields: "dict[str, Any]") -> "dict[str, Any]":
        return slurm_site.REQUESTS[call](**fields)

    def _do_watch(self, labels: "list[str]", folders: "list[str]") -> "dict[str, Any]":
        """Take note of the names of jobs, and the folders, of which nothing may be left after the session."""
        self._labels, self._folders = labels, folders
        return {}

    def _do_relay(self, address: str, host: str, port: int) -> "dict[str, Any]":
        """Relay connections to a free port of this address, which is returned, to a host and port; and how many."""
        relay = TcpRelay(address, (host, port))
        self._relays[relay.port] = relay
        return {"port": relay.port, "most": min(relay.most, _most_of_sshd())}

    def _do_end_relay(self, port: int) -> "dict[str, Any]":
        """End the relay at this port, with all of its connections."""
        relay = self._relays.pop(port, None)
        if relay is not None:
            relay.close()
        return {}

    def _end_if_idle(self) -> None:
        """End where nothing has been heard of the session for some time, not even on its way to workers."""
        self._heard_at = max([self._heard_at] + [relay.heard_at for relay in self._relays.values()])
        super()._end_if_idle()


def _most_of_sshd() -> int:
    """Return for how many forwarded connections the sshd of this login may open a socket, as far as that is known."""
    process = linux.stat(os.getppid())
    while process is not None:
        if linux.name_of(process.pid).startswith("sshd"):
            with contextlib.suppress(OSError), open("/proc/{}/limits".format(process.pid)) as file:
                said = re.search(r"^Max open files +(\d+)", file.read(), re.MULTILINE)
                return max(int(said.group(1)) - SPARE, 1) if said else MOST
        process = linux.stat(process.parent)
    return MOST


def main(folder: str) -> None:
    """Run the guard of this login, with the folder ``folder``."""
    SlurmGuard(channel_of_login(), folder).run()
