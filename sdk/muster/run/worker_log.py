"""Logs that the session writes of output that agents send."""

from __future__ import annotations

import os
from pathlib import Path


class WorkerLog:
    """A worker's log as the session writes it, in the format of the agent's own: see :mod:`muster.agent.logfile`.

    Args:
        path: the file; older output is in ``<log>.1``.
        cap: its largest size in bytes.
    """

    def __init__(self, path: Path, cap: int) -> None:
        self._path = path
        self._cap = cap
        self._size = 0
        self._lost = 0  # bytes that could not be written since something was
        self._has_failed = False

    def write(self, text: str) -> str:
        """Append a worker's output. Output that cannot be written is dropped; the log says so once it can be again.

        Returns:
            Why it cannot be written, the first time; else an empty text.
        """
        output = text.encode("utf-8", "surrogateescape")
        data = output
        if self._lost:
            mark = f"\n[muster] {self._lost} bytes of output are lost: this file could not be written\n"
            data = mark.encode() + output
        try:
            if self._size and self._size + len(data) > self._cap:
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
                self._size = 0
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb", buffering=0) as file:
                while data:
                    written = file.write(data)
                    self._size += written
                    data = data[written:]
            self._lost = 0
        except OSError as error:
            self._lost = len(data) if len(data) <= len(output) else self._lost + len(output)
            if not self._has_failed:
                self._has_failed = True
                return f"The log {self._path} cannot be written, so it lacks output: {error.strerror or error}."
        return ""
