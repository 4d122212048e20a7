"""Messages that must arrive once, over a connection that is cut at any point, in any order of events."""

from __future__ import annotations

import random

import pytest
from muster.agent import frames, wire
from muster.agent.outbox import MOST_KEPT, Inbox, Outbox


@pytest.mark.parametrize("seed", range(20))
def test_everything_arrives_once_and_in_order_however_often_the_connection_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    outbox, inbox = Outbox(), Inbox()
    arrived: list[int] = []
    on_its_way, decoder = b"", frames.Decoder()
    sent = 0
    while len(arrived) < 100:
        event = chance.random()
        if event < 0.3 and sent < 100:
            sent += 1
            on_its_way += outbox.add(wire.Started(sent, None))
        elif event < 0.6:
            size = chance.randrange(len(on_its_way) + 1)
            for fields in decoder.feed(on_its_way[:size]):
                if inbox.is_new(fields):
                    arrived.append(fields["pid"])
            on_its_way = on_its_way[size:]
        elif event < 0.8:
            ack = inbox.acknowledgement()
            if ack is not None and chance.random() < 0.5:  # else it is lost, and a later one says as much
                outbox.has(ack.number)
        else:
            decoder = frames.Decoder()
            outbox.has(inbox.received)
            on_its_way = outbox.rest()
    assert arrived == list(range(1, 101))


def test_what_was_never_sent_has_not_arrived() -> None:
    outbox = Outbox()
    outbox.add(wire.Started(1, None))
    with pytest.raises(frames.ProtocolError):
        outbox.has(2)
    outbox.has(1)
    assert outbox.size == 0
    with pytest.raises(frames.ProtocolError):
        outbox.has(0)


@pytest.mark.parametrize("number", [3, "1", True, 1.0])
def test_a_message_that_is_not_the_next_is_refused(number: object) -> None:
    with pytest.raises(frames.ProtocolError):
        Inbox().is_new({"type": "started", "n": number})


def test_what_waits_is_bounded() -> None:
    outbox = Outbox()
    with pytest.raises(frames.ProtocolError):
        while outbox.size < 2 * MOST_KEPT:
            outbox.add(wire.Output("x" * 100_000))
