"""The demo would see what is left behind, and fails where it should. CI runs `make demo` itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from muster.commands import demo
from muster.errors import PlatformUnsupported, ScriptFailed
from muster.records.runs import Run

from tests.dashboard.recording import record


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return record(tmp_path, n_workers=1)


@pytest.fixture
def straggler(run: Run) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the run that has survived it."""
    environment = {**os.environ, "MUSTER_RUN_ID": run.run_id}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as process:
        yield process


class TestWhatIsLeft:
    def test_nothing(self, run: Run) -> None:
        assert demo.processes_left(run) == []
        assert demo.ports_left(run) == []

    def test_a_process(self, run: Run, straggler: subprocess.Popen[bytes]) -> None:
        assert demo.processes_left(run) == [f"process {straggler.pid} ({sys.executable} -c input())"]

    def test_not_a_process_that_ends_meanwhile(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        class Ended:
            def __init__(self, pid: int = 1) -> None:
                self.pid = pid

            def children(self, recursive: bool) -> list[Ended]:
                return [self]

            def create_time(self) -> float:
                raise psutil.NoSuchProcess(self.pid)

        monkeypatch.setattr(psutil, "Process", Ended)
        assert demo.processes_left(run) == []

    def test_a_port_of_a_worker(self, run: Run) -> None:
        host = next(event.data["host"] for event in run.events() if event.kind == "worker_ready")
        with socket.create_server((host, 0)) as server:
            port = server.getsockname()[1]
            assert f"port {host}:{port}" in demo.ports_left(run)

    def test_a_port_of_the_session(self, run: Run) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert demo.ports_left(run) == [f"port 127.0.0.1:{server.getsockname()[1]}"]

    def test_a_file(self) -> None:
        before = tempfile.gettempdir(), os.environ.get("TMPDIR")
        with demo.own_temporary_folder() as folder:
            assert demo.files_left(folder) == []
            path = Path(tempfile.mkdtemp())
            assert demo.files_left(folder) == [f"file {path}"]
        assert not folder.exists()
        assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before


def outcome(training: demo.Training, accuracy: float = 0.98, left: tuple[str, ...] = ()) -> demo.TrainingOutcome:
    return demo.TrainingOutcome(training, "digits: 8 to train, 2 to test", accuracy, 12.3, left)


class TestVerdict:
    @pytest.mark.parametrize(
        ("changes", "status", "said"),
        [
            ({}, 0, "left behind    no process, no port, no temporary file"),
            ({}, 0, "jupyter lab notebooks/mnist_horovod.ipynb"),
            ({"accuracy": 0.93}, 1, "93.00%, which is less than 95%"),
            ({"accuracy": float("nan")}, 1, "nan%, which is less than 95%"),
            ({"left": ("process 7", "port 127.0.0.1:8")}, 1, "left behind    process 7, port 127.0.0.1:8"),
        ],
    )
    def test_by_accuracy_and_what_is_left(
        self,
        changes: dict[str, Any],
        status: int,
        said: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(demo, "train", lambda training: outcome(training, **changes))

        assert demo.main() == status
        assert said in capsys.readouterr().out

    def test_without_sshd_the_horovod_part_is_skipped_loudly(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def train(training: demo.Training) -> demo.TrainingOutcome:
            if training.strategy == "horovod":
                raise PlatformUnsupported("this machine has no sshd.", advice="apt-get install openssh-server")
            return outcome(training)

        monkeypatch.setattr(demo, "train", train)

        assert demo.main() == 0
        said = capsys.readouterr()
        assert "SKIPPED: Horovod on 2 workers" in said.err
        assert "apt-get install openssh-server" in said.err
        assert "NOT EVERYTHING WAS SHOWN" in said.out

    def test_a_run_that_fails(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        def train(training: demo.Training) -> demo.TrainingOutcome:
            raise ScriptFailed("worker-0 failed.", advice="fix it")

        monkeypatch.setattr(demo, "train", train)

        assert demo.main() == 1
        assert "worker-0 failed.\nTry: fix it" in capsys.readouterr().err

    def test_outside_the_repository(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(demo, "SCRIPTS", tmp_path / "absent")

        assert demo.main() == 1
