"""What a process at the far end of a login knows of it. How it ends one is tested on real sshds, with hosts."""

from __future__ import annotations

import os
import socket
import time

import pytest
from muster.agent.own_login import OwnLogin

from tests.support import eventually


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_kernel_tells_how_long_a_client_has_been_silent(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        server, _ = listener.accept()
    ends = [*server.getpeername()[:2], *server.getsockname()[:2]]
    monkeypatch.setenv("SSH_CONNECTION", " ".join(map(str, ends)))
    login = OwnLogin()
    client.sendall(b"a")
    began = time.monotonic()
    eventually(lambda: login.silent_seconds() >= 0.5, "it is silent")
    assert time.monotonic() - began >= 0.4
    client.sendall(b"b")
    eventually(lambda: login.silent_seconds() < 0.4, "it is heard")
    client.close()
    server.close()


@pytest.mark.parametrize("said", ["", "nonsense", "127.0.0.1 9 127.0.0.1 9", "::1 9 127.0.0.1 9", "a b c d"])
def test_where_there_is_no_such_connection_nothing_is_known(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", said)
    login = OwnLogin()
    assert login.silent_seconds() == 0
    login.end()  # no sshd has started this process
    assert os.getppid()
