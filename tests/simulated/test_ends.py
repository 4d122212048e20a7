"""The order in which processes of a run end on the session's own machine."""

from __future__ import annotations

import errno
import os
import select
import subprocess
from collections.abc import Iterator

import pytest
from muster.run import ends
from muster.run.ends import Ends

RUN = "20260101-000000-ends"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [
        subprocess.Popen(["sleep", "60"], env={"PATH": os.defpath, "MUSTER_RUN_ID": run})
        for run in (RUN, RUN, RUN, RUN, "another")
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # nobody has to have been told


def test_ends_come_in_their_order_however_late_they_are_asked_for(processes: list[subprocess.Popen[bytes]]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    watched = Ends(RUN)
    end(processes[3])
    for process in processes:
        watched.watch(process.pid)
    assert watched.place_of(processes[0].pid) is None
    for number in (1, 4, 2):
        end(processes[number])
    places = [watched.place_of(process.pid) for process in processes]
    assert places == [None, 0, 1, None, None], "of the fourth, which had ended before, and of another run's, nothing"
    end(processes[0])
    assert watched.place_of(processes[0].pid) == 2
    watched.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert watched.place_of(processes[1].pid) == 0


def test_no_more_than_so_many_are_watched_at_a_time(
    processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "MOST", 1)
    watched = Ends(RUN)
    for process in processes[:2]:
        watched.watch(process.pid)
        end(process)
    assert watched.place_of(processes[1].pid) is None
    assert watched.place_of(processes[0].pid) == 0
    watched.watch(processes[2].pid)
    end(processes[2])
    assert watched.place_of(processes[2].pid) == 1
    watched.close()


def test_where_the_kernel_tells_nothing_there_is_no_order_and_nothing_is_left_open(
    processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullQueue:
        """An epoll whose user watches as much as they may."""

        def register(self, descriptor: int, events: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    def forbid(pid: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    before = set(os.listdir("/proc/self/fd"))
    for owner, name, value in ((os, "pidfd_open", None), (os, "pidfd_open", forbid), (select, "epoll", FullQueue)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value) if value else patch.delattr(owner, name)
            watched = Ends(RUN)
            watched.watch(processes[0].pid)
            assert watched.place_of(processes[0].pid) is None
            watched.close()
        assert set(os.listdir("/proc/self/fd")) == before
