"""Faults of scripts: the error says which worker, what, and where, and the others are ended."""

from __future__ import annotations

import math
import signal
import textwrap
import time
from typing import Any

import pytest
from muster.errors import RunFailed, RunStalled, RunTimeout, ScriptError, ScriptFailed, WorkerKilled, WorkerOutOfMemory

from tests.faults.scene import PROMPT, SLEEP, Scene, anywhere, anywhere_and_on_docker

ONLY_ONE = "import os, sys, time\nif os.environ['MUSTER_WORKER'] != 'worker-1': time.sleep(600)\n"


HOROVOD = [pytest.mark.slow, pytest.mark.horovod]

FAILURES = [
    ("raise ValueError('no data')", ScriptFailed, "worker-1 failed first: ValueError: no data"),
    ("sys.exit(4)", ScriptFailed, "worker-1 ended with exit status 4"),
    ("os.abort()", WorkerKilled, "worker-1 was ended by signal 6 (SIGABRT)"),
    ("import no_such_package", ScriptFailed, "ModuleNotFoundError: No module named 'no_such_package'"),
    ("sys.exit('text')", ScriptFailed, "worker-1 failed first: SystemExit: text"),
    ("__import__('os')._exit(9)", ScriptFailed, "worker-1 ended with exit status 9"),
    ("sys.exit(-1)", ScriptFailed, "worker-1 ended with exit status 255"),
    ("sys.exit('--5')", ScriptFailed, "worker-1 failed first: SystemExit: --5"),
    ("os._exit(3)", ScriptFailed, "worker-1 ended with exit status 3"),
    ("import ctypes; ctypes.string_at(0)", WorkerKilled, "worker-1 was ended by signal 11 (SIGSEGV)"),
    ("import nested", ScriptFailed, "worker-1 failed first: SyntaxError"),
]


@anywhere
@pytest.mark.parametrize(
    ("text", "error", "words", "strategy"),
    [
        *((*failure, "plain") for failure in FAILURES),
        *(pytest.param(*failure, "horovod", marks=HOROVOD) for failure in FAILURES[:3]),
    ],
)
def test_the_one_that_fails_is_named(
    scene: Scene, text: str, error: type[RunFailed], words: str, strategy: str
) -> None:
    scene.script("def broken(:", "nested.py")
    options: dict[str, Any] = {"strategy": "horovod"} if strategy == "horovod" else {}
    with pytest.raises(RunFailed) as raised:
        scene.run(ONLY_ONE + text, **options)
    failure = raised.value
    assert type(failure) is error
    assert words.replace("worker-1", "rank 1 (worker-1)" if options else "worker-1") in failure.message
    assert failure.worker == "worker-1"
    assert failure.rank == (1 if options else None)
    assert failure.log == scene.recorded.run_dir / "logs" / "worker-1.log"
    if "failed first" in words:
        assert 'train.py", line 3' in str(failure)
    if error is WorkerKilled:
        assert "train.py" in str(failure)  # the stack that the interpreter printed while it died
    assert scene.recorded.status == "failed"
    assert failure.message in scene.recorded.explain()


@anywhere
def test_a_crash_is_told_from_its_beginning_with_the_thread_that_crashed(scene: Scene) -> None:
    with pytest.raises(WorkerKilled) as raised:
        scene.run(
            """
            import ctypes, threading, time
            def wait_here(depth):
                wait_here(depth - 1) if depth else time.sleep(60)
            for _ in range(4):
                threading.Thread(target=wait_here, args=(20,), daemon=True).start()
            def crash_here():
                ctypes.string_at(0)
            crash_here()
            """
        )
    lines = str(raised.value.details).splitlines()
    assert lines[0] == "Fatal Python error: Segmentation fault"
    assert lines[1].startswith("Current thread")
    assert "crash_here" in "".join(lines)
    assert "runner.py" not in "".join(lines)


@anywhere
def test_an_exception_in_a_thread_ends_nothing_and_is_told(scene: Scene) -> None:
    script = """
        import sys, threading, time
        def load_data():
            raise KeyError("label")
        thread = threading.Thread(target=load_data, name="loader")
        thread.start()
        thread.join()
        threading.Thread(target=sys.exit, args=(3,)).start()  # which ends a thread as return does
        """
    cluster = scene.start(script, n_workers=1)
    assert cluster.wait().status == "succeeded"
    notes = [event.data["text"] for event in scene.events("note")]
    assert [note for note in notes if "thread" in note] == ["worker-0 has lost its thread loader: KeyError: 'label'."]
    assert "in load_data" in cluster.logs("worker-0")
    with pytest.raises(
        ScriptFailed, match=r"ValueError: no batches\. Before, worker-0 has lost its thread loader: Key"
    ):
        scene.run(textwrap.dedent(script) + "raise ValueError('no batches')", n_workers=1)


def test_names_of_threads_reach_no_terminal_as_they_are(scene: Scene) -> None:
    with pytest.raises(ScriptFailed) as raised:
        scene.run(
            r"""
            import threading
            thread = threading.Thread(target=int, args=("\x1b[2J",), name="\x1b[31mT")
            thread.start()
            thread.join()
            raise KeyError("label")
            """,
            n_workers=1,
        )
    assert "lost its thread" in raised.value.message
    assert "\x1b" not in raised.value.message + str(raised.value)


@anywhere
def test_a_script_that_somebody_ends_is_named_with_the_signal(scene: Scene) -> None:
    cluster = scene.start()
    scene.wait_for_phase("training")
    ended = scene.kill("process worker-1", signum=signal.SIGTERM)
    with pytest.raises(WorkerKilled, match=r"worker-1 was ended by signal 15 \(SIGTERM\)"):
        cluster.wait(timeout=30)
    assert scene.noticed_after(ended) < PROMPT


@anywhere_and_on_docker
def test_too_much_memory_is_named_as_such(scene: Scene) -> None:
    with pytest.raises(WorkerOutOfMemory, match=r"worker-1 used 0\.\d+ GB of memory and was given 0\.1 GB") as raised:
        scene.run(ONLY_ONE + "kept = bytearray(os.urandom(1 << 20) * 300); time.sleep(600)", memory=0.1)
    assert raised.value.worker == "worker-1"
    assert "memory=" in str(raised.value.advice)


@anywhere
@pytest.mark.slow
def test_a_rank_that_hangs_is_named_with_the_stacks_of_all(scene: Scene) -> None:
    text = """
        import os, time
        def waits_for_ever():
            time.sleep(600)
        def works():
            while True:
                print("still here", flush=True)
                time.sleep(0.05)
        waits_for_ever() if os.environ["MUSTER_WORKER"] == "worker-1" else works()
        """
    started = time.monotonic()
    with pytest.raises(RunStalled, match=r"worker-1 has shown no progress for 6 s") as raised:
        scene.run(text, stall_seconds=6)  # longer than a busy machine keeps the other from talking
    assert time.monotonic() - started < 60
    assert raised.value.worker == "worker-1"
    details = str(raised.value.details)
    assert "--- worker-0" in details
    working, _, waiting = details.partition("--- worker-1")
    late = "does not answer"  # a process has a second for its stacks, which a busy machine may not give it
    assert "in works" in working or late in working
    assert "in waits_for_ever" in waiting or late in waiting


@anywhere
@pytest.mark.slow
def test_a_process_that_hangs_in_being_traced_has_not_ended(scene: Scene) -> None:
    talk = "[print(n, flush=True) or time.sleep(0.1) for n in range(600)]"
    trace_me = "import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 5)"
    with pytest.raises(RunStalled, match=r"worker-1 has shown no progress .* It has been stopped") as raised:
        scene.run(ONLY_ONE.replace("time.sleep(600)", talk) + trace_me, stall_seconds=6)
    assert raised.value.worker == "worker-1"


@pytest.mark.slow
@anywhere
def test_a_run_that_takes_too_long_is_ended_with_the_stacks_of_all(scene: Scene) -> None:
    with scene.timed_from_output_on(), pytest.raises(RunTimeout, match=r"longer than its 3 s") as raised:
        scene.run(SLEEP, run_timeout=3)
    assert str(raised.value.details).count("train.py") == 2


@anywhere
def test_stacks_can_be_asked_for_at_any_time(scene: Scene) -> None:
    cluster = scene.start("import time\ndef here(): time.sleep(600)\nprint('ready', flush=True)\nhere()")
    scene.wait_for_phase("training")
    for _ in range(2):
        stacks = cluster.stacks()
        assert set(stacks) == {"worker-0", "worker-1"}
        assert all("in here" in text for text in stacks.values())
    cluster.stop()
    assert cluster.stacks() == {}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("absent.py", None, "does not exist"),
        ("broken.py", "def broken(:", "does not compile"),
        ("no_such_module", None, "neither a file nor a module"),
    ],
)
def test_a_script_that_cannot_be_run_starts_nothing(scene: Scene, name: str, text: str | None, words: str) -> None:
    import muster

    from tests.plain import Plain

    if text:
        scene.script(text, name)
    with pytest.raises(ScriptError, match=words):
        muster.run_cluster(1, worker_script=name, strategy=Plain())
    assert not list(scene.home.glob("runs/*"))


@anywhere
@pytest.mark.parametrize("strategy", ["plain", pytest.param("horovod", marks=HOROVOD)])
def test_output_comes_byte_for_byte_and_does_not_hang(scene: Scene, strategy: str) -> None:
    text = r"""
        import os, sys
        out = sys.stdout.buffer
        out.write(b"\xff\xfe\x00 not text \xc3\n" + bytes(range(256)) * 1000 + b"\r\x1b[31mno line end")
        out.flush()
        os.write(2, b"\xe2\x82")
        """
    options: dict[str, Any] = {"strategy": "horovod"} if strategy == "horovod" else {}
    scene.run(text, **options)
    wanted = b"\xff\xfe\x00 not text \xc3\n" + bytes(range(256)) * 1000 + b"\r\x1b[31mno line end\xe2\x82"
    for worker in ("worker-0", "worker-1"):
        assert (scene.recorded.run_dir / "logs" / f"{worker}.log").read_bytes() == wanted


@anywhere
def test_a_script_that_only_prints_for_a_while_loses_nothing(scene: Scene) -> None:
    cluster = scene.run("for n in range(200_000): print(n)", n_workers=1)
    assert cluster.logs("worker-0").split() == [str(number) for number in range(200_000)]


@pytest.mark.parametrize(
    "report",
    [b"not json", b"[1, 2]", b'"text"', b'{"kind": "progress", "metrics": 5}', b'{"kind": "progress", "rank": [1]}',
     b'{"kind": "exception", "monotonic": "noon"}', b'{"kind": "other"}'],
)  # fmt: skip
def test_a_report_that_makes_no_sense_is_dropped(scene: Scene, report: bytes) -> None:
    text = f"""
        import os, socket
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for text in ({report!r}, b'{{"kind": "progress", "metrics": {{"loss": 2}}}}'):
            sender.sendto(text, os.environ["MUSTER_REPORT"])
        """
    assert scene.run(text, n_workers=1).result.metrics == {"loss": 2}


def test_nobody_is_blamed_for_what_another_rank_says_in_its_name(scene: Scene) -> None:
    """A rank reports exceptions of the others, and ends; they go on, and are ended with it."""
    text = """
        import json, os, socket, time
        if os.environ["MUSTER_RANK"] == "0":
            sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            for rank in (1, 2, 3, 1_000_000):
                report = {"kind": "exception", "rank": rank, "type": "KeyError", "message": "forged", "traceback": ""}
                sender.sendto(json.dumps(report).encode(), os.environ["MUSTER_REPORT"])
        time.sleep(60)
        """
    with pytest.raises(ScriptFailed) as raised:
        scene.run(text, strategy="processes", slots=2)
    assert (raised.value.worker, raised.value.rank) == ("worker-0", 0)


def test_a_number_that_no_float_holds_is_infinite(scene: Scene) -> None:
    """Integers have no bound, and JSON has none for its numbers."""
    text = """
        import json, os, socket
        import muster.training
        muster.training.report(big=10**400, small=-(10**400), text=1)
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for value in ("1" + "0" * 400, '"1%s"' % ("0" * 400), '"nan"'):
            text = '{"kind": "progress", "metrics": {"%s": %s}}' % (value[:2].strip('"'), value)
            sender.sendto(text.encode(), os.environ["MUSTER_REPORT"])
        """
    cluster = scene.run(text, n_workers=1)
    assert cluster.result.metrics == {"big": math.inf, "small": -math.inf, "text": 1.0, "10": math.inf}
    assert "must be numbers by name" in cluster.logs("worker-0")


@anywhere
def test_long_arguments_arrive(scene: Scene) -> None:
    cluster = scene.run("import sys; print(len(sys.argv), len(sys.argv[1]))", n_workers=1, args=["x" * 100_000] * 12)
    assert cluster.logs("worker-0") == "13 100000\n"


@pytest.mark.slow
@anywhere
def test_folders_that_a_script_leaves_deep_in_one_another_go_with_it(scene: Scene) -> None:
    scene.run(
        """
        import os, tempfile
        os.chdir(tempfile.gettempdir())
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
        """
    )
    assert scene.recorded.status == "succeeded"
