"""The log to which a worker's processes write, and from which output is sent to the session.

A full disk does not end a worker. Output that cannot be copied waits in the file that it comes from; losses are noted
in the log, and in the output that is shown, even where the log itself cannot be written.
"""

import codecs
import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

CHUNK = 1 << 16  # bytes per message; JSON may need six times as many, which is still less than wire.MAX_LINE
COPIED_AT_ONCE = 64  # chunks of a rank's log
KEPT_OF_THE_END = 1 << 20  # bytes of a full log that are kept where there is no room or no time for a full copy
FAST = 1 / 8  # growth between two checks, as a part of the cap, from which a log counts as filling fast
MOST_REMARKS = 100  # remarks that could not be written, and wait to be shown


class LogFile:
    """The worker's log: appended to by its processes, read by the agent, kept below a size.

    Args:
        path: the file; created (0600) where there is none.
        cap: its largest size in bytes.

    Attributes:
        is_filling: whether it has grown so fast since the last check that the next one must be soon.

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
        self._torn = b""  # the rest of data that was written only in part
        self._remarks: "list[str]" = []
        self._last_read = "\n"  # the character that was returned last
        self._is_cut = False  # whether what follows it is lost
        self._is_writable = True
        self._stuck_at = 0
        self._last_size = 0
        self._lost = 0  # bytes, since it was opened
        self.is_filling = False

    def read(self) -> str:
        """Return output since the last call, or a part of it; empty where there is none.

        Bytes that are not UTF-8 become lone surrogates; a character that is written only in part is held back. Where a
        remark or a loss comes within a line, a new one begins.
        """
        is_remark = bool(self._remarks)
        text = self._remarks.pop(0) if is_remark else self._decoder.decode(self._reader.read(CHUNK))
        if not text:
            return ""
        begins_line = (is_remark or self._is_cut) and self._last_read != "\n"
        self._is_cut = False
        self._last_read = text[-1]
        return "\n" + text if begins_line else text

    def rest(self) -> str:
        """Return the part of a character that ``read`` has held back, as nothing more is to be written."""
        return self._decoder.decode(b"", final=True)

    def size(self) -> int:
        """Return the log's size in bytes."""
        return os.fstat(self.descriptor).st_size

    def unread(self) -> int:
        """Return the number of calls of ``read`` that are needed to get all present output."""
        return len(self._remarks) + -(-max(0, self.size() - self._reader.tell()) // CHUNK)

    def write(self, text: str) -> None:
        """Append a remark of the agent, as a separate line. It is shown even where it cannot be written."""
        line = "[muster] {}\n".format(text)
        break_before = "\n" if self._ends_within_line() else ""
        if not self.append((break_before + line).encode("utf-8", "surrogateescape")):
            self._remark(line)

    def append(self, data: bytes) -> bool:
        """Append ``data``, and return True; return False, with nothing of it written, where there is no room now."""
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
        """Move the content to ``<log>.1`` once the log is full and, if ``wait_for_reader``, has been read.

        If the session reads too slowly, output is lost from its display, but not from the disk, once the log has twice
        the cap; so the two files hardly exceed five times the cap, and twice the cap where the session keeps up. If
        output is printed faster than it can be copied, only its end is kept.
        The processes hold the file open, so it is copied and truncated rather than renamed; they append, so they go on
        at its new start. Output written between copying and truncating is lost. Where there is no room for the copy,
        only the end of the log is kept, since the processes need the room more.
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
            self._stuck_at = self.size()  # another full copy at each check would hold up everything else
            return
        self._stuck_at = self._last_size = 0
        self._reader.seek(0)
        self._is_cut = lost > 0 or is_unread
        self._lost += lost
        if self._lost:  # repeated after each move, as the earlier remark may be lost, too
            why = ": {} {}.1".format(cause, self.path) if lost else " so far"
            self.write("{} bytes of output are lost{}".format(self._lost, why))
        if is_unread:
            self.write("{} bytes of output came too fast to be shown; they are in {}.1".format(missed, self.path))

    def _move_content(self, size: int) -> "tuple[int, str]":
        """Move the content to ``<log>.1``. Return how many bytes are lost, and why. Raises OSError."""
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
        """Copy the log, with output that is appended meanwhile. Return how many bytes are copied. Raises OSError.

        The copy is given up if output is appended faster than it is copied, since it would never end.
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
        """Empty the log, and keep only its end in ``<log>.1``. Return how many bytes are lost."""
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

    def _ends_within_line(self) -> bool:
        """Return whether what was appended last, by the agent or by a process, is no whole line."""
        try:
            size = self.size()
            return bool(size) and (self._torn[-1:] or os.pread(self._reader.fileno(), 1, size - 1)) != b"\n"
        except OSError:  # of a disk that fails, or a file that is gone from a shared one
            return False

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
        """Append output since the last call to ``log``, in whole lines, so that lines of several ranks do not mix."""
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
        log: the worker's log, to which everything is copied.

    Attributes:
        are_wanted: whether each rank that starts from now on gets a log of its own.
    """

    def __init__(self, log: LogFile) -> None:
        self._log = log
        self._logs: "dict[int, RankLog]" = {}
        self.are_wanted = False

    def open(self, rank: "int | None") -> "int | None":
        """Open the log of a rank, and return the descriptor to write to; None where it has no log of its own."""
        if rank is None or not self.are_wanted:
            return None
        path = os.path.join(os.path.dirname(self._log.path), "ranks", "rank-{}.log".format(rank))
        self.close(rank)  # any process of the worker may request a rank that exists
        try:
            self._logs[rank] = RankLog(path, self._log.cap)
        except OSError as error:
            self._log.write("rank {} has no log of its own: {}: {}".format(rank, path, error.strerror))
            return None
        return self._logs[rank].descriptor

    def copy(self) -> None:
        """Copy new output of all ranks to the worker's log."""
        for log in self._logs.values():
            log.copy_to(self._log)

    def are_filling(self) -> bool:
        """Return whether one of the logs grows so fast that the next check must be soon."""
        return any(log.is_filling for log in self._logs.values())

    def close(self, rank: "int | None") -> None:
        """Copy the rest of the output of a rank that has ended, and close its log."""
        if rank in self._logs:
            log = self._logs.pop(rank)
            log.copy_to(self._log, is_over=True)
            log.close()
