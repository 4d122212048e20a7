"""Workers on this machine that do not dial the session, but a relay of their platform's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from muster.errors import PlatformError
from muster.job import WorkerSpec
from muster.platforms.base import Reach, Relay
from muster.platforms.local import LocalPlatform

from tests.support import environment

PROGRAM = Path(__file__).with_name("relay_process.py")


class ProcessRelay(Relay):
    """A process of its own, as a tunnel of ssh's is one."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, str(port))
        self.process = self._start("0")
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.asked: list[tuple[str, int]] = []
        self.is_closed = False

    def _start(self, port: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), *self._target, port]
        return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)

    def addresses_for(self, specs: Sequence[WorkerSpec]) -> list[tuple[str, int]]:
        self.asked += [(spec.name, spec.generation) for spec in specs]
        return [("127.0.0.1", self.port)] * len(specs)

    def repair(self) -> None:
        """Make a new one at the same address."""
        self._end()
        self.process = self._start(str(self.port))
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def close(self) -> None:
        self.is_closed = True
        self._end()

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Relayed(LocalPlatform):
    """Its session listens on an address that agents are told nothing of."""

    name = "relayed"
    lease_seconds = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.relays: list[ProcessRelay] = []

    def reach(self) -> Reach:
        return Reach("127.0.0.3", "127.0.0.3", relayed=True)

    def open_relay(self, host: str, port: int) -> Relay:
        assert host == "127.0.0.3", "where the session listens"
        self.relays.append(ProcessRelay(host, port))
        return self.relays[-1]


class Unrelayed(Relayed):
    """A platform whose relay cannot be made."""

    def open_relay(self, host: str, port: int) -> Relay:
        raise PlatformError("The tunnel cannot be made: permission denied.", advice="log in by hand once")
