"""The guard of a session's jobs on the login node of a Slurm cluster, at the far end of the session's login.

It runs Slurm's commands and keeps the submissions' files for its platform, and relays the agents' connections: compute
nodes reach this machine, and ssh forwards a port of it to the session. Once the session has ended, it cancels its jobs,
queued ones too, and removes their files. Where only the login has been cut, it waits as long as agents do for the guard
of another login, which takes all over.
"""

import contextlib
import os
import re
import signal
import time

from . import linux, slurm_site
from .host_guard import IDLE_SECONDS, LEASE_MARGIN, HostGuard, channel_of_login
from .relay import MOST, SPARE, TcpRelay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channels import PipeChannel

PATIENCE = 1800.0  # seconds after which it gives up cleaning up
RETRY_SECONDS = 1.0  # between two attempts
CUT_SECONDS = 0.5  # in which a login that has been cut ends in both directions
GIVES_UP_SECONDS = 3.0  # that a guard may take to give up what it watches


class SlurmGuard(HostGuard):
    """The guard of one platform object's jobs.

    Args:
        channel, folder: as of any guard at the far end of a login.
    """

    requests = ("hello", "close", "slurm", "watch", "relay", "end_relay", "take_over")
    longest_silence = IDLE_SECONDS  # as it takes the jobs along at once

    def __init__(self, channel: "PipeChannel", folder: str) -> None:
        super().__init__(channel, folder)
        self._pipes = channel
        self._labels: "list[str]" = []
        self._folders: "list[str]" = []
        self._relays: "dict[int, TcpRelay]" = {}  # by port

    def run(self) -> None:
        """Serve until the session ends; then cancel its jobs, and remove their files."""
        self._loop.on_signal(signal.SIGUSR1, self._give_up)
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

    def _do_hello(self, **said: "Any") -> "dict[str, Any]":  # type: ignore[override]
        if slurm_site.missing(["sbatch"])["programs"]:
            slurm_site.take_environment_of_a_terminal()
        return super()._do_hello(**said)

    def _do_slurm(self, call: str, fields: "dict[str, Any]") -> "dict[str, Any]":
        return slurm_site.REQUESTS[call](**fields)

    def _do_watch(self, labels: "list[str]", folders: "list[str]") -> "dict[str, Any]":
        """Take note of the names of jobs, and the folders, of which nothing may be left after the session."""
        self._labels, self._folders = labels, folders
        return {}

    def _do_take_over(self, guard: "list[int]", labels: "list[str]", folders: "list[str]") -> "dict[str, Any]":
        """Watch these jobs and folders in place of the guard of an earlier login; return whether it still did."""
        self._do_watch(labels, folders)
        with contextlib.suppress(ProcessLookupError):
            if linux.is_running(guard[0], guard[1]) and linux.catches(guard[0], signal.SIGUSR1):
                os.kill(guard[0], signal.SIGUSR1)
                deadline = time.monotonic() + GIVES_UP_SECONDS
                while linux.is_running(guard[0], guard[1]) and time.monotonic() < deadline:
                    time.sleep(0.01)
                return {"done": not linux.is_running(guard[0], guard[1])}
        return {"done": False}

    def _end_everything(self) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # which shows other guards that it is too late to take over
        super()._end_everything()

    def _give_up(self) -> None:
        """End at once, as the guard of another login watches the jobs."""
        self._labels, self._folders = [], []
        self._loop.stop()

    def _do_relay(self, address: str, host: str, port: int, there: int) -> "dict[str, Any]":
        """Relay connections to a port of this address to a host and port; return that port, and how many.

        Args:
            address: the address.
            host, port: where they are carried to.
            there: the port; 0 for a free one.
        """
        relay = TcpRelay(address, (host, port), there)
        self._relays[relay.port] = relay
        return {"port": relay.port, "most": min(relay.most, _most_of_sshd())}

    def _do_end_relay(self, port: int) -> "dict[str, Any]":
        """End the relay at this port, with all of its connections."""
        relay = self._relays.pop(port, None)
        if relay is not None:
            relay.close()
        return {}

    def _be_alone(self, silent: float) -> None:
        """Wait for the guard of another login where this one was cut; else the session has ended."""
        self._is_alone = True
        self._loop.forget(self._channel.reader)
        self._loop.forget(self._channel.writer)
        may_come_back = not silent and self._pipes.is_cut(CUT_SECONDS)
        self._loop.call_later(self._lease + LEASE_MARGIN if may_come_back and self._labels else 0, self._loop.stop)

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
