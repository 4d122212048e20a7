"""Frozen dataclasses that share their methods: to generate these for each would take most of a session's imports."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        """Return a decorator that does nothing: only type checkers need to know."""
        return lambda made: made


T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(made: type[T]) -> type[T]:
    """Make a class a frozen dataclass, as ``dataclass(frozen=True)`` does, which takes four times as long.

    Its objects take longer to make and to compare, so that a class of which there are many does better without. A class
    that inherits a comparison keeps it.
    """
    shared = [_Shared.__setattr__, _Shared.__delattr__]
    if made.__eq__ is object.__eq__:
        shared += [_Shared.__eq__, _Shared.__hash__]
    if "__repr__" not in vars(made):
        shared.append(_Shared.__repr__)
    for method in shared:
        setattr(made, method.__name__, method)
    return dataclass(repr=False, eq=False)(made)


class _Shared:
    """The methods of all frozen dataclasses."""

    def __setattr__(self, name: str, value: object) -> None:
        values = self.__dict__
        if name in values or name not in self.__dataclass_fields__:  # type: ignore[attr-defined]
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        values[name] = value  # in ``__init__``

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)  # type: ignore[arg-type]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(_values(self))


def _values(made: Any) -> tuple[Any, ...]:
    return tuple([getattr(made, each.name) for each in fields(made) if each.compare])
