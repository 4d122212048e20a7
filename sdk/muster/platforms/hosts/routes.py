"""Routes from hosts to the session: each dials it where it can, and comes through its own login otherwise."""

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
DIAL_SECONDS = 2.0  # after which a host counts as one that cannot dial the session


class Routes:
    """Routes from some hosts to the session: by dialling it, or through a tunnel.

    Args:
        logins: to the hosts.
        tunnel: whether all of them need a tunnel; None to find out.
    """

    def __init__(self, logins: Logins, tunnel: bool | None) -> None:
        self._logins = logins
        self._tunnel = tunnel
        self._needs_tunnel: dict[str, bool] = {}

    def reach(self, hosts: Sequence[str]) -> Reach:
        """Return where the session has to listen for these hosts, each of which is tried. Raises PlatformError.

        Agents are always told by a relay what to dial, as each host may see another address. So launchers run on the
        first worker, too: a host's port for ssh may be all that the session reaches, and the hosts' interfaces have
        other names than this machine's.
        """
        self._find(hosts)
        seen = {self._seen_from(host) for host in hosts if not self._needs_tunnel[host]}
        listen = (seen.pop() if len(seen) == 1 else ANY) if seen else HERE
        return Reach(listen, listen, relayed=True)

    def forget(self) -> None:
        """Find out anew when asked again."""
        self._needs_tunnel.clear()

    def describe(self) -> str:
        """Return, in words, how the hosts reach the session."""
        through = [host for host, needs in self._needs_tunnel.items() if needs]
        directly = [host for host, needs in self._needs_tunnel.items() if not needs]
        parts = [f"{', '.join(directly)} dialling this session"] if directly else []
        parts += [f"{', '.join(through)} reaching it through ssh"] if through else []
        return "; ".join(parts)

    def route(self, host: str, session: tuple[str, int], there: int = 0) -> tuple[str, int]:
        """Return what agents on a host dial to reach this address of the session.

        Args:
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
    """Carries the connections of one pool's agents, as far as they need that.

    Args:
        routes: of the hosts.
        session: host and port that the session listens on.
        placement: which host each worker is on.
    """

    def __init__(self, routes: Routes, session: tuple[str, int], placement: Placement) -> None:
        self._routes = routes
        self._session = session
        self._placement = placement
        self._found: dict[str, tuple[str, int]] = {}

    def addresses_for(self, specs: Sequence[WorkerSpec]) -> list[tuple[str, int]]:
        """Return what the workers' agents dial, each on the host that is its own from now on."""
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
        """Make a host's tunnel again, where it had one, once the login that it went through has been made again."""
        found = self._found.get(host)
        if found is not None and found[0] == HERE:
            with contextlib.suppress(MusterError):  # then its agents stay cut off, and that is told
                self._routes.route(host, self._session, found[1])

    def close(self) -> None:
        """Forget them: forwarded ports go with their logins."""
        self._found.clear()


@contextlib.contextmanager
def _answering(word: str) -> Iterator[int]:
    """Tell whoever connects this word, at a port of all addresses of this machine."""
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
