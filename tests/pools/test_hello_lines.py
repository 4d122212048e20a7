"""Nothing in a hello may end in a line's end: it would begin another line of a file."""

from __future__ import annotations

from typing import Any

import pytest
from muster.agent import frames

from tests.listening import Listening, answer


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "10.0.0.5\n"},
        {"host": "worker-3\n"},
        {"host_key": "ssh-ed25519 " + "A" * 68 + "\n"},
        {"interfaces": ["eth0\n"]},
        {"gpus": ["GPU-1a\n"]},
        {"python": "3.11\n"},
    ],
    ids=str,
)
def test_a_hello_ends_no_line(endpoint: Listening, fields: dict[str, Any]) -> None:
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello(**fields)))
        assert answer(client)["type"] == "refused"
    assert endpoint.messages == []
