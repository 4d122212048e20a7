"""The agent's end of the report socket, for tests."""

import json
import os
import socket
import tempfile
import threading
from typing import Any


class Listener:
    """Reads what reporting processes send until the block is left; the path is short, as sockets need it."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._folder.name, "report.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> "Listener":
        self._reader.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.path)
        self._reader.join()
        self._socket.close()
        self._folder.cleanup()

    def of_rank(self, rank: int) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["rank"] == rank]

    def _read(self) -> None:
        while datagram := self._socket.recv(65536):
            self.messages.append(json.loads(datagram))
