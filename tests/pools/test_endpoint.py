"""The endpoint against clients that are not what they should be. Real TLS, on the real background thread."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from muster.agent import frames, wire
from muster.checks.arguments import parse_address
from muster.errors import JobError
from muster.pools import endpoint as endpoint_module
from muster.pools import listener
from muster.pools.clocks import ClockOffset
from muster.runtime.background import background_loop, call_in_background

from tests.listening import EXITED, USAGE, Listening, answer, eventually, kind_of, not_reading


def test_an_agent_with_the_token_is_welcome_and_heard(endpoint: Listening) -> None:
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello()) + USAGE)
        assert answer(client)["type"] == "welcome"
        eventually(lambda: len(endpoint.messages) == 2)
        assert endpoint.session.connected == {"worker-0"}
    eventually(lambda: endpoint.lost == ["worker-0"])


@pytest.mark.parametrize(("most", "seconds"), [(500, 1.0), (1, 2.0), (0.25, 8.0)])  # reports a second, of two workers
def test_agents_report_the_more_rarely_the_more_there_are(
    endpoint: Listening, monkeypatch: pytest.MonkeyPatch, most: float, seconds: float
) -> None:
    monkeypatch.setattr(endpoint_module, "REPORTS_PER_SECOND", most)
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello()))
        assert answer(client).get("interval", 1.0) == seconds


def test_last_words_are_heard_before_the_end(endpoint: Listening) -> None:
    heard: list[str] = []
    endpoint.session.on_message = lambda worker, message: heard.append(kind_of(message))
    endpoint.session.on_lost = heard.append
    with endpoint.dial() as client:
        client.settimeout(0.5)
        with not_reading():
            client.sendall(frames.encode("hello", **endpoint.hello()) + 9 * USAGE + EXITED)
            with contextlib.suppress(TimeoutError):
                client.unwrap()  # says goodbye at once, and waits for an answer
    eventually(lambda: "worker-0" in heard)
    assert heard == ["hello", *["usage"] * 9, "exited", "worker-0"]


def test_a_hello_in_time_counts_although_it_is_taken_late(endpoint: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HELLO_SECONDS", 0.5)
    with endpoint.dial() as client:
        with not_reading():
            client.sendall(frames.encode("hello", **endpoint.hello()))
            time.sleep(0.6)
        assert answer(client)["type"] == "welcome"


def test_a_closed_session_hears_nothing_any_more(endpoint: Listening) -> None:
    def on_message(worker: str, message: Any) -> None:
        endpoint.messages.append((worker, message))
        endpoint.session.close()

    endpoint.session.on_message = on_message
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello()) + USAGE)
        eventually(lambda: endpoint.lost == ["worker-0"])
    assert [kind_of(message) for _, message in endpoint.messages] == ["hello"]


def test_what_cannot_be_handled_is_told_and_ends_no_connection(endpoint: Listening) -> None:
    """It is no fault of the worker's."""
    defects: list[Exception] = []

    def on_message(worker: str, message: Any) -> None:
        endpoint.messages.append((worker, message))
        if kind_of(message) == "usage":
            raise AttributeError

    endpoint.session.on_message = on_message
    endpoint.session.on_defect = defects.append
    hello = endpoint.hello()
    with endpoint.dial() as bad, endpoint.dial() as good:
        with not_reading():
            bad.sendall(frames.encode("hello", **hello) + USAGE + frames.encode("error", text="late"))
            good.sendall(
                frames.encode("hello", **endpoint.hello(worker="worker-1")) + frames.encode("output", text="x")
            )
        eventually(lambda: len(endpoint.messages) == 5)
        assert endpoint.session.connected == {"worker-0", "worker-1"}
    assert [type(defect) for defect in defects] == [AttributeError]
    assert sorted((worker, kind_of(message)) for worker, message in endpoint.messages) == [
        ("worker-0", "error"),
        ("worker-0", "hello"),
        ("worker-0", "usage"),
        ("worker-1", "hello"),
        ("worker-1", "output"),
    ]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"token": "guessed"}, "not the token"),
        ({"token": None}, "not the token"),
        ({"token": "\udcff"}, "not the token"),
        ({"version": 99}, "protocol version 99"),
        ({"worker": "worker-9"}, "not the token"),
        ({"worker": ["worker-0"]}, "not the token"),
    ],
)
def test_others_are_refused_with_the_reason(endpoint: Listening, fields: dict[str, Any], why: str) -> None:
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello(**fields)) + USAGE)
        refused = answer(client)
        assert refused["type"] == "refused"
        assert why in refused["text"]
        assert answer(client) == {}
    assert endpoint.messages == []


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "*\n ProxyCommand touch /tmp/owned"},
        {"host": "-oProxyCommand=x"},
        {"host": "a b"},
        {"host": "10.0.0.5:80"},
        {"host": "::1%25;x"},
        {"host_key": "ssh-ed25519 " + "A" * 68 + "\n* ssh-ed25519 " + "B" * 68},
        {"host_key": 'command="x" ssh-ed25519 ' + "A" * 68},
        {"interfaces": ["lo", "eth0; touch /tmp/owned"]},
        {"interfaces": ["--mca", "x"]},
        {"ports": [0]},
        {"ports": ["80"]},
        {"ssh_port": "22\n"},
        {"ssh_port": True},
        {"gpus": ["0,1 x"]},
        {"cores": 0},
        {"pid": -1},
        {"python": "3.11\n"},
    ],
    ids=str,
)
def test_a_hello_says_nothing_that_means_more_in_a_file_or_on_a_command_line(
    endpoint: Listening, fields: dict[str, Any]
) -> None:
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello(**fields)))
        refused = answer(client)
    assert refused["type"] == "refused"
    assert f"{next(iter(fields))} of hello must be" in refused["text"]
    assert endpoint.messages == []


@pytest.mark.parametrize("host", ["worker-3.cluster.local", "10.0.0.5", "::1", "fe80::a00:27ff:fe4e:66a1"])
def test_addresses_that_a_hello_may_name(endpoint: Listening, host: str) -> None:
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello(host=host)))
        assert answer(client)["type"] == "welcome"


@pytest.mark.parametrize(
    "report",
    [
        None,
        {"kind": "progress", "rank": "x"},
        {"kind": "exception", "rank": {"a": 1}, "type": "E", "message": "m", "traceback": ""},
        {"kind": "progress", "metrics": {"loss": [1]}},
        {"kind": "progress", "metrics": {"loss": "many"}},
        {"kind": "progress", "metrics": {"loss": "1" + 400 * "0"}},
        {"kind": "progress", "metrics": {str(number): 1 for number in range(10_000)}},
        {"kind": "progress", "step": 10**30},
        {"kind": ["progress"]},
        {"kind": "dance"},
    ],
    ids=lambda report: str(report)[:60],
)
def test_an_odd_report_is_dropped_with_one_warning_and_ends_nothing(
    endpoint: Listening, report: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with endpoint.dial() as client:
        odd = frames.encode("report", report=report)
        client.sendall(frames.encode("hello", **endpoint.hello()) + 50 * odd + frames.encode("dance") + USAGE)
        eventually(lambda: "usage" in endpoint.kinds())
        assert endpoint.session.connected == {"worker-0"}
    assert set(endpoint.kinds()) <= {"hello", "clock", "usage"}
    eventually(lambda: "dropped" in caplog.text)
    assert caplog.text.count("is dropped") == 1


def test_what_an_agent_itself_would_never_send_ends_its_connection(endpoint: Listening) -> None:
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello()) + frames.encode("exited", pid=1, signal="9") + USAGE)
        eventually(lambda: endpoint.lost == ["worker-0"])
    assert "usage" not in endpoint.kinds()


def test_an_agent_that_takes_nothing_is_ended_before_much_waits_for_it(
    endpoint: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "MOST_UNSENT", 1 << 20, raising=False)
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello()))
        eventually(lambda: "hello" in endpoint.kinds())
        for _ in range(200):
            call_in_background(lambda: endpoint.session.send("worker-0", wire.Chunk(1, 0, bytes(1 << 17))))
        eventually(lambda: endpoint.lost == ["worker-0"])


def test_one_that_acknowledges_nothing_is_an_error_to_nobody(tmp_path: Path) -> None:
    endpoint = Listening(tmp_path, lease_seconds=1)
    sent = []
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello()))
        eventually(lambda: "hello" in endpoint.kinds())
        for _ in range(200):
            send = functools.partial(endpoint.session.send, "worker-0", wire.Data(1, 0, bytes(1 << 17)))
            sent.append(call_in_background(send))
    call_in_background(endpoint.session.close)
    assert sent[0] is True
    assert sent[-1] is False


def test_texts_of_reports_are_bounded_and_can_be_written_anywhere(endpoint: Listening) -> None:
    odd = {"kind": "exception", "type": "E" * 5000, "message": "\ud800" + "m" * 100_000, "traceback": "t" * 500_000}
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello()) + frames.encode("report", report=odd))
        eventually(lambda: "exception" in endpoint.kinds())
    (raised,) = (message for _, message in endpoint.messages if isinstance(message, wire.Raised))
    assert len(raised.type) == wire.LONGEST_NAME
    assert len(raised.traceback) == wire.LONGEST_TEXT
    assert raised.message.encode("utf-8").startswith(b"?mmm")


def test_the_clocks_of_agents_are_compared_with_ours(endpoint: Listening) -> None:
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello()))
        lines = client.makefile("rb")
        assert json.loads(lines.readline())["type"] == "welcome"
        while not any(isinstance(message, ClockOffset) for _, message in endpoint.messages):
            number = json.loads(lines.readline())["number"]
            client.sendall(frames.encode("clock", number=number, monotonic=time.monotonic() + 3600, time=time.time()))
            time.sleep(0.05)
    (offset,) = (message for _, message in endpoint.messages if isinstance(message, ClockOffset))
    assert abs(offset.offset - 3600) <= offset.error < 0.5


def test_a_worker_is_connected_once(endpoint: Listening) -> None:
    with endpoint.dial() as first, endpoint.dial() as second:
        first.sendall(frames.encode("hello", **endpoint.hello()))
        assert answer(first)["type"] == "welcome"
        second.sendall(frames.encode("hello", **endpoint.hello()))
        assert "connected already" in answer(second)["text"]


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.0\r\n\r\n", b"[]\n", b'{"no": "type"}\n', b"x" * (frames.MAX_LINE + 2), b"[" * 100_000 + b"\n"],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_not_the_protocol_ends_the_connection(endpoint: Listening, data: bytes) -> None:
    # The session need not read all of it first.
    with endpoint.dial() as client, contextlib.suppress(ConnectionError, ssl.SSLEOFError):
        client.sendall(data)
        assert client.recv(1) == b""


def test_whoever_has_not_the_certificate_is_not_talked_to(endpoint: Listening) -> None:
    context = ssl.create_default_context()
    with (
        socket.create_connection((endpoint.address.host, endpoint.address.port), timeout=5) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_secrets_are_in_no_repr_and_on_no_disk(endpoint: Listening, tmp_path: Path) -> None:
    assert endpoint.address.token not in repr(endpoint.address)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_keep_the_port(endpoint: Listening) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        background_loop().call_soon_threadsafe(endpoint.session.close)

        def is_free() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((endpoint.address.host, endpoint.address.port)) != 0

        eventually(is_free)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize(("text", "parsed"), [("10.0.0.5:80", ("10.0.0.5", 80)), ("[::1]:0", ("::1", 0))])
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["", "host", ":80", "::1", "host:99999", "host:http"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(JobError):
        parse_address(text)


def test_workers_that_have_ended_are_not_expected_to_connect(endpoint: Listening) -> None:
    session = endpoint.session
    assert session._expected() == 2
    call_in_background(lambda: session.ended("worker-1"))
    assert session._expected() == 1
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello()))
        assert answer(client)["type"] == "welcome"
        assert session._expected() == 0
    eventually(lambda: endpoint.lost == ["worker-0"])
    assert session._expected() == 0
    call_in_background(lambda: session.renew("worker-1"))
    assert session._expected() == 1
