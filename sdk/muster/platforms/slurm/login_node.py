"""A login node of a Slurm cluster that the session's machine is not part of, reached by ssh."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.agent.fields import port, whole, yes_or_no
from muster.errors import PlatformError
from muster.job import WorkerSpec
from muster.platforms.base import Reach, Relay
from muster.platforms.guard_answers import checked
from muster.platforms.hosts.login import ANSWER_SECONDS, Login
from muster.platforms.hosts.logins import Logins
from muster.platforms.hosts.routes import Routes
from muster.platforms.slurm.site import Site

logger = logging.getLogger("muster")

GUARD = "slurm_guard"  # the agent's module with the guard that runs there
MARGIN = 5.0  # seconds for the way there and back


class LoginNode(Site):
    """A login node.

    Args:
        host: as ssh knows it.
        lease: seconds that workers keep running without the session.
    """

    missing_advice = "a login node of the cluster, on which `ssh HOST sbatch --version` works"

    def __init__(self, host: str, lease: float) -> None:
        super().__init__(host)
        self.place = f"on {host}"
        self._lease = lease
        self._logins = Logins(lease, secrets.token_hex(16), GUARD)
        self._routes = Routes(self._logins, tunnel=True)
        self._lock = threading.RLock()
        self._current: Login | None = None
        self._connection: object = None
        self._ended_at: float | None = None  # when it was seen that the login had ended, until there is another one
        self._watched: tuple[Sequence[str], Sequence[str]] = ((), ())
        self._relays: dict[int, tuple[tuple[str, int], str]] = {}  # by port there: the session, and the address
        self._due: list[int] = []  # ports of those that this login has yet to open again

    def call(self, request: str, seconds: float | None = None, **fields: Any) -> Mapping[str, Any]:
        """Have the guard there do it, after logging in where no login is open."""
        limit = ANSWER_SECONDS if seconds is None else seconds + MARGIN
        return self._login().ask("slurm", limit, call=request, fields=fields)

    @property
    def connection(self) -> object:
        """An object for the jobs and relays that live there, the same over several logins; None without any."""
        if self._logins.is_open(self.host):
            self._ended_at = None
        elif self._ended_at is None:
            self._ended_at = time.monotonic()
        elif time.monotonic() > self._ended_at + self._lease:
            return None
        return self._connection

    def _login(self) -> Login:
        """Return the login, after logging in where none is open: what the one before has left there is taken over.

        Raises:
            PlatformError: the host cannot be used.
        """
        with self._lock:
            before, login = self._current, self._logins.get(self.host)
            if login is not before:
                is_same = before is not None and self._takes_over(before, login)
                if not is_same:
                    self._connection = object()
                    self._relays.clear()
                self._current, self._due = login, [*self._relays]
            while self._due:  # where one cannot be opened, the next call tries again
                session, address = self._relays[self._due[-1]]
                self._relay(login, session, address, self._due[-1])
                self._due.pop()
            return login

    def _takes_over(self, before: Login, login: Login) -> bool:
        """Have a login's guard take over the jobs of an earlier one's; return whether that still watched them."""
        labels, folders = self._watched
        if not labels:
            return False
        answer = login.ask("take_over", guard=[*before.guard], labels=[*labels], folders=[*folders])
        if not checked(answer, {"done": yes_or_no}, self.host)["done"]:
            return False
        logger.warning("The login to %s had ended. This session has logged in again, and goes on.", self.host)
        return True

    @property
    def clock_offset(self) -> float:  # type: ignore[override]
        """Seconds by which the clock there is ahead of the session's."""
        login = self._logins.made(self.host)
        return login.clock_offset if login else 0.0

    def log_in(self) -> str:
        """Log in where no login is open, and return the path of this session's interpreter there, empty without it.

        Raises:
            PlatformError: the host cannot be used, with the reason and what to try.
        """
        return str(self._login().facts["python"])

    def watch(self, labels: Sequence[str], folders: Sequence[str]) -> None:
        """Have the guard there cancel the jobs of these names, and remove these folders, once the login has ended."""
        login, self._watched = self._login(), (labels, folders)
        login.ask("watch", labels=[*labels], folders=[*folders])

    def reach(self) -> Reach:
        """Return how the session is reached from there: through the login, so that it listens on loopback only."""
        return self._routes.reach([self.host])

    def open_relay(self, session: tuple[str, int], address: str) -> tuple[str, int, int]:
        """Relay a free port of that machine to the session.

        Args:
            session: host and port that the session listens on.
            address: that machine's address, as compute nodes see it.

        Returns:
            The host and port that agents dial, and how many of them can be connected at the same time.

        Raises:
            PlatformError: ssh forwards no port, or the machine has no such address.
        """
        with self._lock:
            there, most = self._relay(self._login(), session, address)
            self._relays[there] = session, address
        return address, there, most

    def _relay(self, login: Login, session: tuple[str, int], address: str, there: int = 0) -> tuple[int, int]:
        """Return the port of a relay, ``there`` unless that is 0, and how many connections it carries."""
        host, forwarded = self._routes.route(self.host, session)
        answer = login.ask("relay", address=address, host=host, port=forwarded, there=there)
        found = checked(answer, {"port": port, "most": whole(1)}, self.host)
        return found["port"], found["most"]

    def end_relay(self, there: int) -> None:
        """End the relay at this port of that machine. Raises PlatformError."""
        with self._lock:
            self._relays.pop(there, None)
            self._due = [port for port in self._due if port != there]
            self._login().ask("end_relay", port=there)

    def hang_up(self) -> None:
        """End the login; the guard then removes what it still has to watch."""
        with self._lock:
            self._logins.close()
            self._current = self._connection = None
            self._due = []
            self._watched = (), ()
            self._relays.clear()


class LoginGuard:
    """The guard of a session's jobs on a login node, as :class:`muster.platforms.slurm.guard.JobGuard` is one here."""

    def __init__(self, site: LoginNode) -> None:
        self._site = site
        self._labels: list[str] = []
        self._folders: list[str] = []

    def watch_folder(self, folder: Path) -> None:
        """Have the guard remove a submission's folder after the session's end."""
        self._folders.append(str(folder))
        self._site.watch(self._labels, self._folders)

    def watch(self, label: str) -> None:
        """Have the guard cancel the jobs of this name after the session's end."""
        self._labels.append(label)
        self._site.watch(self._labels, self._folders)

    def close(self) -> None:
        """Tell the guard that nothing is left to remove; end it, and the login."""
        if self._site.connection is not None:
            with contextlib.suppress(PlatformError):
                self._site.watch([], [])
        self._site.hang_up()

    def clean_up(self) -> None:
        """Have the guard clean up now, without waiting for it; it ends when that is done."""
        self._site.hang_up()


class LoginRelay(Relay):
    """The relay of one pool's agents, through the login node.

    Args:
        site: the login node.
        session: host and port that the session listens on.
        address: returns the login node's address, as compute nodes see it.
    """

    def __init__(self, site: LoginNode, session: tuple[str, int], address: Callable[[], str]) -> None:
        self._site = site
        self._session = session
        self._address = address
        self._found: dict[object, tuple[str, int, int]] = {}  # by login: a relay ends with it

    def addresses_for(self, specs: Sequence[WorkerSpec]) -> list[tuple[str, int]]:
        """Return the login node's address and the relay's port for each worker.

        Raises:
            PlatformError: there is no relay, or it cannot carry so many connections.
        """
        self._site.log_in()
        login = self._site.connection
        if login not in self._found:
            self._found = {login: self._site.open_relay(self._session, self._address())}
        host, there, most = self._found[login]
        if len(specs) > most:
            raise PlatformError(
                f"{self._site.host} can carry the connections of {most} workers, and not of {len(specs)}: its sshd may "
                "not open more files.",
                advice="fewer workers; or run on the login node itself; or have sshd there started with a higher limit "
                "(LimitNOFILE of its unit)",
            )
        return [(host, there)] * len(specs)

    def close(self) -> None:
        """End the relay, unless it has ended with its login."""
        found = self._found.pop(self._site.connection, None)
        self._found.clear()
        if found is not None:
            with contextlib.suppress(PlatformError):
                self._site.end_relay(found[1])
