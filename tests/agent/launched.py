"""A worker with a real agent, which tests of the agent's service give orders to."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.platforms.local import LocalPlatform
from muster.runner import runner

from tests.support import Run, StubSession, eventually

RUNNER = Path(runner.__file__)


class Launched:
    """One worker whose agent has said hello."""

    def __init__(self, run: Run, session: StubSession, platform: LocalPlatform, **changes: Any) -> None:
        self.spec = run.spec(session=session.address, **changes)
        self.session = session
        self.platform = platform
        (self.worker,) = platform.launch([self.spec])
        self.hello = session.wait_for("hello")

    def send(self, kind: str, **fields: Any) -> None:
        self.session.send(self.spec.name, kind, **fields)

    def start(self, *argv: str, **env: str) -> int:
        """Start a process and return its id."""
        before = len(self.session.received("started"))
        self.send("start", argv=argv, env=env, cwd=None)
        while len(self.session.received("started")) == before:
            self.session.listen(1)
        return int(self.session.received("started")[-1]["pid"])

    def sh(self, command: str, **env: str) -> int:
        return self.start("/bin/sh", "-c", command, **env)

    def python(self, program: str, *arguments: str) -> int:
        return self.start(sys.executable, "-c", textwrap.dedent(program), *arguments)

    def output_with(self, text: str) -> str:
        """Everything printed so far, once ``text`` is in it."""

        def listen() -> str | None:
            self.session.listen(0.05)
            return self.session.output() if text in self.session.output() else None

        found: str = eventually(listen, f"{text!r} in the output {self.session.output()!r}")
        return found


@pytest.fixture
def platform() -> Iterator[LocalPlatform]:
    platform = LocalPlatform(log_cap=1 << 20)
    yield platform
    platform.close()


@pytest.fixture
def worker(run: Run, stub_session: StubSession, platform: LocalPlatform) -> Launched:
    return Launched(run, stub_session, platform)
