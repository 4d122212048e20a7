"""Logs that the session writes of output that agents send."""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger("muster")


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
        self._has_failed = False

    def write(self, text: str) -> None:
        """Append a worker's output. Output that cannot be written is dropped, with one warning in the session's log."""
        data = text.encode("utf-8", "surrogateescape")
        try:
            if self._size and self._size + len(data) > self._cap:
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
                self._size = 0
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(data)
            self._size += len(data)
        except OSError as error:
            if not self._has_failed:
                logger.warning("the log %s cannot be written: %s", self._path, error)
            self._has_failed = True
