"""Options of strategies and platforms on the command line, as the classes in their tables declare them."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from muster import platforms, strategies
from muster.commands import completion
from muster.options.fields import Option, options_of
from muster.text.spans import seconds_of

NEAR = 0.75  # how similar a suggested word must be to the given one
STRATEGIES, PLATFORMS = "Options of strategies", "Options of platforms"


class WholeNumber(click.IntRange):
    """A whole number, which help calls N."""

    name = "whole number"

    def get_metavar(self, *_: object, **__: object) -> str:
        """Return the placeholder of the value in help."""
        return "N"


class Number(click.FloatRange):
    """A number in a range, with or without a decimal point."""

    name = "number"


class TimeSpan(Number):
    """A time span, given as a number of seconds or with units, and converted to seconds."""

    name = "time span"

    def get_metavar(self, *_: object, **__: object) -> str:
        """Return the placeholder of the value in help."""
        return "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number of seconds."""
        seconds = seconds_of(value) if isinstance(value, str) else None
        return super().convert(value if seconds is None else seconds, param, ctx)

    def fail(self, message: str, param: click.Parameter | None = None, ctx: click.Context | None = None) -> NoReturn:
        """Refuse a time, and say how one is given."""
        super().fail(f"{message.rstrip('.')}; a time is in seconds, or such as 90m, 8h or 1d.", param, ctx)


class AnyNumber(click.types.FloatParamType):
    """A number, with or without a decimal point."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; one with a unit of memory is refused with the number to give."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?gb?", str(value), re.IGNORECASE)
        if found:
            self.fail(f"{value!r} is not a valid number; memory is given in GB: {found[1]}", param, ctx)
        return super().convert(value, param, ctx)


if TYPE_CHECKING:
    Choice = click.Choice[str]
else:  # click 8.1 has no parameter
    Choice = click.Choice


class NameIn(Choice):
    """One of the names in a table, to which entries may be added later.

    Args:
        table: the table, whose keys are the names.
        others: other names that people use, each with the name in the table.
    """

    def __init__(self, table: Mapping[str, Any], others: Mapping[str, str]) -> None:
        super().__init__(())
        self._table = table
        self._others = others

    @property
    def choices(self) -> tuple[str, ...]:
        """The names in the table as it is now."""
        return tuple(self._table)

    @choices.setter
    def choices(self, names: object) -> None:
        """Do nothing, as the table alone has the names."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name; refuse a misspelt name, or one used elsewhere, with the name that is likely meant."""
        if value not in self._table:
            near = difflib.get_close_matches(value.lower(), self._table, n=1, cutoff=NEAR)
            meant = self._others.get(value.lower()) or (near[0] if near else None)
            if meant:
                raise click.BadParameter(f"{value!r} is none. Did you mean {meant!r}?", ctx, param)
        return super().convert(value, param, ctx)

    def fail(self, message: str, param: click.Parameter | None = None, ctx: click.Context | None = None) -> NoReturn:
        """Refuse a name, and say how an object of the user's own class is given."""
        super().fail(f"{message.rstrip('.')}; one of your own is given in Python, as an object.", param, ctx)


class DeclaredOption(click.Option):
    """An option that the class of a strategy or a platform declares.

    Args:
        section: the heading above it in the help.
        having: names of the strategies or platforms that have the option, with the option as each declares it.
    """

    def __init__(self, section: str, having: Mapping[str, Option]) -> None:
        self.section = section
        declared = next(iter(having.values()))
        default = _default_of(having)
        shown = f"{declared.help} ({', '.join(having)})." + f"  [default: {default}]" * bool(default)
        is_flag = declared.type is bool
        super().__init__(
            [declared.flag + (f"/--no-{declared.flag[2:]}" if is_flag else ""), declared.name],
            type=_click_type(declared),
            default=None,
            metavar=declared.metavar or None,
            help=shown.strip(),
            callback=words if declared.type is tuple else None,
            shell_complete=completion.files if declared.metavar == "PATH" else None,
        )


class PlatformCommand(click.Command):
    """A command that also takes the options of platforms, which its help shows in a section of their own."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters, and the options that are declared elsewhere."""
        *own, last = super().get_params(ctx)  # --help
        return [*own, *self.declared_options(), last]

    def declared_options(self) -> Iterator[DeclaredOption]:
        """Return the options that platforms declare."""
        return platform_options()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the options that are declared elsewhere below the command's own."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def strategy_options() -> Iterator[DeclaredOption]:
    """Return the options of all strategies that have a form on the command line, each of them once."""
    return _of_table(STRATEGIES, strategies.STRATEGIES, strategies.strategy_class)


def platform_options() -> Iterator[DeclaredOption]:
    """Return the options of all platforms that have a form on the command line, each of them once."""
    return _of_table(PLATFORMS, platforms.PLATFORMS, platforms.platform_class)


def _of_table(section: str, table: Mapping[str, str], class_of: Callable[[str], type]) -> Iterator[DeclaredOption]:
    declared: dict[str, dict[str, Option]] = {}
    for name in table:
        for option in options_of(class_of(name)):
            if option.type is not None:
                declared.setdefault(option.name, {})[name] = option
    for having in declared.values():
        yield DeclaredOption(section, having)


def _default_of(having: Mapping[str, Option]) -> str:
    """Return the default of an option; all of them, with names, where strategies or platforms have different ones."""
    defaults = {name: str(option.default) for name, option in having.items() if option.default}
    if len(set(defaults.values())) > 1:
        return "; ".join(f"{default} ({name})" for name, default in defaults.items())
    return next(iter(defaults.values()), "")


def _click_type(declared: Option) -> click.ParamType[Any] | None:
    if declared.type is int:
        return click.INT if declared.minimum is None else WholeNumber(min=int(declared.minimum))
    if declared.type is float:
        return click.FLOAT if declared.minimum is None else Number(min=declared.minimum)
    if declared.type is Path:
        return click.Path(path_type=Path)
    return click.BOOL if declared.type is bool else click.STRING


def words(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Split a piece of a command line into words, as a shell does."""
    try:
        return None if text is None else tuple(shlex.split(text))
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, parameter) from error
