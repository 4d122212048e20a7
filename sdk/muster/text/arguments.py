"""Texts with arguments of ``run_cluster`` or commands in them, which each interface writes in its own way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple


class Argument(NamedTuple):
    """An argument of ``run_cluster`` in a text.

    Attributes:
        name: its name.
        value: its recommended value; None if the text only names the argument, and ``""`` if the text after it
            describes the value.
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


class Command(NamedTuple):
    """Something to do, in a text: what to call in Python, and what to type in a terminal."""

    call: str
    line: str

    def as_python(self) -> str:
        """Return it as Python has it."""
        return self.call


Part = str | Argument | Command


class ArgumentText(str):
    """A text that names arguments or commands. As a string it has them in Python's notation.

    >>> text = ArgumentText("a longer ", Argument("timeout_seconds"), ", or ", Argument("n_workers", 2))
    >>> str(text)
    'a longer timeout_seconds, or n_workers=2'
    >>> text.write(lambda argument: argument.name.upper())
    'a longer TIMEOUT_SECONDS, or N_WORKERS'
    """

    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> ArgumentText:
        """Make a text of strings, other such texts, arguments and commands."""
        flat: list[Part] = []
        for part in parts:
            flat += part.parts if isinstance(part, ArgumentText) else [part]
        made = super().__new__(cls, "".join(part if isinstance(part, str) else part.as_python() for part in flat))
        made.parts = tuple(flat)
        return made

    def write(self, write_argument: Callable[[Argument], str]) -> str:
        """Return the text for a terminal, with its arguments as ``write_argument`` writes them.

        >>> ArgumentText("see ", Command("run.stacks()", "muster stacks ID")).write(str)
        'see muster stacks ID'
        """
        written = [part.line if isinstance(part, Command) else part for part in self.parts]
        return "".join(write_argument(part) if isinstance(part, Argument) else part for part in written)

    def to_json(self) -> list[Any]:
        """Return its parts as plain data: strings, pairs of name and value, and commands by their fields' names."""
        return [
            list(part) if isinstance(part, Argument) else part._asdict() if isinstance(part, Command) else part
            for part in self.parts
        ]

    @classmethod
    def from_json(cls, parts: Iterable[Any]) -> ArgumentText:
        """Return the text that ``to_json`` wrote."""
        return cls(*map(_part_from_json, parts))


def listed(names: Sequence[str]) -> ArgumentText:
    """Return these arguments as a list in a sentence.

    >>> listed(["slots", "mpiexec"])
    'slots, mpiexec'
    """
    return ArgumentText(*[part for name in names for part in (", ", Argument(name))][1:])


def each_part(text: str, change: Callable[[str], str]) -> str:
    """Return ``change(text)``; of an ``ArgumentText``, with ``change`` applied to each string in its parts."""
    if not isinstance(text, ArgumentText):
        return change(text)
    return ArgumentText(*(_changed(part, change) for part in text.parts))


def _part_from_json(told: Any) -> Part:
    if isinstance(told, dict):
        return Command(str(told["call"]), str(told["line"]))
    return Argument(*told) if isinstance(told, list) else str(told)


def _changed(part: Part, change: Callable[[str], str]) -> Part:
    if isinstance(part, Command):
        return Command(*map(change, part))
    if not isinstance(part, Argument):
        return change(part)
    return Argument(change(str(part.name)), change(part.value) if isinstance(part.value, str) else part.value)
