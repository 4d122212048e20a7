"""The log that a worker's processes write to, and its way to the session.

None of this ends a worker where a disk is full. What cannot be written waits in the files that it comes from; what has
to be given up is said in the log, and in what is shown of it even where the log itself takes nothing.
"""

import codecs
import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

CHUNK = 1 << 16  # bytes per message; JSON may need six times as many, which is still less than wire.MAX_LINE
COPIED_AT_ONCE = 64  # chunks of a rank's log
KEPT_OF_THE_END = 1 << 20  # bytes of a full log that are kept where there is no room or no time for a copy of all of it
FAST = 1 / 8  # of the cap, between two looks at a log
MOST_REMARKS = 100  # that wait to be shown and could not be written


class LogFile:
    """The worker's log: appended to by its processes, read by the agent, kept below a size.

    Args:
        path: the file; created (0600) where there is none.
        cap: its largest size in bytes.

    Attributes:
        is_filling: whether it has grown so fast since the last look that the next must not wait for long.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str, cap: int) -> None:
        self.path = path
        self.cap = cap
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o600)
        self._reader = open(path, "rb", buffering=0)  # noqa: SIM115  (for as long as the agent lives)
        self._reader.seek(0, os.SEEK_END)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._torn = b""  # the rest of what was written in part only
        self._remarks: "list[str]" = []
        self._is_writable = True
        self._stuck_at = 0
        self._last_size = 0
        self._lost = 0  # bytes, since it was opened
        self.is_filling = False

    def read(self) -> str:
        """Return the text printed since the last call, or a part of it; empty where there is none.

        Bytes that are not UTF-8 come as lone surrogates; a character that is written only in part is held back.
        """
        if self._remarks:
            return self._remarks.pop(0)
        return self._decoder.decode(self._reader.read(CHUNK))

    def size(self) -> int:
        """Its size in bytes."""
        return os.fstat(self.descriptor).st_size

    def unread(self) -> int:
        """Return the number of calls of ``read`` that it takes to get all that is there by now."""
        return len(self._remarks) + -(-max(0, self.size() - self._reader.tell()) // CHUNK)

    def write(self, text: str) -> None:
        """Add a remark of the agent's own, as a line of its own. It is shown even where it cannot be written."""
        line = "[muster] {}\n".format(text)
        if not self.append(line.encode("utf-8", "surrogateescape")):
            self._remark(line)

    def append(self, data: bytes) -> bool:
        """Add ``data``, and return True; False where there is no room now, and nothing of it has been taken."""
        try:
            while self._torn:
                self._torn = self._torn[os.write(self.descriptor, self._torn) :]
            self._torn = data[os.write(self.descriptor, data) :]
        except OSError as error:
            if self._is_writable:
                self._remark("[muster] {} cannot be written: {}\n".format(self.path, error.strerror))
            self._is_writable = False
            return False
        if data:
            self._is_writable = True
        return True

    def rotate_when_full(self, wait_for_reader: bool) -> None:
        """Move the content to ``<log>.1`` once the log is full, and has been read if anybody reads it.

        A session that reads too slowly loses output from its display, but not from the disk, once the log has twice
        its size; so the two files hardly keep more than five times the cap, and twice where the session keeps up.
        Of what is printed faster than it can be copied, only the end is kept.
        The processes hold the file open, so it is copied and emptied rather than renamed; they append, so they go on
        at its new start. What is written in the instant between copying and emptying is lost. Where there is no room
        for the copy, only the end of the log is kept: the processes need the room more.
        """
        size = self.size()
        self.is_filling = size - self._last_size > self.cap * FAST
        self._last_size = size
        is_unread = wait_for_reader and self._is_unread()
        if size <= max(self.cap, self._stuck_at) or (is_unread and size <= 2 * self.cap):
            return
        missed = size - self._reader.tell()
        try:
            lost, cause = self._move_content(size)
        except OSError as error:
            if not self._stuck_at:
                self.write("{} cannot be emptied: {}".format(self.path, error.strerror))
            self._stuck_at = self.size()  # another copy of all of it at each check would hold up everything else
            return
        self._stuck_at = self._last_size = 0
        self._reader.seek(0)
        self._lost += lost
        if self._lost:  # said again at each new start, as the log may have lost what said it
            why = ": {} {}.1".format(cause, self.path) if lost else " so far"
            self.write("{} bytes of output are lost{}".format(self._lost, why))
        if is_unread:
            self.write("{} bytes of output came too fast to be shown; they are in {}.1".format(missed, self.path))

    def _move_content(self, size: int) -> "tuple[int, str]":
        """Move the content to ``<log>.1``. Returns how many bytes of it are lost, and why. Raises OSError."""
        too_fast = "they came too fast for"
        with open(self.path, "rb", buffering=0) as source:
            try:
                with open(self.path + ".1", "wb") as target:
                    os.fchmod(target.fileno(), 0o600)
                    kept = self._copy_content(source.fileno(), target.fileno(), size)
            except OSError:
                return self._keep_end(source), "there is no room for more than"
            if self._has_outgrown(size):
                return self._keep_end(source), too_fast
        lost = self.size() - kept
        os.ftruncate(self.descriptor, 0)
        return lost, too_fast

    def _copy_content(self, source: int, target: int, size: int) -> int:
        """Copy what the log has, and what comes meanwhile. Returns how many bytes are copied. Raises OSError.

        Whoever prints faster than this copies would have it never end, and the log grow all the while: it is given up.
        """
        copied = start = max(0, size - 2 * self.cap)
        while not self._has_outgrown(size):
            data = os.pread(source, COPIED_AT_ONCE * CHUNK, copied)
            if not data:
                break
            copied += os.write(target, data)
        return copied - start

    def _has_outgrown(self, size: int) -> bool:
        return self.size() > size + self.cap

    def _keep_end(self, source: "IO[bytes]") -> int:
        """Empty the log, and keep its end alone in ``<log>.1``. Returns how many bytes are lost."""
        size = self.size()
        source.seek(max(0, size - min(size // 2, KEPT_OF_THE_END)))
        end = source.read(KEPT_OF_THE_END)
        size = self.size()
        os.ftruncate(self.descriptor, 0)
        try:
            with open(self.path + ".1", "wb") as target:
                os.fchmod(target.fileno(), 0o600)
                target.write(end)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(self.path + ".1")
            return size
        return size - len(end)

    def _is_unread(self) -> bool:
        return self.size() > self._reader.tell()

    def _remark(self, line: str) -> None:
        if len(self._remarks) < MOST_REMARKS:
            self._remarks.append(line)


class RankLog(LogFile):
    """The log of one of several ranks of a worker, whose lines go into the worker's log as well."""

    def __init__(self, path: str, cap: int) -> None:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        super().__init__(path, cap)
        self._unfinished = b""
        self._waiting = b""  # whole lines that the worker's log had no room for

    def copy_to(self, log: LogFile, is_over: bool = False) -> None:
        """Append to ``log`` what has been printed since the last call: whole lines, so that ranks do not mix theirs."""
        for _ in range(self.unread() + 2 if is_over else COPIED_AT_ONCE):
            if not log.append(self._waiting):
                break
            data = self._reader.read(CHUNK)
            lines, newline, self._unfinished = (self._unfinished + data).rpartition(b"\n")
            self._waiting = lines + newline
            if not data:
                break
        if not self._waiting and self._unfinished and (is_over or len(self._unfinished) > CHUNK):
            self._waiting, self._unfinished = self._unfinished + b"\n", b""
            if log.append(self._waiting):
                self._waiting = b""
        if is_over and (self._waiting or self._is_unread()):
            log.write("the end of what this rank printed is not here but in {} alone".format(self.path))
        self.rotate_when_full(wait_for_reader=True)

    def close(self) -> None:
        """Close the file; the rank may still have it open."""
        self._reader.close()
        os.close(self.descriptor)


class RankLogs:
    """The logs of the ranks that run in a worker, where it is asked to split them.

    Args:
        log: the worker's, into which everything goes as well.

    Attributes:
        are_wanted: whether each rank that starts from now on gets a log of its own.
    """

    def __init__(self, log: LogFile) -> None:
        self._log = log
        self._logs: "dict[int, RankLog]" = {}
        self.are_wanted = False

    def open(self, rank: "int | None") -> "int | None":
        """The descriptor that a rank is to write to; None where it has no log of its own."""
        if rank is None or not self.are_wanted:
            return None
        path = os.path.join(os.path.dirname(self._log.path), "ranks", "rank-{}.log".format(rank))
        self.close(rank)  # any process of the worker may ask for a rank that there is already
        try:
            self._logs[rank] = RankLog(path, self._log.cap)
        except OSError as error:
            self._log.write("rank {} has no log of its own: {}: {}".format(rank, path, error.strerror))
            return None
        return self._logs[rank].descriptor

    def copy(self) -> None:
        """Bring the worker's log up to date."""
        for log in self._logs.values():
            log.copy_to(self._log)

    def are_filling(self) -> bool:
        """Return whether one of them must not wait for long to be looked at again."""
        return any(log.is_filling for log in self._logs.values())

    def close(self, rank: "int | None") -> None:
        """Copy the rest of what a rank has printed, now that it has ended."""
        if rank in self._logs:
            log = self._logs.pop(rank)
            log.copy_to(self._log, is_over=True)
            log.close()
