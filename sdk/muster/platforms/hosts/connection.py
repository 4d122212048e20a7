"""The ssh connection of a login: one of its own, or one that the user keeps open (``ControlMaster`` in ssh_config)."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from muster.errors import HostUnreachable
from muster.runtime import children
from muster.security.ssh import CONNECT_SECONDS

OWN = ("ControlMaster=yes", "ControlPersist=no")
# Runs a command once nobody holds the other end of its input any more, also after a kill -9 of this process.
WHEN_LEFT = ["sh", "-c", 'read -r _; exec "$@"', "sh"]
TAKE_BACK_SECONDS = 2.0


class HostConnection:
    """The connection of one login.

    Args:
        client: path of the ssh client.
        host: as ssh knows it.
        control: path of the login's own control socket; None for the user's, which ssh_config names.

    Attributes:
        client: path of the ssh client.
    """

    def __init__(self, client: str, host: str, control: Path | None) -> None:
        self.client = client
        self._host = host
        self._control = control
        self._to_take_back: list[subprocess.Popen[bytes]] = []

    @property
    def is_users(self) -> bool:
        """True if it is the user's, which goes on after the login."""
        return self._control is None

    @property
    def options(self) -> list[str]:
        """Options by which ssh opens it, or joins it if it is the user's."""
        return [*(OWN if self._control else ["ControlMaster=no"]), *self._path]

    @property
    def _path(self) -> list[str]:
        return [f"ControlPath={self._control}"] if self._control else []

    def forward(self, port: int, host: str, there: int) -> int:
        """Forward connections to a port of the host's loopback interface to an address that this machine reaches.

        Args:
            port, host: the address that they are forwarded to.
            there: the port on the host; 0 for any.

        Returns:
            The port on the host.

        Raises:
            HostUnreachable: the host does not answer, or does not allow that.
        """
        forwarded = f"127.0.0.1:{there}:{host}:{port}"
        try:
            done = subprocess.run(
                self._command("forward", forwarded),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CONNECT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise HostUnreachable(f"ssh to {self._host} does not forward a port: it does not answer.") from None
        if done.returncode or not (there or done.stdout.strip().isdecimal()):
            raise HostUnreachable(
                f"{self._host} has no port by which this session could be reached: its sshd forwards none.",
                advice="AllowTcpForwarding remote in its sshd_config",
                details=done.stderr,
            )
        if self.is_users:
            self._to_take_back.append(
                subprocess.Popen(
                    [*WHEN_LEFT, *self._command("cancel", forwarded)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        return there or int(done.stdout)

    def _command(self, verb: str, forwarded: str) -> list[str]:
        options = [word for option in (*self._path, "LogLevel=ERROR") for word in ("-o", option)]
        return [self.client, *options, "-O", verb, "-R", forwarded, "--", self._host]

    def close(self) -> None:
        """Take back what the user's connection forwards; one of the login's own ends with its ssh process."""
        while self._to_take_back:
            waiting = self._to_take_back.pop()
            assert waiting.stdin is not None
            with contextlib.suppress(OSError):
                waiting.stdin.close()
            children.ends_within(waiting, TAKE_BACK_SECONDS)
            children.kill(waiting)

    def abandon(self, nowhere: int) -> None:
        """Leave all to the process that made it, in a forked child of that one; ``nowhere`` is of the null device."""
        for waiting in self._to_take_back:
            if waiting.stdin is not None and not waiting.stdin.closed:
                os.dup2(nowhere, waiting.stdin.fileno())


def is_kept_open(client: str, host: str) -> bool:
    """Return whether the user keeps a connection to a host open, which other commands of theirs share."""
    command = [client, "-O", "check", "--", host]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=CONNECT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
