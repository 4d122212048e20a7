"""Stacks that an agent tells are cut where they come in, whatever the agent has made of its own limit."""

from __future__ import annotations

from muster.agent import wire


def test_stacks_are_cut_where_they_come_in() -> None:
    told = wire.from_agent({"type": "stacks", "text": "x" * 1_000_000})
    assert len(told.text) == wire.LONGEST_TEXT
