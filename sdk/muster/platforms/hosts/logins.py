"""The logins of one platform object: made for several hosts at once, made again where they break, ended together."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

from muster.agent.removal import remove_folder
from muster.errors import MusterError
from muster.platforms.hosts.failures import together
from muster.platforms.hosts.login import Login
from muster.platforms.parallel import for_all
from muster.records.scratch import make_scratch

PAUSE = 1.0  # seconds between two attempts to log in again


class Logins:
    """Logins to hosts, each made when it is first asked for.

    Args:
        lease: seconds that workers go on without the session.
        word: by which the guards know this platform object when it comes by another login.
    """

    def __init__(self, lease: float, word: str) -> None:
        self._lease = lease
        self._word = word
        self._opening = threading.Lock()
        self._folders: list[Path] = []  # for ssh's control sockets, where there are any
        self._made: dict[str, Login] = {}
        self._repairs: dict[str, threading.Thread] = {}
        self.troubles: dict[str, str] = {}  # why a login that has broken could not be made again so far
        weakref.finalize(self, _close_all, self._made, self._folders, os.getpid())

    def get(self, host: str) -> Login:
        """The login to a host, which is made where there is none. Raises PlatformError."""
        if not self.is_open(host):
            self.open([host])
        return self._made[host]

    def made(self, host: str) -> Login | None:
        """The login to a host, broken or not; None where there never was one."""
        return self._made.get(host)

    def is_open(self, host: str) -> bool:
        """Return whether there is a login to the host."""
        return host in self._made and self._made[host].is_open

    def open(self, hosts: Iterable[str]) -> None:
        """Log in to the hosts of which there is no login yet, or none any more. Raises PlatformError."""
        with self._opening:
            missing = [host for host in hosts if not self.is_open(host)]
            if not missing:
                return
            if not self._folders:
                self._folders.append(make_scratch())
            folder = self._folders[0]

            def open_one(host: str) -> Login:
                login = Login(host, folder)
                login.open(self._lease, self._word)
                return login

            made, failed = for_all(open_one, missing)
            for host, login in made.items():
                if host in self._made:
                    self._made[host].kill()
                self._made[host] = login
        if failed:
            raise together(failed)

    def repair(self, host: str) -> None:
        """Have a login that has broken made again, without waiting for it."""
        before = self._repairs.get(host)
        if before is None or not before.is_alive():
            self._repairs[host] = threading.Thread(
                target=self._repair, args=(host,), name="muster-ssh-again", daemon=True
            )
            self._repairs[host].start()

    def _repair(self, host: str) -> None:
        try:
            self.open([host])
            self.troubles.pop(host, None)
        except MusterError as error:
            self.troubles[host] = error.message
            time.sleep(PAUSE)

    def close(self) -> None:
        """End all of them, and everything at their far ends, and wait until that is gone."""
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
