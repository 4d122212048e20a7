"""The changes that the program around horovodrun makes to it, tried with the real one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from muster.strategies.horovod import LAUNCHER
from muster.strategies.horovod_launcher import has_gloo

from tests.support import eventually, is_gone

RENDEZVOUS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import horovod_launcher
horovod_launcher.listen_where_the_ranks_are_told(sys.argv[2])
from horovod.runner.http.http_server import RendezvousServer
from horovod.runner.util import network
told = network.get_driver_ip(["lo"])
server = RendezvousServer()
port = server.start()
print(told, server._httpd.socket.getsockname()[0], server._httpd.server_port == port, flush=True)
os._exit(0)  # its thread would go on
"""

LOGINS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import horovod_launcher
horovod_launcher.start_fork_server()
horovod_launcher.use_the_librarys_distutils()
from horovod.runner import launch
horovod_launcher.fork_what_logs_in()
from horovod.runner.common.util import safe_shell_exec
show = "tr '\\\\0' ' ' < /proc/$PPID/cmdline; echo; exit 7"
code = safe_shell_exec.execute(show)
print(code, "setuptools" in sys.modules, os.listdir("."), flush=True)
safe_shell_exec.execute("echo $$; exec sleep 100")
"""  # a login that imported it once more would log in itself


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that logs in twice as horovodrun does: the first login says who has started it, the second stays."""
    pytest.importorskip("horovod")
    (tmp_path / "f").mkdir()  # whose path is short enough for a socket in it
    shutil.copy(LAUNCHER, tmp_path)
    (tmp_path / "logins.py").write_text(LOGINS)
    argv = [sys.executable, str(tmp_path / "logins.py"), str(tmp_path)]
    with subprocess.Popen(argv, cwd=tmp_path / "f", stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_login_is_no_interpreter_of_its_own(launcher: subprocess.Popen[str]) -> None:
    assert launcher.stdout is not None
    started_by, told = launcher.stdout.readline(), launcher.stdout.readline()
    assert "forkserver" in started_by
    assert told.startswith(f"7 {sys.version_info >= (3, 12)} ['pymp-")


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_logins_end_with_the_launcher(launcher: subprocess.Popen[str], end: signal.Signals) -> None:
    assert launcher.stdout is not None
    login = int([launcher.stdout.readline() for _ in range(3)][-1])
    server = int(Path(f"/proc/{login}/stat").read_text().rpartition(")")[2].split()[1])
    launcher.send_signal(end)
    launcher.wait(10)
    eventually(lambda: is_gone(login), "the end of the login")
    eventually(lambda: is_gone(server), "the end of what has started it")


@pytest.mark.parametrize(
    ("given", "told", "listens"),
    [
        ("", "127.0.0.1", "127.0.0.1"),  # that of the interface
        ("127.0.0.2", "127.0.0.2", "127.0.0.2"),
        ("192.0.2.1", "192.0.2.1", "0.0.0.0"),  # of a router that passes connections on to this machine
        ("session.invalid", "session.invalid", "0.0.0.0"),  # a name that only the workers know
    ],
)
def test_the_rendezvous_listens_where_the_ranks_are_told(tmp_path: Path, given: str, told: str, listens: str) -> None:
    pytest.importorskip("horovod")
    shutil.copy(LAUNCHER, tmp_path)  # as a run does
    argv = [sys.executable, "-c", RENDEZVOUS, str(tmp_path), given]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines()[-1] == f"{told} {listens} True", done.stderr
    assert ("is not an address of this machine" in done.stdout) == (listens == "0.0.0.0")


def test_what_tensorflow_tells_of_itself_is_not_among_the_launchers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str | None] = []

    def gloo_built(verbose: bool) -> bool:  # horovodrun's imports TensorFlow
        levels.append(os.environ.get("TF_CPP_MIN_LOG_LEVEL"))
        return True

    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    assert has_gloo(SimpleNamespace(gloo_built=gloo_built))
    assert levels == ["2"]
    assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ, "the ranks get the launcher's environment"
