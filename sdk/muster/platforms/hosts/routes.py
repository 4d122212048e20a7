"""Routes from hosts to the session: each host dials it where possible, and else uses a tunnel through its login."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from muster.errors import MusterError
from muster.job import WorkerSpec
from muster.platforms.base import Reach, Relay
from muster.platforms.hosts.failures import together
from muster.platforms.hosts.logins import Logins
from muster.platforms.parallel import for_all
from muster.platforms.placement import Placement

ANY, HERE = "0.0.0.0", "127.0.0.1"
DIAL_SECONDS = 2.0  # after which a host is taken to be unable to dial the session


class Routes:
    """Routes from some hosts to the session: by dialling it, or through a tunnel.

    Args:
        logins: the logins to the hosts.
        tunnel: whether all hosts use a tunnel; None to find out for each.
    """

    def __init__(self, logins: Logins, tunnel: bool | None) -> None:
        self._logins = logins
        self._tunnel = tunnel
        self._needs_tunnel: dict[str, bool] = {}

    def reach(self, hosts: Sequence[str]) -> Reach:
        """Return the addresses for these hosts, after trying which of them can dial the session. Raises PlatformError.

        A relay always tells agents what to dial, as each host may see the session at another address. So launchers run
        on the first worker, too: the session may reach nothing but the hosts' ssh ports, and their network interfaces
        have other names than this machine's.
        """
        self._find(hosts)
        seen = {self._seen_from(host) for host in hosts if not self._needs_tunnel[host]}
        listen = (seen.pop() if len(seen) == 1 else ANY) if seen else HERE
        return Reach(listen, listen, relayed=True)

    def forget(self) -> None:
        """Forget which hosts need a tunnel, so that the next ``reach`` tries them again."""
        self._needs_tunnel.clear()

    def describe(self) -> str:
        """Return, in words, how the hosts reach the session."""
        through = [host for host, needs in self._needs_tunnel.items() if needs]
        directly = [host for host, needs in self._needs_tunnel.items() if not needs]
        parts = [f"{', '.join(directly)} dialling this session"] if directly else []
        parts += [f"{', '.join(through)} reaching it through ssh"] if through else []
        return "; ".join(parts)

    def route(self, host: str, session: tuple[str, int], there: int = 0) -> tuple[str, int]:
        """Return the host and port that agents on ``host`` dial to reach an address of the session.

        Args:
            host: the host, to which a tunnel is opened where it needs one.
            session: host and port that the session listens on.
            there: the port of the tunnel on the host; 0 for any.
        """
        login, (address, port) = self._logins.get(host), session
        if not self._needs_tunnel.get(host) and address in (ANY, self._seen_from(host)):
            return self._seen_from(host), port
        return HERE, login.forward(port, HERE if address == ANY else address, there)

    def _seen_from(self, host: str) -> str:
        return str(self._logins.get(host).facts["session"])

    def _find(self, hosts: Sequence[str]) -> None:
        unknown = [host for host in hosts if host not in self._needs_tunnel]
        if self._tunnel is not None:
            self._needs_tunnel.update(dict.fromkeys(unknown, self._tunnel))
            return
        if not unknown:
            return
        word = secrets.token_hex(8)
        with _answering(word) as port:

            def dial(host: str) -> dict[str, Any]:
                login = self._logins.get(host)
                return login.ask("dial", host=self._seen_from(host), port=port, word=word, limit=DIAL_SECONDS)

            answers, failed = for_all(dial, unknown)
        if failed:
            raise together(failed)
        self._needs_tunnel.update((host, answer.get("reached") is not True) for host, answer in answers.items())


class PoolRelay(Relay):
    """The relay of one pool's agents: a tunnel for each host that cannot dial the session.

    Args:
        routes: routes of the hosts.
        session: host and port that the session listens on.
        placement: places workers on hosts.
    """

    def __init__(self, routes: Routes, session: tuple[str, int], placement: Placement) -> None:
        self._routes = routes
        self._session = session
        self._placement = placement
        self._found: dict[str, tuple[str, int]] = {}

    def addresses_for(self, specs: Sequence[WorkerSpec]) -> list[tuple[str, int]]:
        """Place the workers on hosts, and return the host and port that each worker's agent dials."""
        hosts = self._placement.place(specs)
        try:
            for host in hosts:
                if host not in self._found:
                    self._found[host] = self._routes.route(host, self._session)
        except BaseException:
            self._placement.take_back(specs)
            raise
        return [self._found[host] for host in hosts]

    def renew(self, host: str) -> None:
        """Open a host's tunnel again, where it had one, after its login has been opened again."""
        found = self._found.get(host)
        if found is not None and found[0] == HERE:
            with contextlib.suppress(MusterError):  # its agents then stay cut off, and polls report that
                self._routes.route(host, self._session, found[1])

    def close(self) -> None:
        """Forget the addresses: tunnels end with their logins."""
        self._found.clear()


@contextlib.contextmanager
def _answering(word: str) -> Iterator[int]:
    """Send this word to every client that connects to a port of this machine, and yield that port."""
    with socket.create_server((ANY, 0), backlog=128) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(word.encode("ascii"))

        thread = threading.Thread(target=answer, name="muster-dial", daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(1)
