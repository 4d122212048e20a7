"""The changes that the program around horovodrun makes to it, tried with the real one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from muster.strategies.horovod import LAUNCHER

RENDEZVOUS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import horovod_launcher
horovod_launcher.listen_where_the_ranks_are_told()
from horovod.runner.http.http_server import RendezvousServer
from horovod.runner.util import network
told = network.get_driver_ip(["lo"])
server = RendezvousServer()
port = server.start()
print(told, server._httpd.socket.getsockname() == ("127.0.0.1", port), flush=True)
os._exit(0)  # its thread would go on
"""


def test_the_rendezvous_listens_where_the_ranks_are_told(tmp_path: Path) -> None:
    pytest.importorskip("horovod")
    shutil.copy(LAUNCHER, tmp_path)  # as a run does
    argv = [sys.executable, "-c", RENDEZVOUS, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["127.0.0.1", "True"], done.stderr
