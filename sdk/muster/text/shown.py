"""Values as people read them, at prompts and in notebooks: times, texts line by line, stacks in order, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, TypeVar, overload

from muster.text.cleaning import clean

T = TypeVar("T")


def duration(seconds: float) -> str:
    """Return a number of seconds as people read it.

    >>> duration(3.21), duration(75), duration(7265)
    ('3.2 s', '1:15', '2:01:05')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Text(str):
    """A text that a notebook shows as it would be printed; else a string like any other."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str.__str__(self))


class Stacks(dict[str, str]):
    """Python stacks by rank or worker, in order; shown one below the other.

    >>> Stacks({"rank 10 (w)": "a", "rank 2 (w)": "b"})
    --- rank 2 (w)
    b
    --- rank 10 (w)
    a
    """

    def __init__(self, stacks: Mapping[str, str]) -> None:
        super().__init__(sorted(stacks.items(), key=lambda item: in_order(item[0])))

    def __repr__(self) -> str:
        return "\n".join(f"--- {name}\n{text.rstrip()}" for name, text in self.items()) or "{}"


class Table(list[T]):
    """A list that is shown as a table, a line for each; so is a slice of it."""

    HEADING: tuple[str, ...] = ()

    def cells(self, item: T) -> Sequence[str]:
        """Return the texts of an item's row, one for each column."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Table[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | Table[T]:
        found = super().__getitem__(index)
        return type(self)(found) if isinstance(index, slice) else found  # type: ignore[arg-type,return-value]

    def __repr__(self) -> str:
        rows = [self.HEADING, *([clean(cell) for cell in self.cells(item)] for item in self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines) if self else "[]"


def in_order(name: str) -> tuple[str, int]:
    """Return a key that sorts ``rank 10 (worker-1)`` behind ``rank 9 (worker-1)``, and likewise workers.

    >>> sorted(["worker-10", "rank 10 (worker-5)", "worker-9", "rank 9 (worker-4)"], key=in_order)
    ['rank 9 (worker-4)', 'rank 10 (worker-5)', 'worker-9', 'worker-10']
    """
    words = name.partition(" (")[0].replace("-", " ").rpartition(" ")
    return (words[0], int(words[2])) if words[2].isdecimal() else (name, 0)
