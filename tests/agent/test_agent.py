"""The agent's service to its session, tried with real agents and real processes."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import textwrap
import time
from pathlib import Path

import pytest
from muster.agent import wire
from muster.job import Resources, Status, Worker
from muster.platforms.local import LocalPlatform

from tests.agent.launched import RUNNER, Launched, platform, worker
from tests.support import Run, StubSession, eventually, free_of, handles_of, is_gone

__all__ = ["platform", "worker"]


def test_says_hello(run: Run, stub_session: StubSession, platform: LocalPlatform) -> None:
    hello = Launched(run, stub_session, platform, ports=3).hello
    assert hello["version"] == wire.VERSION
    assert hello["host"].startswith("127.")
    assert len(set(hello["ports"])) == 3
    assert (hello["ssh_port"], hello["host_key"]) == (None, None)
    assert hello["python"] == ".".join(map(str, sys.version_info[:3]))
    assert hello["gpus"] == []


def test_runs_processes_and_reports_their_ends(worker: Launched) -> None:
    first = worker.sh("exit 3")
    second = worker.sh("kill -SEGV $$")
    ends = {message["pid"]: message for message in worker.session.wait_for("exited", count=2)}
    assert (ends[first]["exit_code"], ends[first]["signal"], ends[first]["reason"]) == (3, None, None)
    assert (ends[second]["exit_code"], ends[second]["signal"]) == (None, 11)


def test_what_cannot_be_started_is_an_error_and_no_end(worker: Launched) -> None:
    worker.send("start", argv=["/no/such/program"], env={}, cwd=None)
    assert "/no/such/program: not found" in worker.session.wait_for("error")["text"]
    worker.send("start", argv=["/bin/true"], env={}, cwd="/no/such/folder")
    assert "/no/such/folder: not found" in worker.session.wait_for("error", count=2)[1]["text"]
    worker.sh("exit 0")
    assert worker.session.wait_for("exited")["exit_code"] == 0


def test_an_unknown_order_is_an_error(worker: Launched) -> None:
    worker.send("dance")
    assert "dance" in worker.session.wait_for("error")["text"]


def test_output_arrives_byte_for_byte(worker: Launched) -> None:
    printed = b"\xff\xfe caf\xc3\xa9 \xe2\x82 \r\n\0" + bytes(range(256)) * 20
    worker.python("import sys, os; os.write(1, bytes.fromhex(sys.argv[1]))", printed.hex())
    worker.session.wait_for("exited")
    assert worker.session.output().encode("utf-8", "surrogateescape") == printed
    assert worker.spec.log.read_bytes() == printed


def test_a_character_written_in_two_halves_arrives_whole(worker: Launched) -> None:
    worker.python("import os, time; os.write(1, b'<\\xc3'); time.sleep(0.3); os.write(1, b'\\xa9>')")
    assert worker.output_with(">") == "<é>"


def test_the_last_words_come_before_the_end(worker: Launched) -> None:
    worker.sh("echo last words; exit 1")
    worker.session.wait_for("exited")
    kinds = [message["type"] for _, message in worker.session.messages]
    assert kinds.index("output") < kinds.index("exited")


def test_a_slow_session_stalls_nobody_and_costs_no_memory(worker: Launched) -> None:
    count = 400_000
    pid = worker.sh(f"seq {count}")
    eventually(lambda: is_gone(pid), "the process ended although nobody listens")
    memory = int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{worker.hello['pid']}/status").read_text())[1])  # type: ignore[index]
    assert memory < 60_000  # kB; the output has 2.7 MB
    # The log held more than its cap before the session read on; what was skipped is on the disk.
    skipped = "came too fast to be shown"

    def has_all() -> bool:
        worker.session.listen(0.05)
        return f"\n{count}\n" in worker.session.output() or skipped in worker.session.output()

    eventually(has_all, "all is shown, or that it is not")
    text = worker.session.output()
    if skipped in text:
        assert Path(f"{worker.spec.log}.1").read_text().endswith(f"\n{count}\n")
    else:
        assert sum(line.isdigit() for line in text.splitlines()) == count


def test_the_log_is_kept_below_its_cap(worker: Launched) -> None:
    older = Path(f"{worker.spec.log}.1")
    # The end waits until the log has been emptied: an agent that does not keep up skips what was in it by then.
    emptied = f"[ -e {older} ] && [ $(stat -c %s {worker.spec.log}) -lt {1 << 20} ]"
    worker.sh(f"for i in $(seq 30); do seq -s '' 20000; done; until {emptied}; do sleep 0.02; done; echo end")
    worker.output_with("end\n")
    assert worker.spec.log.stat().st_size <= 2 << 20
    assert older.stat().st_size <= 4 << 20  # all of it, where the agent first looked when it was there
    assert oct(older.stat().st_mode & 0o777) == "0o600"
    printed = [line for line in worker.platform.logs(worker.worker.id) if not line.startswith("[muster]")]
    assert printed[-1] == "end"  # what is said of lost output may come after it


@pytest.mark.alone
def test_stop_is_polite_first(worker: Launched) -> None:
    polite = worker.sh("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done")
    stubborn = worker.sh("trap '' TERM; echo up; while :; do sleep 0.01; done")
    worker.output_with("up\nup\n")
    since = time.monotonic()
    worker.send("stop", grace=0.5)
    ends = {message["pid"]: message for message in worker.session.wait_for("exited", count=2)}
    assert 0.4 < time.monotonic() - since < 2
    assert (ends[polite]["exit_code"], ends[polite]["reason"]) == (7, "stopped")
    assert (ends[stubborn]["signal"], ends[stubborn]["reason"]) == (9, "stopped")


def test_a_process_is_asked_to_end_once(worker: Launched) -> None:
    worker.sh("trap 'echo asked' TERM; echo up; while :; do sleep 0.01; done")
    worker.output_with("up\n")
    worker.send("stop", grace=1.0)
    worker.output_with("asked\n")
    worker.send("stop", grace=1.0)
    worker.session.wait_for("exited")
    assert worker.spec.log.read_text().count("asked") == 1


def test_end_ends_everything_and_the_worker(worker: Launched) -> None:
    pid = worker.sh("trap '' TERM; while :; do sleep 1; done")
    worker.send("end")
    eventually(lambda: is_gone(pid), "the process is gone")

    def status() -> Worker | None:
        (found,) = worker.platform.poll([worker.worker.id])
        return found if found.status.is_final else None

    assert eventually(status, "the worker has ended").status is Status.STOPPED


def test_a_session_that_hangs_up_ends_the_worker(worker: Launched) -> None:
    pid = worker.sh("sleep 600")
    worker.session.hang_up(worker.spec.name)
    eventually(lambda: is_gone(pid) and is_gone(worker.hello["pid"]), "agent and process are gone")


def test_daemons_of_a_process_end_with_it_but_not_before(worker: Launched) -> None:
    daemon = (
        "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  print(os.getpid(), flush=True)\n"
    )
    pid = worker.python(daemon + "  time.sleep(600)\n os._exit(0)\nos.wait(); time.sleep(600)")
    daemon_pid = int(worker.output_with("\n"))
    time.sleep(0.2)
    assert not is_gone(daemon_pid)
    os.kill(pid, 9)
    eventually(lambda: is_gone(daemon_pid), "the daemon is gone")


def test_says_when_a_port_is_listened_on(run: Run, stub_session: StubSession, platform: LocalPlatform) -> None:
    worker = Launched(run, stub_session, platform, ports=1)
    (port,) = worker.hello["ports"]
    assert not free_of(port)  # the agent keeps it from others
    worker.send("watch", port=port)
    go = run.folder / "go"
    worker.python(
        """
        import os, socket, sys, time
        listener = socket.socket(socket.AF_INET6)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        listener.bind(("::", int(sys.argv[1])))
        listener.listen()
        time.sleep(600)
        """,
        str(port),
        str(go),
    )
    time.sleep(0.2)
    stub_session.listen(0.01)
    assert not stub_session.received("listening")
    go.touch()
    assert stub_session.wait_for("listening")["port"] == port
    socket.create_connection((worker.hello["host"], port), 2).close()


def test_somebody_elses_listener_does_not_count(worker: Launched) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        worker.send("watch", port=stranger.getsockname()[1])
        worker.sh("sleep 600")
        worker.session.listen(0.3)
        assert not worker.session.received("listening")


def test_ports_come_from_the_range_and_are_held_once(
    run: Run, stub_session: StubSession, platform: LocalPlatform
) -> None:
    first = 20000 + os.getpid() % 20000
    span = (first, first + 19)
    specs = [run.spec(f"worker-{index}", session=stub_session.address, ports=4, port_range=span) for index in range(4)]
    platform.launch(specs)
    ports = [port for hello in stub_session.wait_for("hello", count=4) for port in hello["ports"]]
    assert len(set(ports)) == 16
    assert all(span[0] <= port <= span[1] for port in ports)


def test_too_few_ports_is_a_reason(run: Run, stub_session: StubSession, platform: LocalPlatform) -> None:
    workers = platform.launch([run.spec(session=stub_session.address, ports=3, port_range=(20001, 20002))])

    def failed() -> Worker | None:
        (found,) = platform.poll(handles_of(workers))
        return found if found.status is Status.FAILED else None

    reason = eventually(failed, "the worker has failed").reason
    assert "free ports between 20001 and 20002" in reason


def test_reports_are_passed_on(worker: Launched) -> None:
    worker.python(
        """
        import os, socket
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for text in (b'not json', b'{"kind": "progress", "step": 3}'):
            sender.sendto(text, os.environ["MUSTER_REPORT"])
        """
    )
    assert worker.session.wait_for("report")["report"] == {"kind": "progress", "step": 3}
    assert "a report is dropped, and so are others like it: it is not JSON" in worker.session.wait_for("output")["text"]


@pytest.mark.slow
@pytest.mark.alone
def test_usage_comes_every_second(worker: Launched) -> None:
    worker.python("held = bytearray(50_000_000)\nwhile True: pass")
    measured = worker.session.wait_for("usage", count=3)[2]
    assert 0.01 < measured["cpu"] < 1.5  # how much it gets is up to the machine
    assert 40e6 < measured["memory"] < 400e6


def test_too_much_memory_ends_the_process(run: Run, stub_session: StubSession, platform: LocalPlatform) -> None:
    worker = Launched(run, stub_session, platform, resources=Resources(cpu=1, memory=0.1))
    worker.python("import time\nheld = bytearray(b'x') * 200_000_000\ntime.sleep(600)")
    end = stub_session.wait_for("exited")
    assert (end["reason"], end["signal"]) == ("memory", 9)
    assert end["memory"] > 100_000_000


def test_memory_that_is_shared_counts_once(run: Run, stub_session: StubSession, platform: LocalPlatform) -> None:
    worker = Launched(run, stub_session, platform, resources=Resources(cpu=1, memory=0.2))
    worker.python(
        """
        import os, time
        held = bytearray(b'x') * 120_000_000
        for _ in range(3):
            if os.fork() == 0:
                break
        time.sleep(1.6)
        """
    )
    assert stub_session.wait_for("exited")["reason"] is None


@pytest.mark.parametrize("others_run", [True, False], ids=["other threads run", "with the interpreter's lock"])
def test_stacks_of_a_process_that_is_stuck(worker: Launched, others_run: bool) -> None:
    program = worker.spec.log.parent / "stuck.py"
    stuck = "time.sleep(600)" if others_run else "re.match('(a+)+$', 60 * 'a' + 'b')"
    program.write_text(
        textwrap.dedent(
            f"""
            import re, threading, time
            def loads_here():
                time.sleep(600)
            def stuck_here():
                print('up', flush=True)
                {stuck}
            threading.Thread(target=loads_here, daemon=True).start()
            stuck_here()
            """
        )
    )
    worker.start(sys.executable, str(RUNNER), "program", str(program))
    other = worker.sh("sleep 600")  # knows nothing of stacks, and must survive
    worker.output_with("up")
    worker.send("stacks")
    worker.session.wait_for("stacks", count=2)
    of_shell, text = (told["text"] for told in worker.session.received("stacks"))
    assert f"Process {other} runs" in of_shell
    main, _, others = text.partition("(most recent call first)")[2].partition("(most recent call first)")
    assert "stuck_here" in main
    assert ("loads_here" in others) is others_run
    assert "muster" not in text.replace(str(RUNNER.parent), ""), "no thread of ours"
    assert not is_gone(other)


def test_environment_of_processes(run: Run, stub_session: StubSession, platform: LocalPlatform,
                                  monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("MUSTER_RUN_ID", "an outer run")
    monkeypatch.setenv("MUSTER_ANYTHING", "of it")
    monkeypatch.setenv("FROM_SESSION", "yes")
    worker = Launched(run, stub_session, platform, env={"OMP_NUM_THREADS": "5"}, resources=Resources(2, 0.5))
    worker.start(sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))", OWN="mine")
    stub_session.wait_for("exited")
    found = json.loads(stub_session.output())
    assert found["MUSTER_RUN_ID"] == run.id
    assert "MUSTER_ANYTHING" not in found
    assert (found["FROM_SESSION"], found["OWN"]) == ("yes", "mine")
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("5", "2")
    assert found["CUDA_VISIBLE_DEVICES"] == "-1"
    assert found["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert found["CDSW_IP_ADDRESS"] == worker.hello["host"]
    assert found["TMPDIR"] == f"{worker.spec.scratch}/tmp"


def test_an_agent_dials_nobody_but_its_session(run: Run, platform: LocalPlatform) -> None:
    from tests.support import self_signed

    impostor = StubSession()
    impostor.certificate = self_signed.__wrapped__()[0]  # what the worker is told to expect
    workers = platform.launch([run.spec(session=impostor.address)])

    def failed() -> Worker | None:
        impostor.listen(0.01)
        (found,) = platform.poll(handles_of(workers))
        return found if found.status is Status.FAILED else None

    assert "certificate verify failed" in eventually(failed, "the worker has failed").reason
    assert not impostor.received("hello")
    impostor.close()
