"""A registry of images of the tests' own: Debian's docker-registry, without encryption and without logins."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.support import free_port

START_SECONDS = 60
SETTINGS = """\
version: 0.1
storage:
  filesystem:
    rootdirectory: {folder}/images
http:
  addr: 127.0.0.1:{port}
"""


class Registry:
    """A registry on this machine, which runs.

    Args:
        root: the folder in which Docker's packages are unpacked.

    Attributes:
        port: its port, on the loopback address.
        address: its host and port.
    """

    def __init__(self, root: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mst-"))
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        settings, log = self._folder / "registry.yml", self._folder / "log"
        settings.write_text(SETTINGS.format(folder=self._folder, port=self.port))
        with log.open("wb") as output:
            command = [str(root / "usr/bin/docker-registry"), "serve", str(settings)]
            self._process = subprocess.Popen(command, env=os.environ, stdout=output, stderr=output)
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        said = log.read_text()[-500:]
        self.remove()
        pytest.skip(f"no registry starts here: {said}")

    def remove(self) -> None:
        """End it, and remove what was pushed to it."""
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder)
