"""Named tuples of the agent: they do what those of ``typing`` do."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest
from muster.agent.tuples import NamedTuple


class Ours(NamedTuple):
    """Two fields with defaults and one without."""

    first: int
    second: str | None = None
    third: float = 1.0


class Typings(typing.NamedTuple):
    """The same, made by ``typing``."""

    first: int
    second: str | None = None
    third: float = 1.0


class Empty(NamedTuple):
    """No fields."""


@pytest.mark.parametrize(
    "arguments", [{"first": 1}, {"first": 1, "third": 2.0}, {"third": 2, "first": 1, "second": "b"}]
)
def test_it_is_the_tuple_that_typing_makes(arguments: dict[str, typing.Any]) -> None:
    ours, theirs = Ours(**arguments), Typings(**arguments)
    assert tuple(ours) == tuple(theirs)
    assert ours._asdict() == theirs._asdict()
    assert repr(ours) == repr(theirs).replace("Typings", "Ours")
    assert (ours.first, ours.second, ours.third) == tuple(theirs)
    assert tuple(ours._replace(second="c")) == tuple(theirs._replace(second="c"))
    assert type(ours._replace(second="c")) is Ours
    assert Ours(*theirs) == ours
    assert Ours._fields == Typings._fields
    assert Ours._field_defaults == Typings._field_defaults


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, "a", 2.0, 3), {}), ((1,), {"fourth": 4})])
def test_wrong_values_are_refused(values: tuple[typing.Any, ...], named: dict[str, typing.Any]) -> None:
    with pytest.raises(TypeError, match="Ours does not fit its fields"):
        Ours(*values, **named)


def test_a_value_given_twice_is_refused() -> None:
    with pytest.raises(TypeError, match="Ours does not fit its fields"):
        Ours(1, first=2)  # type: ignore[misc]


def test_its_fields_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        Ours(1).first = 2  # type: ignore[misc]


def test_it_can_be_copied_and_pickled() -> None:
    for made in (Ours(1, "a"), Empty()):
        for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert other == made
            assert type(other) is type(made)
