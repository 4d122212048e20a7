"""Clean-up in forked children."""

from __future__ import annotations

import os
import socket

import pytest
from muster.runtime.forks import close_in_children


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12, where there are threads
def test_a_socket_is_closed_in_forked_children_and_stays_open_here() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        close_in_children(ours)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if ours.fileno() == -1 and theirs.fileno() != -1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        ours.sendall(b"here")
        assert theirs.recv(4) == b"here"
