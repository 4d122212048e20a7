"""Words and numbers that all dashboards share."""

from __future__ import annotations

import doctest
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from muster.dashboard import text
from muster.errors import MusterError
from muster.job import Status
from muster.text import cleaning


def test_the_examples_hold() -> None:
    assert doctest.testmod(text).failed == 0
    assert doctest.testmod(text).attempted > 0


def test_every_status_has_a_sign_and_a_colour() -> None:
    assert {str(status) for status in Status} <= set(text.GLYPHS) & set(text.COLOURS)


@pytest.mark.parametrize(
    ("hostile", "clean"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07a", "a"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\r\nb\rc\td", "a\nbc\td"),
        ("\x1bPq\x1b\\a\x1b(Bb\x9b2Jc", "abc"),
        ("\u202eabc\u2066\u200b", "abc"),
        ("\udcff", "\ufffd"),
        ("[bold]märchen 数字[/bold]", "[bold]märchen 数字[/bold]"),
        (None, "None"),
    ],
)
def test_clean(hostile: object, clean: str) -> None:
    assert cleaning.clean(hostile) == clean


@pytest.mark.slow
@given(st.text())
def test_clean_leaves_nothing_that_steers_a_terminal(anything: str) -> None:
    cleaned = cleaning.clean(anything)

    assert not any(
        ord(character) < 32 and character not in "\n\t" or 127 <= ord(character) < 160 for character in cleaned
    )
    cleaned.encode()


@given(st.lists(st.floats()), st.integers(2, 30))
@example([sys.float_info.max, -sys.float_info.max], 2)
def test_sparklines_take_any_values(values: list[float], width: int) -> None:
    assert len(text.sparkline(values, width)) <= width


def test_errors_say_nothing_that_steers_a_terminal() -> None:
    error = MusterError("it said \x1b[2Jno", advice="\x1b]0;title\x07try", details="\u202eTraceback\n  at 7")
    assert str(error) == "it said no\n\nTraceback\n  at 7\n\nTry: try"
    assert "\x1b" not in repr(error)
