"""The logins of one platform object: opened at the same time, opened again when they break, and closed together."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

from muster.agent.removal import remove_folder
from muster.errors import MusterError
from muster.platforms.hosts.failures import HostBusy, together
from muster.platforms.hosts.login import HOST_GUARD, Login
from muster.platforms.parallel import for_all
from muster.records.scratch import make_scratch

PAUSE = 1.0  # seconds between two attempts to log in again
# Seconds, about, between attempts on a host that hangs up: an sshd refuses some of more than ten logins at once, and
# all hosts behind the same jump host are logged in to at once.
BUSY_PAUSES = (0.2, 0.5, 1.0, 2.0, 3.0)


class Logins:
    """Logins to hosts, each opened when it is first needed.

    Args:
        lease: seconds that workers keep running without the session.
        word: secret by which the guards recognize this platform object in a later login.
        guard: the agent's module with the guard that each login starts.
    """

    def __init__(self, lease: float, word: str, guard: str = HOST_GUARD) -> None:
        self._guard = guard
        self._lease = lease
        self._word = word
        self._opening = threading.Lock()
        self._folders: list[Path] = []  # for ssh's control sockets: none or one
        self._made: dict[str, Login] = {}
        self._repairs: dict[str, threading.Thread] = {}
        self.troubles: dict[str, MusterError] = {}  # why a broken login could not be opened again so far, by host
        weakref.finalize(self, _close_all, self._made, self._folders, os.getpid())

    def get(self, host: str) -> Login:
        """Return the login to a host, opening it where needed. Raises PlatformError."""
        if not self.is_open(host):
            self.open([host])
        return self._made[host]

    def made(self, host: str) -> Login | None:
        """Return the login to a host, even if it is broken; None where there never was one."""
        return self._made.get(host)

    def is_open(self, host: str) -> bool:
        """Return whether there is a login to the host that has not ended."""
        return host in self._made and self._made[host].is_open

    def open(self, hosts: Iterable[str]) -> None:
        """Log in to those of these hosts to which no login is open. Raises PlatformError."""
        with self._opening:
            missing = [host for host in hosts if not self.is_open(host)]
            if not missing:
                return
            if not self._folders:
                self._folders.append(make_scratch())
            folder = self._folders[0]
            made, failed = for_all(lambda host: self._open_one(host, folder), missing)
            for host, login in made.items():
                if host in self._made:
                    self._made[host].kill()
                self._made[host] = login
        if failed:
            raise together(failed)

    def _open_one(self, host: str, folder: Path) -> Login:
        for pause in BUSY_PAUSES:
            try:
                return self._attempt(host, folder)
            except HostBusy:
                time.sleep(pause * random.uniform(0.5, 1.5))  # so that they do not all come back at once
        return self._attempt(host, folder)

    def _attempt(self, host: str, folder: Path) -> Login:
        login = Login(host, folder, self._guard)
        login.open(self._lease, self._word)
        return login

    def repair(self, host: str, seconds: float = 0.0) -> None:
        """Start to open a broken login again, and wait for it for some seconds at most."""
        before = self._repairs.get(host)
        if before is None or not before.is_alive():
            self._repairs[host] = threading.Thread(
                target=self._repair, args=(host,), name="muster-ssh-again", daemon=True
            )
            self._repairs[host].start()
        self._repairs[host].join(seconds)

    def _repair(self, host: str) -> None:
        try:
            self.open([host])
            self.troubles.pop(host, None)
        except MusterError as error:
            self.troubles[host] = error
            time.sleep(PAUSE)

    def close(self) -> None:
        """End all logins with their guards and agents, and wait until they are gone."""
        _close_all(self._made, self._folders, os.getpid())


def _close_all(logins: dict[str, Login], folders: list[Path], owner: int) -> None:
    if owner != os.getpid():  # a forked child, whose parent goes on
        return
    closing = [logins.pop(host) for host in [*logins]]
    for login in closing:
        login.begin_close()
    for login in closing:
        login.finish_close()
    while folders:
        remove_folder(folders.pop())
