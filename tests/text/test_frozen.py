"""Frozen dataclasses with shared methods: they are what those of the standard library are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import pytest
from muster.text.frozen import frozen


@frozen
class Point:
    """A point with a secret."""

    x: int
    y: int = 2
    secret: str = field(default="s3cret", repr=False)
    marks: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Ordinary:
    """The same from the standard library, under its name."""

    x: int
    y: int = 2
    secret: str = field(default="s3cret", repr=False)
    marks: Mapping[str, str] = field(default_factory=dict, compare=False)


Ordinary.__qualname__ = "Point"


def test_it_compares_shows_and_hashes_as_an_ordinary_one() -> None:
    point = Point(1)
    assert repr(point) == repr(Ordinary(1)) == "Point(x=1, y=2, marks={})"
    assert point == Point(1, 2) == Point(x=1, marks={"a": "b"})
    assert point != Point(1, 3)
    other: object = Ordinary(1)
    assert point != other
    assert hash(point) == hash(Point(1, marks={"a": "b"})) == hash(Ordinary(1))
    assert [each.name for each in fields(point)] == ["x", "y", "secret", "marks"]


def test_nothing_of_it_can_be_changed() -> None:
    point = Point(1)
    for name in ("x", "marks", "unknown"):
        with pytest.raises(FrozenInstanceError):
            setattr(point, name, 5)
    with pytest.raises(FrozenInstanceError):
        del point.x
    assert replace(point, y=5) == Point(1, 5)


@pytest.mark.parametrize("arguments", [{}, {"x": 1, "z": 2}])
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Point(**arguments)


def test_it_can_be_copied_and_pickled() -> None:
    point = Point(1, marks={"a": "b"})
    for other in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert other == point
        assert other.marks == point.marks


def test_an_inherited_comparison_is_kept() -> None:
    class Data(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            return vars(self)[name]

        def __iter__(self) -> Iterator[str]:
            return iter(vars(self))

        def __len__(self) -> int:
            return len(vars(self))

    @frozen
    class Told(Data):
        text: str = ""

    assert Told("a") == {"text": "a"}
