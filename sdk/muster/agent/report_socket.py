"""The socket to which a worker's processes send their reports, with the kernel's word on which process sends each."""

import json
import os
import socket
import struct

from . import linux, wire
from .loop import Loop
from .processes import MARK, Child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Report = tuple[Any, ...]

LARGEST_REPORT = 1 << 17  # bytes
REPORTS_AT_ONCE = 100
MOST_IN_QUEUE = 1000  # reports that wait in the kernel when a process ends; Linux keeps 10 to some hundred
MOST_EXCEPTIONS = 4  # reports of exceptions that one process may send: a script raises one
CREDENTIALS = struct.Struct("3i")  # of the sender: process, user, group


class ReportSocket:
    """The reports of a worker's processes, each with the rank of the process that has sent it.

    Any process of the user may send anything. So the rank in a report is not believed: the kernel says which process
    has sent it, and the report is that of the rank which this process is, or descends from. Of one that is gone already
    nobody knows that, as of the interpreter that a script of the shell has started: there the report says itself from
    which of the agent's processes it comes (``MARK``), which it has from its environment.

    Args:
        loop: the agent's event loop.
        folder: where the socket is made.
        take: called with each valid report.
        remark: called with why a report is dropped, once for each kind of reason, as more of the same are likely.
    """

    def __init__(
        self, loop: Loop, folder: str, take: "Callable[[Report], object]", remark: "Callable[[str], object]"
    ) -> None:
        self._folder = folder
        self._take = take
        self._remark = remark
        self._remarked: "set[str]" = set()
        self._reporters: "dict[int, Child]" = {}  # by process id
        self._exceptions: "dict[int, int]" = {}  # how many were reported, by process id
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(os.path.join(folder, "report.sock"))
        self._socket.setblocking(False)
        loop.on_readable(self._socket, self.receive)

    def expect_from(self, child: Child) -> None:
        """Take the reports of a process and its descendants."""
        self._reporters[child.pid] = child

    @property
    def reporters(self) -> "list[Child]":
        """The processes whose reports are taken, as those of their descendants are."""
        return list(self._reporters.values())

    def forget(self, child: Child) -> None:
        """Take what an ended process has sent, and no more of it from then on."""
        self.receive(MOST_IN_QUEUE)
        self._reporters.pop(child.pid, None)
        self._exceptions.pop(child.pid, None)

    def owner_of(self, pid: int, claim: object = None) -> "Child | None":
        """Return the process that ``pid`` is or descends from; None if it is none of the worker's.

        Args:
            pid: the process.
            claim: the mark in its report, if it has sent one. It counts where the process is gone already, or has
                overwritten its environment.
        """
        ancestor = pid
        while ancestor not in self._reporters:
            process = linux.stat(ancestor)
            if process is None:
                return self._of_mark(claim)
            if process.parent == os.getpid():  # an orphan, adopted by this process
                return self._of_mark(linux.mark_of(ancestor, MARK) or claim)
            if process.parent <= 1:
                return None
            ancestor = process.parent
        return self._reporters[ancestor]

    def release(self) -> None:
        """Tell the process that has returned, and serves others, that it may end (``runner.py``). Raises OSError."""
        self._socket.sendto(b".", os.path.join(self._folder, "done.sock"))

    def receive(self, most: int = REPORTS_AT_ONCE) -> None:
        """Take reports that have arrived."""
        try:
            for _ in range(most):
                data, control, _, _ = self._socket.recvmsg(LARGEST_REPORT, socket.CMSG_SPACE(CREDENTIALS.size))
                pids = [CREDENTIALS.unpack(said)[0] for _, kind, said in control if kind == socket.SCM_CREDENTIALS]
                self._read(data, *pids)
        except BlockingIOError:
            pass

    def _read(self, data: bytes, pid: int = 0) -> None:
        try:
            fields = json.loads(data.decode("utf-8"))
            report = wire.read_report(fields)
        except wire.Misfit as error:
            self._drop("misfit", str(error))
            return
        except (ValueError, RecursionError):
            self._drop("misfit", "it is not JSON")
            return
        sender = self.owner_of(pid, fields.get("process"))
        if sender is None:
            self._drop("stranger", "process {} is not one of its ranks, nor started by one".format(pid))
            return
        if isinstance(report, wire.Raised):
            self._exceptions[sender.pid] = self._exceptions.get(sender.pid, 0) + 1
            if self._exceptions[sender.pid] > MOST_EXCEPTIONS:
                self._drop("exceptions", "process {} has reported {} exceptions".format(sender.pid, MOST_EXCEPTIONS))
                return
        if hasattr(report, "rank"):
            report = report._replace(rank=sender.rank)
        self._take(report)

    def _drop(self, reason: str, why: str) -> None:
        if reason not in self._remarked:
            self._remarked.add(reason)
            self._remark("a report is dropped, and so are others like it: {}".format(why))

    def _of_mark(self, mark: object) -> "Child | None":
        """Return the process with a mark; without one it was the worker's only process, if there is only one."""
        found = [child for child in self._reporters.values() if mark in (None, child.key)]
        return found[0] if len(found) == 1 else None
