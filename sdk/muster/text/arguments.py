"""Texts that name arguments of ``run_cluster``, which each interface writes in its own way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple


class Argument(NamedTuple):
    """An argument of ``run_cluster`` in a text.

    Attributes:
        name: of the argument.
        value: what to give it: None where the text only names it, and empty where the words after it say what.
    """

    name: str
    value: Any = None

    def as_python(self) -> str:
        """Return it as Python has it.

        >>> [argument.as_python() for argument in (Argument("n_ps"), Argument("memory", 4.0), Argument("python", ""))]
        ['n_ps', 'memory=4', 'python=']
        """
        if self.value is None:
            return self.name
        if isinstance(self.value, str):
            return f"{self.name}=" + (json.dumps(self.value, ensure_ascii=False) if self.value else "")
        return f"{self.name}={self.value:g}" if isinstance(self.value, float) else f"{self.name}={self.value!r}"


class ArgumentText(str):
    """A text that names arguments. As a string it is in the words of Python.

    >>> text = ArgumentText("a longer ", Argument("timeout_seconds"), ", or ", Argument("n_workers", 2))
    >>> str(text)
    'a longer timeout_seconds, or n_workers=2'
    >>> text.write(lambda argument: argument.name.upper())
    'a longer TIMEOUT_SECONDS, or N_WORKERS'
    """

    parts: tuple[str | Argument, ...]

    def __new__(cls, *parts: str | Argument) -> ArgumentText:
        """Make one of strings, of other such texts, and of arguments."""
        flat: list[str | Argument] = []
        for part in parts:
            flat += part.parts if isinstance(part, ArgumentText) else [part]
        made = super().__new__(cls, "".join(part.as_python() if isinstance(part, Argument) else part for part in flat))
        made.parts = tuple(flat)
        return made

    def write(self, write_argument: Callable[[Argument], str]) -> str:
        """Return the text with its arguments as ``write_argument`` writes them."""
        return "".join(write_argument(part) if isinstance(part, Argument) else part for part in self.parts)

    def to_json(self) -> list[Any]:
        """Return its parts as plain data: strings, and pairs of name and value."""
        return [list(part) if isinstance(part, Argument) else part for part in self.parts]

    @classmethod
    def from_json(cls, parts: Iterable[Any]) -> ArgumentText:
        """Return the text again."""
        return cls(*(Argument(*part) if isinstance(part, list) else str(part) for part in parts))


def listed(names: Sequence[str]) -> ArgumentText:
    """Return these arguments as a list in a sentence.

    >>> listed(["slots", "mpiexec"])
    'slots, mpiexec'
    """
    return ArgumentText(*[part for name in names for part in (", ", Argument(name))][1:])


def each_part(text: str, change: Callable[[str], str]) -> str:
    """Return ``text`` with ``change`` made to it, or, where it names arguments, to each text that it is made of."""
    if not isinstance(text, ArgumentText):
        return change(text)
    return ArgumentText(*(_changed(part, change) for part in text.parts))


def _changed(part: str | Argument, change: Callable[[str], str]) -> str | Argument:
    if not isinstance(part, Argument):
        return change(part)
    return Argument(change(str(part.name)), change(part.value) if isinstance(part.value, str) else part.value)
