"""The ssh login that this process runs in: how long its client has been silent, and the sshd process that serves it.

An sshd does not notice that its client was cut off before it has something to send, and then waits for a quarter of an
hour, unless its administrator has set ``ClientAliveInterval``. The kernel of its machine knows better.
"""

import os
import re
import signal
import socket
import struct

from . import linux

# The title of an sshd process that serves a connection of which no session has a terminal.
TITLE = re.compile(rb"sshd(?:-session)?: [^ ]+@notty")

# What linux/netlink.h, sock_diag.h and inet_diag.h define.
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
INET_DIAG_INFO = 2
HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
REQUEST = struct.Struct("=BBBxI")  # family, protocol, attributes wanted, states
PORTS = struct.Struct(">HH")  # here and there
INTERFACE_AND_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any
ANSWER_LENGTH = 72  # bytes of a struct inet_diag_msg, which attributes follow
ATTRIBUTE = struct.Struct("=HH")  # length, type
SINCE_DATA_AND_ACK = struct.Struct("=52xII")  # milliseconds, in a struct tcp_info


class OwnLogin:
    """The login that this process runs in."""

    def __init__(self) -> None:
        self._connection = os.environ.get("SSH_CONNECTION", "").split()
        self._sshd: "linux.Stat | None" = None  # None where it is not found
        self._command: "linux.Stat | None" = linux.stat(os.getpid())  # the child of sshd: this process, or its shell
        while self._command is not None:
            above = linux.stat(self._command.parent)
            if above is not None and _serves_no_terminal(above.pid):
                self._sshd = above
                break
            self._command = above

    def silent_seconds(self) -> float:
        """Return for how long nothing has come from the client; 0 where that cannot be told."""
        try:
            there, port_there, here, port_here = self._connection
            return _silence((here, int(port_here)), (there, int(port_there)))
        except (OSError, ValueError, struct.error):
            return 0.0

    def end(self) -> None:
        """End the sshd process, unless it serves anything besides this process.

        Another ssh client could start commands and terminals over the same connection, by a control socket. They are
        children of the same sshd process, and it has their terminals in its title.
        """
        if self._sshd is None or self._command is None:
            return
        pid = self._sshd.pid
        if not linux.is_running(pid, self._sshd.start) or not _serves_no_terminal(pid):
            return
        if [process.pid for process in linux.snapshot().values() if process.parent == pid] == [self._command.pid]:
            linux.kill(pid, signal.SIGTERM)


def _serves_no_terminal(pid: int) -> bool:
    """Return whether this is an sshd process that serves one connection, none of whose sessions has a terminal."""
    try:
        with open("/proc/{}/cmdline".format(pid), "rb") as file:
            return TITLE.fullmatch(file.read().rstrip(b"\0 ")) is not None
    except OSError:
        return False


def _silence(here: "tuple[str, int]", there: "tuple[str, int]") -> float:
    """Return for how long nothing has come over a TCP connection of any process of this machine.

    Raises:
        OSError: the kernel does not tell.
        ValueError: there is no such connection.
    """
    family = socket.AF_INET6 if ":" in here[0] else socket.AF_INET
    addresses = [socket.inet_pton(family, host.partition("%")[0]).ljust(16, b"\0") for host in (here[0], there[0])]
    wanted = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0xFFFFFFFF)
    wanted += PORTS.pack(here[1], there[1]) + b"".join(addresses) + INTERFACE_AND_COOKIE
    header = HEADER.pack(HEADER.size + len(wanted), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1)
        kernel.sendto(header + wanted, (0, 0))
        answer = kernel.recv(1 << 16)
    if HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        raise ValueError("there is no such connection")
    place = HEADER.size + ANSWER_LENGTH
    while True:
        length, kind = ATTRIBUTE.unpack_from(answer, place)
        if kind == INET_DIAG_INFO:
            return float(min(SINCE_DATA_AND_ACK.unpack_from(answer, place + ATTRIBUTE.size))) / 1000
        place += max(length + 3 & ~3, ATTRIBUTE.size)
