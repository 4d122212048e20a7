"""Dataclass fields that are options: declared once, both arguments of ``run_cluster`` and flags of ``muster run``."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.errors import JobError
from muster.options.values import plain_number, whole_number
from muster.text.arguments import Argument, ArgumentText
from muster.text.frozen import frozen

KEY = "option"  # key in a field's metadata
TYPES = (bool, int, float, str, Path, tuple)  # types of options that a command line can express


@frozen
class Option:
    """One option of a strategy or a platform.

    Attributes:
        name: name of the argument.
        value: its default value.
        type: ``bool``, ``int``, ``float``, ``str``, ``Path``, or ``tuple`` for words; None for other types.
        help: its description in the help of a command, without a full stop.
        default: its default in words; empty if that is obvious.
        metavar: placeholder of its value in help, such as ``NAME``; empty for the usual one.
        minimum: the least valid number.
    """

    name: str
    value: Any = None
    type: type | None = None
    help: str = ""
    default: str = ""
    metavar: str = ""
    minimum: float | None = None

    @property
    def flag(self) -> str:
        """The option's flag on a command line, such as ``--network-interface``."""
        return "--" + self.name.replace("_", "-")


def option(
    value: Any, help: str, *, default: str | None = None, metavar: str = "", minimum: float | None = None
) -> Any:
    """Declare a field of a strategy or a platform that is an argument of ``run_cluster`` and a flag of ``muster run``.

    Fields of other kinds than ``bool``, ``int``, ``float``, ``str``, ``Path`` and tuples of ``str`` are arguments only.

    Args:
        value: the default value.
        help: its description in the help of a command, without a full stop.
        default: the default in words, if the value itself does not say it.
        metavar: placeholder of its value in help, such as ``NAME``; files are completed for ``PATH``.
        minimum: the least valid number.
    """
    described = {"help": help, "default": default, "metavar": metavar, "minimum": minimum}
    return dataclasses.field(default=value, metadata={KEY: described})


def options_of(kind: type) -> tuple[Option, ...]:
    """Return the options of a class, in the order of its fields; none if it is not a dataclass."""
    return _options_of(kind)


@functools.lru_cache
def _options_of(kind: type) -> tuple[Option, ...]:
    if not dataclasses.is_dataclass(kind):
        return ()
    hints = typing.get_type_hints(kind)
    return tuple(_option(field, hints[field.name]) for field in dataclasses.fields(kind) if field.init)


def chosen_options(made: Any) -> dict[str, Any]:
    """Return the options of a strategy or a platform that differ from their defaults, as plain data to be recorded."""
    found: dict[str, Any] = {}
    for option in options_of(type(made)):
        value = getattr(made, option.name)
        if option.type is not None and value != option.value:
            found[option.name] = list(value) if option.type is tuple else str(value) if option.type is Path else value
    return found


def check_numbers(made: Any) -> None:
    """Raise JobError for an option of a strategy or a platform that has a least number, and is none or smaller.

    NumPy's numbers become Python's, which can be recorded.
    """
    for option in options_of(type(made)):
        value = getattr(made, option.name)
        if option.minimum is None or value is None:
            continue
        number = (whole_number if option.type is int else plain_number)(option.name, value)
        if not option.minimum <= number < float("inf"):
            raise JobError(
                ArgumentText(Argument(option.name), f" is {value!r}; it must be at least {option.minimum:g}.")
            )
        if type(number) is not type(value):
            object.__setattr__(made, option.name, number)  # also of a frozen dataclass: it is the same number


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line for these options, as ``chosen_options`` records them.

    >>> flags_of({"slots": 2, "mpi_args": ["--mca", "btl", "tcp,self"], "with_milk": True})
    ['--slots', '2', '--mpi-args', '--mca btl tcp,self', '--with-milk']
    """
    words = []
    for name, value in options.items():
        if isinstance(value, bool):
            words.append(Option(name).flag if value else Option("no_" + name).flag)
        else:
            words += [Option(name).flag, shlex.join(map(str, value)) if isinstance(value, list) else str(value)]
    return words


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    described = dict(field.metadata.get(KEY, {}))
    default = described.pop("default", None)
    if default is None and field.default is not False and field.default not in (None, (), "", dataclasses.MISSING):
        default = str(field.default)
    return Option(field.name, field.default, _plain_type(hint), default=default or "", **described)


def _plain_type(hint: Any) -> type | None:
    """Return the type that a command line has to parse; None if it cannot express the option."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [part for part in typing.get_args(hint) if part is not type(None)]
        return _plain_type(rest[0]) if len(rest) == 1 else None
    plain = typing.get_origin(hint) or hint
    return plain if plain in TYPES else None
