"""TensorBoard beside the session: real processes, asked over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import muster
import psutil
import pytest
from muster.errors import TensorBoardFailed

from tests.event_files import write_events
from tests.support import command_line, descendants_of, environment, eventually, free_port, is_gone

pytestmark = pytest.mark.slow
SDK = str(Path(muster.__file__).parent.parent)


def ask(url: str, path: str = "") -> Any:
    with urllib.request.urlopen(f"{url}{path}", timeout=10) as answer:
        body = answer.read().decode()
    return json.loads(body) if path else body


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, which must be empty in the end."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    eventually(lambda: not list(folder.iterdir()), f"nothing left in {folder}")


def test_it_shows_a_folder_until_its_block_ends(tmp_path: Path, temporary: Path, monkeypatch: Any) -> None:
    write_events(tmp_path / "logs" / "train")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")  # nobody there

    with muster.tensorboard("logs") as board:
        url, pid = board
        assert (board.url, board.pid, board.is_running) == (url, pid, True)
        assert url.startswith("http://127.0.0.1:")
        monkeypatch.delenv("http_proxy")
        assert "<title>TensorBoard</title>" in ask(url)
        eventually(lambda: ask(url, "data/runs") == ["train"], "the run is read")
        helpers = descendants_of(pid)

    assert all(is_gone(process) for process in [pid])
    eventually(lambda: all(map(is_gone, helpers)), "what it started is gone, too")
    assert not board.is_running
    board.close()


def test_who_has_only_its_port_gets_nothing(tmp_path: Path, temporary: Path) -> None:
    write_events(tmp_path / "logs" / "train")
    with muster.tensorboard(tmp_path / "logs") as board:
        host, _, secret = board.url.removeprefix("http://").strip("/").partition("/")
        assert len(secret) >= 32
        for path in ("", "data/runs", "data/environment", f"{secret[:-1]}x/data/runs", "index.js"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                ask(f"http://{host}/", path)
        processes = [board.pid, *descendants_of(board.pid)]
        assert not [pid for pid in processes if secret in command_line(pid)]
        ports = {port for pid in processes for port in listening_ports(pid)}
        assert ports == {int(host.rpartition(":")[2])}, "nor does a helper of it serve on another port"


def listening_ports(pid: int) -> list[int]:
    """TCP ports that a process listens on."""
    listening = [c for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return [int(connection.laddr[1]) for connection in listening]


def test_several_serve_at_once_and_outlive_the_threads_that_asked_for_them(tmp_path: Path, temporary: Path) -> None:
    run = muster.run_cluster(1, strategy="processes", worker_script=lambda: None, memory=0.5, dashboard=False)
    with ThreadPoolExecutor() as pool:
        boards = list(pool.map(muster.tensorboard, [tmp_path / "one", run]))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPool")]

    for folder, board in zip((tmp_path / "one", run.run_dir / "tensorboard"), boards, strict=True):
        assert ask(board.url, "data/environment")["data_location"] == str(folder)
        board.close()
    assert boards[0].url != boards[1].url


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_the_session_however_that_ends(tmp_path: Path, temporary: Path, number: signal.Signals) -> None:
    program = "import muster, time\nurl, pid = muster.tensorboard('logs')\nprint(pid, flush=True)\ntime.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as session:  # fmt: skip
        assert session.stdout is not None
        pid = int(session.stdout.readline())
        processes = [pid, *descendants_of(pid)]
        session.send_signal(number)
        session.wait()
    eventually(lambda: all(map(is_gone, processes)), "TensorBoard and what it started are gone")


class TestInAWorkbenchSession:
    @pytest.fixture(autouse=True)
    def port(self, monkeypatch: pytest.MonkeyPatch) -> int:
        port = free_port()
        session = {"APP_PORT": str(port), "DOMAIN": "workbench.example.org", "ENGINE_ID": "abc123"}
        for name, value in {**session, "PROJECT_URL": "https://workbench.example.org/api/v1/p"}.items():
            monkeypatch.setenv(f"CDSW_{name}", value)
        return port

    def test_it_serves_on_the_application_port(self, tmp_path: Path, port: int) -> None:
        with muster.tensorboard(tmp_path) as board:
            assert board.url == "https://abc123.workbench.example.org/"
            assert "<title>TensorBoard</title>" in ask(f"http://127.0.0.1:{port}/")

            with pytest.raises(TensorBoardFailed, match=f"port {port} is taken by process {board.pid}"):
                muster.tensorboard(tmp_path)

    def test_a_port_that_somebody_else_has_is_named(self, tmp_path: Path, port: int) -> None:
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(TensorBoardFailed, match=f"application port {port} is taken\\."),
        ):
            muster.tensorboard(tmp_path)


def test_an_interpreter_without_it_is_named() -> None:
    program = f"import sys; sys.path.insert(0, {SDK!r}); import muster; muster.tensorboard('logs')"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, env={**os.environ})

    assert f"TensorBoardFailed: {sys.executable} has no TensorBoard." in done.stderr
    assert f"Try: {sys.executable} -m pip install 'muster[tensorflow]'" in done.stderr


def test_what_it_said_is_in_the_error_if_it_does_not_come_up(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "__init__.py").write_text("raise RuntimeError('half installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(TensorBoardFailed, match="RuntimeError: half installed"):
        muster.tensorboard(tmp_path)


def test_one_that_is_too_slow_is_not_left_running(tmp_path: Path, temporary: Path) -> None:
    before = set(descendants_of(os.getpid()))

    with pytest.raises(TensorBoardFailed, match="did not come up"):
        muster.tensorboard(tmp_path, timeout_seconds=0.05)

    assert set(descendants_of(os.getpid())) <= before
