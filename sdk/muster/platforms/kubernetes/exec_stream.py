"""Streams to programs in pods, by the cluster's ``exec`` over a websocket."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlencode, urlsplit

from muster.errors import PlatformUnsupported
from muster.platforms.kubernetes.client import ApiClient, ApiRefused, ClusterGone, proxy_for, tls_context
from muster.platforms.kubernetes.credentials import Credential
from muster.platforms.kubernetes.kubeconfig import SET_UP
from muster.platforms.kubernetes.proxies import credentials_of
from muster.runtime.extras import extra

PROTOCOLS = ["v5.channel.k8s.io", "v4.channel.k8s.io"]  # the server chooses the first that it knows
INPUT, OUTPUT, TROUBLE, OUTCOME = range(4)  # channels: the program's standard streams, and its exit status
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 15.0
RECORD = 1 << 14  # bytes in one record of TLS
AT_ONCE = 1 << 18  # bytes that are read before they are decoded


class ExecStream:
    """The input and output of a program in a pod, without blocking.

    Args:
        connection: the connection, after the websocket's handshake.

    Attributes:
        unsent: bytes that are yet to be sent.
        is_open: whether more output may come.
    """

    def __init__(self, connection: socket.socket) -> None:
        with extra("kubernetes"):
            import websocket
        self.unsent = bytearray()
        self.is_open = True
        self._connection = connection
        self._connection.setblocking(False)
        self._received = bytearray()
        self._frames = websocket.frame_buffer(self._take, True)
        self._channel: int | None = None

    def fileno(self) -> int:
        """Return the connection's file descriptor."""
        return self._connection.fileno()

    def send(self, data: bytes) -> None:
        """Append input for the program to ``unsent``; ``transmit`` sends it."""
        from websocket import ABNF

        self.unsent += ABNF.create_frame(bytes([INPUT]) + data, ABNF.OPCODE_BINARY).format()

    def transmit(self) -> None:
        """Send as much of ``unsent`` as the connection takes. Raises OSError where the connection is broken."""
        try:
            while self.unsent:
                # TLS wants a repeated send to begin with the same bytes. It does, as data is only added at the end.
                del self.unsent[: self._connection.send(bytes(self.unsent[:RECORD]))]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            pass

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """Yield received data, as channels and bytes.

        Raises:
            OSError: the connection is broken.
            ValueError: the data is not a websocket's.
        """
        from websocket import ABNF, WebSocketException

        goes_on = self._read()
        while self.is_open:
            try:
                frame = self._frames.recv_frame()
            except _Short:
                self.is_open = goes_on
                return
            except WebSocketException as error:
                raise ValueError(str(error)) from error
            data = frame.data.encode() if isinstance(frame.data, str) else bytes(frame.data)
            if frame.opcode == ABNF.OPCODE_CLOSE:
                self.is_open = False
            elif frame.opcode == ABNF.OPCODE_PING:
                self.unsent += ABNF.create_frame(data, ABNF.OPCODE_PONG).format()
            elif frame.opcode == ABNF.OPCODE_CONT and self._channel is not None:
                yield self._channel, data
            elif frame.opcode in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and data:
                self._channel = data[0]
                yield data[0], data[1:]

    def _read(self) -> bool:
        """Read available bytes up to a limit, and return False at the end of the stream."""
        try:
            while data := self._connection.recv(RECORD):
                self._received += data
                if len(self._received) > AT_ONCE and not _has_more(self._connection):
                    return True
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return True
        return False

    def _take(self, count: int) -> bytes:
        """Return received bytes to the decoder. Where there are none it is interrupted, and resumes later."""
        if not self._received:
            raise _Short
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def close(self) -> None:
        """Close the connection, which ends the program's input."""
        self.is_open = False
        self._connection.close()


class _Short(Exception):
    """More bytes are needed to decode a frame."""


def _has_more(connection: socket.socket) -> bool:
    """Return whether there are decrypted bytes, which a selector does not notice."""
    return isinstance(connection, ssl.SSLSocket) and connection.pending() > 0


def outcome(data: bytes) -> str:
    """Return the cluster's message on a program's end; empty where it succeeded.

    >>> outcome(b'{"status": "Failure", "message": "exit code 1"}')
    'exit code 1'
    """
    try:
        said = json.loads(data)
        return "" if said.get("status") == "Success" else str(said.get("message") or said)
    except (ValueError, AttributeError):
        return data.decode("utf-8", "replace")


def open_exec(client: ApiClient, namespace: str, pod: str, container: str, command: Sequence[str]) -> ExecStream:
    """Run a program in a pod, and return the stream to it.

    Raises:
        ApiRefused: the cluster refuses: with 404 there is no such pod, with 403 this user lacks the right.
        ClusterGone: the cluster does not answer.
        PlatformUnsupported: the credentials cannot be had, or the proxy to the cluster cannot be used for streams.
    """
    query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec?" + urlencode([*query, *(("command", w) for w in command)])
    credential = client.credentials.current()
    try:
        return _open(client, path, credential)
    except ApiRefused as error:
        if error.code != 401 or not client.credentials.renew(credential):
            raise
    return _open(client, path, client.credentials.current())


def _open(client: ApiClient, path: str, credential: Credential) -> ExecStream:
    with extra("kubernetes"):
        import websocket
    server = client.access.server
    header = [f"Authorization: {credential.header}"] if credential.header else []
    client.requests += 1
    try:
        connection = _connect(client, credential)
        connection.settimeout(ANSWER_SECONDS)
        asking: Any = websocket.WebSocket()
        asking.connect(
            "ws" + server.removeprefix("http") + path,
            socket=connection,
            header=[*header, "User-Agent: muster"],
            subprotocols=PROTOCOLS,
            suppress_origin=True,
            redirect_limit=0,
        )
    except websocket.WebSocketBadStatusException as error:
        raise ApiRefused(f"GET {path.partition('?')[0]}", error.status_code, _said(error.resp_body)) from error
    except (websocket.WebSocketException, HTTPException, OSError) as error:
        raise ClusterGone(
            f"The cluster's API at {server} ({client.access.source}) opens no stream: {error}.", advice=SET_UP
        ) from error
    assert isinstance(asking.sock, socket.socket)
    return ExecStream(asking.sock)


def _said(body: bytes | None) -> dict[str, str]:
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        return {"message": (body or b"").decode("utf-8", "replace")[:500]}
    return found if isinstance(found, dict) else {}


def _connect(client: ApiClient, credential: Credential) -> socket.socket:
    """Connect to a cluster's API, through a proxy where there is one. Raises OSError, PlatformUnsupported."""
    access = client.access
    parts = urlsplit(access.server)
    host = str(parts.hostname)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    proxy = urlsplit(proxy_for(access))
    if proxy.scheme not in ("", "http"):
        raise PlatformUnsupported(
            f"The way to {access.server} is by the proxy {proxy.scheme}://{proxy.hostname}, of a kind that streams to "
            "pods cannot use.",
            advice="one of http",
        )
    if proxy.hostname:
        by = HTTPConnection(proxy.hostname, proxy.port or 80, timeout=CONNECT_SECONDS)
        login = credentials_of(proxy.geturl())
        by.set_tunnel(host, port, _basic(login) if login else {})
        try:
            by.connect()
        except BaseException:
            by.close()
            raise
        plain = by.sock
    else:
        plain = socket.create_connection((host, port), CONNECT_SECONDS)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if parts.scheme != "https":
        return plain
    try:
        return tls_context(access, credential).wrap_socket(plain, server_hostname=access.server_name or host)
    except BaseException:
        plain.close()
        raise


def _basic(login: str) -> dict[str, str]:
    import urllib3

    return urllib3.make_headers(proxy_basic_auth=login)
