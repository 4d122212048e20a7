"""The reason why a process is silent, according to the kernel.

The process may be suspended; or some of its connections have unread data, get no answer, or block its main thread.
"""

import os

from . import linux, wire

STOPPED = ("T", "t")  # states of a process: by SIGSTOP, and by a debugger
ESTABLISHED, CLOSE_WAIT = "01", "08"
RETRANSMITS = 2  # from this number on unanswered attempts are more than a lost packet
MOST = 64  # connections of one process that are reported
READS = {"x86_64": (0, 19, 45, 47), "aarch64": (63, 65, 207, 212)}  # read, readv, recvfrom and recvmsg


def is_stopped(pid: int) -> bool:
    """Return whether a process is suspended, by a signal or a debugger."""
    try:
        with open("/proc/{}/stat".format(pid)) as file:
            return file.read().rpartition(")")[2].split()[0] in STOPPED
    except (OSError, IndexError):
        return False


def connections_of(pids: "list[int]") -> "tuple[wire.TcpConnection, ...]":
    """Return the TCP connections of a process and its descendants, first those that may explain a wait."""
    awaited = {_awaited(pid) for pid in pids}
    files = [name for pid in pids for name in linux.open_files(pid)]
    inodes = {name[len("socket:[") : -1] for name in files if name.startswith("socket:[")}
    found = []
    for table in ("tcp", "tcp6"):
        try:
            with open("/proc/{}/net/{}".format(pids[0], table)) as file:
                rows = [line.split() for line in file]
        except OSError:
            continue
        rows = [row for row in rows if row[3] in (ESTABLISHED, CLOSE_WAIT) and row[9] in inodes]
        found += [_connection(row, row[9] in awaited) for row in rows]
    return tuple(sorted(found, key=lambda end: (-end.is_awaited, -end.unanswered, -end.unread))[:MOST])


def _awaited(pid: int) -> str:
    """Return the inode of the socket on which a read of the main thread blocks; empty where none is known."""
    try:
        with open("/proc/{}/syscall".format(pid)) as file:
            number, descriptor = file.read().split()[:2]
        if int(number) not in READS.get(os.uname().machine, ()):
            return ""
        return os.readlink("/proc/{}/fd/{}".format(pid, int(descriptor, 16)))[len("socket:[") : -1]
    except (OSError, ValueError):  # the process runs, or is gone
        return ""


def _connection(row: "list[str]", is_awaited: bool) -> "wire.TcpConnection":
    """Return the connection in a row of the kernel's table.

    The row has the local and remote address, state, queues, timer and retransmissions.
    """
    unsent, _, unread = row[4].partition(":")
    is_closed = row[3] == CLOSE_WAIT  # the end of the connection can be read, too
    timer = row[5].partition(":")[0] if int(unsent, 16) else ""
    attempts = {"01": int(row[6], 16), "04": int(row[8])}.get(timer, 0)  # retransmissions, or probes of a full receiver
    unanswered = attempts if attempts >= RETRANSMITS else 0
    return wire.TcpConnection(
        _address(row[1]), _address(row[2]), int(unread, 16) or int(is_closed), unanswered, is_awaited
    )


def _address(field: str) -> str:
    """Return ``127.0.0.1:8080`` for ``0100007F:1F90``; an IPv6 address stays as the kernel shows it."""
    host, _, port = field.partition(":")
    if len(host) == 8:
        host = ".".join(str(int(host[start : start + 2], 16)) for start in (6, 4, 2, 0))
    return "{}:{}".format(host, int(port, 16))
