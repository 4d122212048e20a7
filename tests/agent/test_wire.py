"""Messages and frames by themselves: what is sent comes out as it was, and nothing else does."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from muster.agent import frames, wire

DIGEST = "0" * 64
RAISED = {"kind": "exception", "type": "SystemExit", "message": "", "traceback": ""}
FROM_AGENT = [
    wire.Hello(2, "t", "worker-0", 5, "10.0.0.1", ports=(1, 65535), interfaces=("br-1a", "eth0.10"), gpus=("GPU-1a",)),
    wire.Clock(3, 1.5, 2.5),
    wire.Started(5, None),
    wire.Leaving(),
    wire.Ack(5),
    wire.Exited(5, 0, 3, None),
    wire.Exited(5, 0, None, 11, "memory", 10**12, 1.0, 2.0),
    wire.Suspended(1, False),
    wire.HungUp(1),
    wire.Broken(127),
    wire.LauncherOutput("caf\udcc3 é"),
    wire.LauncherExited(None, 9),
    wire.Listening(2222),
    wire.Output("caf\udcc3 é"),
    wire.Usage(0.5, 100, None, None),
    wire.ProcessStacks("File", 1, False, (wire.TcpConnection("a:1", "b:2", 3, 0),)),
    wire.Error("no"),
    wire.Progress(rank=1, step=-1, metrics={"loss": 0.5}),
    wire.Returned(),
    wire.Preempted(20.0),
    wire.Stage("importing tensorflow", 2.5, 1),
    wire.Warned("the loss is not a number", 0),
    wire.Raised("ValueError", "m", "t", 0, 2.0),
    wire.Raised("SystemExit", "5", "t", status=5),
    wire.Found(1, 5, DIGEST),
    wire.Have(1, 0),
    wire.Missing(1, "gone"),
    wire.Chunk(1, 0, b"\n\x00\xff{}"),
    wire.Lacks(1, b"\x05"),
    wire.Synced(1, "/home/me/.cache"),
    wire.Opened(1),
    wire.Data(1, 2, b"\n{"),
    wire.Credit(1, wire.WINDOW),
    wire.Eof(1, 1),
    wire.Closed(1, None, 9, "why"),
]
FROM_SESSION = [
    wire.Welcome(3),
    wire.Ack(5),
    wire.Refused("no"),
    wire.Ping(1),
    wire.Start(("a", "b\udcff"), {"A": "1"}, "/tmp", 0, True),
    wire.Expect(("a",), {}, None, False),
    wire.Launch(("a",), {"A": "1"}, "/tmp", ("horovodrun", "-np", "2"), {"bin/ssh": "#!/bin/sh"}),
    wire.StopLauncher(0.5),
    wire.Watch(1),
    wire.AskStacks(),
    wire.Release(),
    wire.Notice(),
    wire.Stop(0.5),
    wire.End(),
    wire.Put(1, "scratch", "a/b", 5, DIGEST, 0o700),
    wire.Get(1, "run", "log"),
    wire.Get(1, "run", "results", "a/b"),
    wire.Have(1, 7),
    wire.Missing(1, "gone"),
    wire.Chunk(1, 0, b"x"),
    wire.Sync(1, "project", "scratch", "project.list", False),
    wire.Find(1, "project", "checkpoints/**"),
    wire.Execute(1, ("ls",), {"A": "1"}, "/tmp", 24, 80),
    wire.Dial(1, 6006),
    wire.Data(1, 0, b"x"),
    wire.Credit(1, 1),
    wire.Eof(1),
    wire.Resize(1, 24, 80),
    wire.Close(1),
]


def test_every_kind_is_tried_here() -> None:
    assert {type(message) for message in FROM_AGENT + FROM_SESSION} == set(wire.KINDS)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_messages_come_out_as_they_went_in(size: int) -> None:
    for sent, read in ((FROM_AGENT, wire.from_agent), (FROM_SESSION, wire.from_session)):
        data = b"".join(map(wire.encode, sent))
        decoder = frames.Decoder()
        pieces = (data[start : start + size] for start in range(0, len(data), size))
        assert [read(fields) for piece in pieces for fields in decoder.feed(piece)] == sent


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "put", "transfer": 1, "place": "run", "path": path, "size": 1, "sha256": DIGEST}
        for path in ("/etc/passwd", "../x", "a/../../x", "a//b", "", "a\0b", "./a", "\ud800")
    ]
    + [
        {"type": "put", "transfer": 1, "place": "../run", "path": "a", "size": 1, "sha256": DIGEST},
        {"type": "put", "transfer": 1, "place": "run", "path": "a", "size": -1, "sha256": DIGEST},
        {"type": "put", "transfer": 1, "place": "run", "path": "a", "size": 1, "sha256": "short"},
        {"type": "start", "argv": "/bin/sh", "env": {}},
        {"type": "start", "argv": ["/bin/sh"], "env": {"A": 1}},
        {"type": "stop", "grace": float("nan")},
        {"type": "stop", "grace": "soon"},
        {"type": "usage"},
        {"type": "no such thing"},
    ],
    ids=str,
)
def test_orders_that_do_not_fit_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(wire.Misfit):
        wire.from_session(fields)


@pytest.mark.parametrize(
    "fields",
    [{"type": "stacks", "text": "", "connections": [value]} for value in (1, None, "four", {"a": 1}, [1, 2, 3, 4], [])]
    + [{"type": "broken", "code": code} for code in (300, -1, 1.0, float("inf"), True)]
    + [
        {"type": kind, "pid": 5, **ends}
        for kind in ("exited", "launcher_exited")
        for ends in ({}, {"exit_code": None, "signal": None}, {"exit_code": 0, "signal": 9})
    ]
    + [{"type": "report", "report": {**RAISED, "status": status}} for status in ("5", 256, -1, 2.0)],
    ids=str,
)
def test_messages_of_agents_that_do_not_fit_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(wire.Misfit):
        wire.from_agent(fields)


def test_no_value_is_told_that_may_be_a_secret() -> None:
    with pytest.raises(wire.Misfit) as caught:
        wire.from_agent({"type": "hello", "version": 2, "token": ["a secret"]})
    assert "secret" not in str(caught.value)


def test_a_limit_may_change_between_two_messages() -> None:
    decoder = frames.Decoder(limit=100, payload_limit=0)
    seen = []
    for message in decoder.feed(frames.encode("hello") + frames.encode("output", text="x" * 1000)):
        seen.append(message["type"])
        decoder.limit = frames.MAX_LINE
    assert seen == ["hello", "output"]


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 101,
        b'{"type": "a", "text": "' + b"x" * 100 + b'"}\n',
        b'{"type": "a", "payload": 11}\n',
        b'{"type": "a", "payload": -1}\n',
        b'{"type": "a", "payload": "x"}\n',
        b'{"type": "a", "payload": true}\n',
        b'{"type": 1}\n',
        b"[" * 50 + b"\n",
        b"\xff\n",
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(frames.ProtocolError):
        list(frames.Decoder(limit=100, payload_limit=10).feed(data))


def test_the_time_for_a_line_grows_with_its_length_however_it_comes() -> None:
    """Each byte by itself into an unfinished line of a megabyte: searched and copied again each time, it took hours."""
    line = json.dumps({"type": "a", "text": "x" * 900_000}).encode() + b"\n"
    decoder = frames.Decoder()
    started = time.process_time()
    for _ in decoder.feed(line[:-200_000]):
        raise AssertionError
    found = [message for byte in line[-200_000:] for message in decoder.feed(bytes((byte,)))]
    assert len(found) == 1
    assert time.process_time() - started < 3


def test_no_byte_of_an_unfinished_line_is_searched_twice() -> None:
    class Counted(bytearray):
        searched = 0

        def find(self, wanted: Any, start: Any = 0, *more: Any) -> int:
            self.searched += len(self) - start
            return super().find(wanted, start, *more)

    decoder = frames.Decoder()
    decoder._bytes = counted = Counted()
    for _ in range(1000):
        assert list(decoder.feed(b"x")) == []
    assert counted.searched == 1000
