"""Values as prompts and notebooks show them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from IPython.lib.pretty import pretty
from muster.text.shown import Stacks, Table, Text


class Pairs(Table[tuple[str, int]]):
    HEADING = ("name", "number")

    def cells(self, item: tuple[str, int]) -> Sequence[str]:
        return item[0], str(item[1])


def test_a_text_is_shown_line_by_line_and_is_a_string() -> None:
    text = Text("one\ntwo\n")
    assert pretty(text) == "one\ntwo\n"
    assert (text, repr(text)) == ("one\ntwo\n", repr("one\ntwo\n"))


def test_a_list_is_shown_as_a_table_and_so_is_a_part_of_it() -> None:
    pairs = Pairs([("first", 1), ("\x1b[31mb", 20)])
    assert pretty(pairs) == str(pairs) == "name   number\nfirst  1\nb      20"
    assert repr(pairs[:1]) == "name   number\nfirst  1"
    assert pairs == [("first", 1), ("\x1b[31mb", 20)]
    assert pairs[0] == ("first", 1)
    assert pickle.loads(pickle.dumps(pairs)) == pairs
    assert repr(Pairs()) == "[]"


def test_stacks_stand_in_order_of_their_ranks() -> None:
    stacks = Stacks({"rank 1 (worker-1)": "there\n", "rank 0 (worker-0)": "here\n"})
    assert pretty(stacks) == "--- rank 0 (worker-0)\nhere\n--- rank 1 (worker-1)\nthere"
    assert stacks == {"rank 0 (worker-0)": "here\n", "rank 1 (worker-1)": "there\n"}
