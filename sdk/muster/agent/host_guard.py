"""The guard of workers on a host to which the platform logs in: it communicates with its platform over that login.

It forks the host's agents as the guard on the session's own machine does, and knows the host's resources. If the login
ends, the agents go on for their leases, as they have connections of their own to the session; the guard waits for their
end, kills what they have left, and then ends. An agent that goes on for longer is ended by the guard.

A network that is cut without a word ends no login. So the guard ends one whose client is silent, and the connections of
agents that come through it; they could not notice themselves, as this machine's sshd takes what they send.
"""

import os
import pwd
import socket
import subprocess
import sys
import time

from . import hardware, linux
from .channels import PipeChannel
from .claims import Claim, claim_memory, claimed_memory
from .guard import Guard, GuardedWorker
from .guard_clients import ask_guard
from .own_login import OwnLogin
from .ssh_server import find_sshd
from .worker import own_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READY = b"\0muster guard\n"  # what is printed before it is not the guard's
LEASE_MARGIN = 2.0  # seconds that a guard without a login waits longer than its agents' leases
AWAY_SECONDS = 3.0  # seconds that a guard waits for its platform to log in again
CHECK_SECONDS = 0.2
SILENCE_CHECK = 1.0
IDLE_SECONDS = 120.0  # seconds without a request after which a guard without running workers ends
OTHER_GUARD_SECONDS = 5.0  # how long another guard may take to answer
LOG_PIECE = 1 << 17  # bytes
RUN_SECONDS = 15.0  # how long a short command may take
RUN_OUTPUT = 1 << 16  # characters of a short command's output
CANNOT_RUN = 127  # exit status of a shell that cannot run a command


class HostGuard(Guard):
    """The guard of one platform object's workers on this host.

    Args:
        channel: the channel to the platform.
        folder: the folder with everything that its workers need here; it is removed with the guard.
    """

    requests = (*Guard.requests, "hello", "dial", "run", "ask_guard", "log", "claimed")
    #: Seconds of silence after which a login has ended: its ssh client has given up by then.
    longest_silence = 20.0

    def __init__(self, channel: PipeChannel, folder: str) -> None:
        super().__init__(channel)
        self._folder = folder
        self._login = OwnLogin()
        self._lease = 0.0
        self._word = ""
        self._is_users = False  # whether the login's connection is the user's own
        self._is_alone = False  # whether its login has ended
        self._seen_at = 0.0  # when its platform last made a request, perhaps over another login
        self._heard_at = time.monotonic()
        self._loop.call_every(IDLE_SECONDS / 4, self._end_if_idle)
        self._loop.call_every(SILENCE_CHECK, self._end_if_silent)

    # Requests

    def _receive(self) -> None:
        self._heard_at = time.monotonic()
        super()._receive()

    def _answer_client(self, message: "dict[str, Any]") -> "dict[str, Any]":
        is_platform = bool(self._word) and message.pop("keep", None) == self._word
        if is_platform:
            self._seen_at = time.monotonic()
        return self._answer(message, ("poll", "stop", "log", *(["close"] if is_platform else [])))

    def _do_hello(self, lease: float, word: str, python: str, is_users: bool = False) -> "dict[str, Any]":
        """Return the host's resources and addresses.

        Args:
            lease: seconds that agents go on after they have lost the session.
            word: secret by which the platform identifies itself over another login.
            python: path of the session's interpreter, which may exist here, too.
            is_users: whether the connection is one that the user keeps open for other purposes as well.
        """
        self._lease, self._word, self._is_users = lease, word, is_users
        client, _, server, _ = (os.environ.get("SSH_CONNECTION") or "127.0.0.1 0 127.0.0.1 0").split()
        return {
            "folder": self._folder,
            "guard": [os.getpid(), linux.start_of(os.getpid())],
            "name": socket.gethostname(),
            "user": pwd.getpwuid(os.geteuid()).pw_name,
            "python": python if os.access(python, os.X_OK) else "",
            "version": list(sys.version_info[:3]),
            "cores": len(hardware.cores()),
            "memory": hardware.memory_bytes(),
            "gpus": hardware.gpus(),
            "time": time.time(),
            "session": client,
            "address": server,
            "route": _usual_address(),
        }

    def _do_claimed(self) -> "dict[str, Any]":
        """Return the bytes of memory that all workers on this host have claimed, whoever's they are."""
        return {"memory": claimed_memory()}

    def _do_dial(self, host: str, port: int, word: str, limit: float) -> "dict[str, Any]":
        """Try whether the session can be reached: it must answer with ``word``, which only it knows."""
        try:
            with socket.create_connection((host, port), timeout=limit) as connection:
                answer = connection.recv(len(word))
            return {"reached": answer == word.encode("ascii"), "address": own_address(host)}
        except OSError as error:
            return {"reached": False, "why": error.strerror or str(error)}

    def _do_run(self, argv: "list[str]") -> "dict[str, Any]":
        """Run a short command, before there are workers, and return its exit status and what it printed."""
        try:
            done = subprocess.run(
                [os.path.expanduser(word) for word in argv[:1]] + argv[1:],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=RUN_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return {"status": CANNOT_RUN, "output": str(error)}
        return {"status": done.returncode, "output": done.stdout.decode("utf-8", "replace")[-RUN_OUTPUT:]}

    def _do_launch(  # type: ignore[override]
        self, run_key: str, workers: "list[dict[str, Any]]"
    ) -> "dict[str, Any]":
        for config in workers:
            try:
                for place in (config["scratch"], config["cwd"], *config["places"].values()):
                    os.makedirs(place, 0o700, exist_ok=True)
            except OSError as error:
                return {"refused": config["name"], "why": "its folders cannot be made: {}".format(error)}
        return super()._do_launch(
            run_key=run_key,
            workers=workers,
            session=None,
            environ=dict(os.environ),
            claims={"cores": hardware.cores(), "gpus": hardware.gpus()},
            sshd=find_sshd() if any(config["ssh"] for config in workers) else None,
        )

    def _claim_memory(self, amount: int) -> Claim:
        """Claim bytes of memory for one worker, for all users of this host to see. Raises OSError."""
        return claim_memory(amount)

    def _do_log(self, id: str, offset: int) -> "dict[str, Any]":
        """Return a piece of a worker's log from an offset in its two files together, of which the older comes first."""
        path = str(self._workers[id].facts["log"])
        for part in (path + ".1", path):
            try:
                with open(part, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    if offset < size:
                        file.seek(offset)
                        return {"payload": file.read(LOG_PIECE)}
                    offset -= size
            except FileNotFoundError:
                continue
        return {}

    def _do_ask_guard(self, guard: "list[int]", message: "dict[str, Any]") -> "dict[str, Any]":
        """Pass a request on to another guard of this user, of another platform object; ``gone`` if it has ended."""
        if not linux.is_running(guard[0], guard[1]):
            return {"gone": True}
        request = message.pop("say")
        try:
            answer = ask_guard(guard[0], guard[1], request, message, OTHER_GUARD_SECONDS)
        except OSError:
            if linux.is_running(guard[0], guard[1]):
                raise
            return {"gone": True}
        del answer["type"]
        return answer

    # Agents

    def _close_inherited(self) -> None:
        super()._close_inherited()
        linux.redirect_to_null(0, 1, 2)  # an agent that held them would keep the login open

    def _remove_scratch(self, worker: GuardedWorker) -> None:
        pass  # the log in it may still be wanted; it goes with the guard

    # The end

    def _end_if_silent(self) -> None:
        silent = self._login.silent_seconds()
        if silent > self.longest_silence and not self._is_alone:
            if not self._is_users:
                self._login.end()
            self._be_alone(silent)

    def _channel_ended(self) -> None:
        """Handle the end of the login. Agents go on for their leases, as they may still be connected to the session."""
        if not self._is_alone:
            self._be_alone(0)

    def _be_alone(self, silent: float) -> None:
        """Go on without the login, which has been silent for some seconds."""
        self._is_alone = True
        self._seen_at = max(self._seen_at, time.monotonic() - silent)
        self._loop.forget(self._channel.reader)
        self._loop.forget(self._channel.writer)
        self._unsent.clear()
        if not self._lease or not self._workers:
            self._loop.stop()
            return
        self._loop.call_every(CHECK_SECONDS, self._end_if_alone)

    def _end_if_alone(self) -> None:
        away = time.monotonic() - self._seen_at
        if away > self._lease + LEASE_MARGIN or (away > AWAY_SECONDS and self._all_have_ended()):
            self._loop.stop()

    def _all_have_ended(self) -> bool:
        return all(worker.has_ended for worker in self._workers.values())

    def _end_if_idle(self) -> None:
        if time.monotonic() - self._heard_at > IDLE_SECONDS and self._all_have_ended():
            self._loop.stop()


def _usual_address() -> str:
    """Return the address from which this host connects to most others; empty where it has none."""
    try:
        return own_address("192.0.2.1")  # an address reserved for examples, which no host has
    except OSError:
        return ""


def channel_of_login() -> PipeChannel:
    """Return the channel over this process's input and output, after the word by which the platform finds its start."""
    reader, writer = os.dup(0), os.dup(1)
    linux.redirect_to_null(0, 1)
    os.write(writer, READY)
    return PipeChannel(reader, writer)


def main(folder: str) -> None:
    """Run the guard of this login, with the folder ``folder``."""
    HostGuard(channel_of_login(), folder).run()
