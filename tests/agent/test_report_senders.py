"""Whose a report is, an agent knows from the kernel, whatever rank the report names."""

from __future__ import annotations

import json
import os
import socket
import textwrap
from pathlib import Path
from typing import Any

from tests.agent.launched import Launched, platform, worker
from tests.support import eventually

__all__ = ["platform", "worker"]

SEND = """
import json, os, signal, socket, subprocess, sys, time

def send(kind, rank, **fields):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(dict(fields, kind=kind, rank=rank)).encode(), os.environ["MUSTER_REPORT"])

def raised(rank, text, process=None):
    send("exception", rank, type="ValueError", message=text, traceback="", process=process)
"""


def start(worker: Launched, rank: int | None, program: str) -> None:
    """Start a process that sends reports as ``program`` says."""
    worker.send(
        "start", argv=["python3", "-c", SEND + textwrap.dedent(program)], env={}, cwd=None, rank=rank, split=False
    )


def reports(worker: Launched, count: int) -> list[dict[str, Any]]:
    """The first reports that the agent has passed on."""

    def listen() -> list[dict[str, Any]] | None:
        worker.session.listen(0.05)
        found = [message["report"] for message in worker.session.received("report")]
        return found if len(found) >= count else None

    found: list[dict[str, Any]] = eventually(listen, f"{count} reports")
    return found


def test_a_report_has_the_rank_of_the_process_that_sends_it(worker: Launched) -> None:
    start(worker, 1, "time.sleep(60)")
    start(worker, 0, "raised(1, 'forged'); send('progress', 1, step=1); send('stage', 2, stage='x'); time.sleep(60)")
    assert [(report["kind"], report["rank"]) for report in reports(worker, 3)] == [
        ("exception", 0),
        ("progress", 0),
        ("stage", 0),
    ]


def test_what_a_descendant_reports_is_its_rank_s(worker: Launched) -> None:
    start(worker, 0, "time.sleep(60)")
    start(worker, 1, "if os.fork() == 0: raised(0, 'of a child')\ntime.sleep(60)")
    (report,) = reports(worker, 1)
    assert (report["message"], report["rank"]) == ("of a child", 1)


def test_what_an_orphan_reports_is_its_rank_s(worker: Launched) -> None:
    start(worker, 0, "time.sleep(60)")
    start(
        worker,
        1,
        f"""
        if os.fork() == 0:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
            while os.getppid() != {worker.hello["pid"]}:
                time.sleep(0.01)
            raised(0, "of an orphan")
        time.sleep(60)
        """,
    )
    (report,) = reports(worker, 1)
    assert (report["message"], report["rank"]) == ("of an orphan", 1)


def test_what_a_process_reports_that_is_gone_at_once_is_the_only_rank_s(worker: Launched) -> None:
    start(worker, 1, "if os.fork() == 0: raised(0, 'gone'); os._exit(0)\ntime.sleep(60)")
    (report,) = reports(worker, 1)
    assert (report["message"], report["rank"]) == ("gone", 1)


AS_GONE = """
if os.fork() == 0:
    os.kill({agent}, signal.SIGSTOP)
    if os.fork() == 0:
        {report}
        os._exit(0)
    os.wait()
    os.kill({agent}, signal.SIGCONT)
    os._exit(0)
time.sleep(60)
"""


def gone(worker: Launched, report: str) -> str:
    """A program that has a process report that is gone before the agent looks."""
    return AS_GONE.format(agent=worker.hello["pid"], report=report)


def test_a_process_that_is_gone_at_once_says_itself_of_which_rank_it_was(worker: Launched) -> None:
    """As Python does that a script of the shell has started, on a machine where the agent has to wait for its turn."""
    start(worker, 0, "time.sleep(60)")
    start(worker, 1, gone(worker, "raised(0, 'gone', os.environ['MUSTER_PROCESS'])"))
    (report,) = reports(worker, 1)
    assert (report["message"], report["rank"]) == ("gone", 1)


def test_a_process_that_is_gone_and_was_none_of_the_ranks_is_a_stranger(worker: Launched) -> None:
    start(worker, 1, gone(worker, "raised(1, 'forged', '77')"))
    assert "not one of its ranks" in worker.output_with("is dropped")
    assert worker.session.received("report") == []


def test_a_claim_counts_for_nothing_where_the_kernel_knows(worker: Launched) -> None:
    start(worker, 0, "time.sleep(60)")
    start(worker, 1, "if os.fork() == 0: raised(0, 'forged', '1'); time.sleep(60)\ntime.sleep(60)")
    (report,) = reports(worker, 1)
    assert (report["message"], report["rank"]) == ("forged", 1)


def test_a_process_s_last_words_are_its_own(worker: Launched) -> None:
    start(worker, 1, "time.sleep(60)")
    start(worker, 0, "raised(1, 'the last word'); os._exit(3)")
    (report,) = reports(worker, 1)
    assert report["rank"] == 0


def test_nothing_is_passed_on_of_processes_that_are_not_the_worker_s(worker: Launched) -> None:
    start(worker, 0, "print('up', flush=True); time.sleep(60)")
    worker.output_with("up")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for _ in range(2):
            forged = {"kind": "exception", "rank": 0, "type": "ValueError", "message": "of a stranger", "traceback": ""}
            sender.sendto(json.dumps(forged).encode(), str(Path(worker.spec.scratch) / "report.sock"))
    told = worker.output_with("not one of its ranks")
    assert told.count("is dropped") == 1
    assert f"process {os.getpid()}" in told
    assert worker.session.received("report") == []


def test_a_process_can_report_only_so_many_exceptions_and_others_are_heard_beside_it(worker: Launched) -> None:
    start(worker, 0, "for number in range(5000): raised(1, 'forged')\nprint('sent', flush=True); time.sleep(60)")
    worker.output_with("sent")
    start(worker, 1, "raised(1, 'true'); time.sleep(60)")

    def is_heard() -> bool:
        worker.session.listen(0.05)
        return any(message["report"]["message"] == "true" for message in worker.session.received("report"))

    eventually(is_heard, "the true one is passed on")
    assert len(worker.session.received("report")) < 10
