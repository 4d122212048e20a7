"""The agent's own named tuples are those of ``typing``, only made more quickly."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import pytest
from muster.agent.named_tuple import NamedTuple


class Quick(NamedTuple):
    """As the agent has them."""

    number: int
    text: str = "none"
    items: tuple[int, ...] = ()


class Usual(typing.NamedTuple):
    """The same by the standard library."""

    number: int
    text: str = "none"
    items: tuple[int, ...] = ()


USES: list[Callable[[Any], object]] = [
    lambda made: made(1),
    lambda made: made(1, "a", (2,)),
    lambda made: made(1, items=(2,)),
    lambda made: made(number=1),
    lambda made: made(1)._replace(text="b"),
    lambda made: made(1, "a")._asdict(),
    lambda made: [*made(1, "a")],
    lambda made: (made(1).number, made(1).text, made(1).items),
    lambda made: made(1) == (1, "none", ()),
    lambda made: repr(made(1, "a")).partition("(")[2],
    lambda made: (made._fields, made._field_defaults, made.__doc__ is None, made.__slots__),
]


@pytest.mark.parametrize("use", USES)
def test_they_are_used_alike(use: Callable[[Any], object]) -> None:
    assert use(Quick) == use(Usual)


WRONG: list[Callable[[Any], object]] = [
    lambda made: made(),
    lambda made: made(1, "a", (), 2),
    lambda made: made(1, number=2),
    lambda made: made(1, other=2),
    lambda made: made(1)._replace(other=2),
]


@pytest.mark.parametrize("use", WRONG)
def test_they_take_nothing_else(use: Callable[[Any], object]) -> None:
    for made in (Quick, Usual):
        with pytest.raises((TypeError, ValueError)):
            use(made)


def test_their_items_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        Quick(1).number = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Quick(1).other = 2  # type: ignore[attr-defined]
