"""Commands with a script: they take their own options before and after SCRIPT; others after it are the script's."""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import click

from muster.checks.names import right_names
from muster.commands.options import (
    NEAR,
    DeclaredOption,
    PlatformCommand,
    TimeSpan,
    platform_options,
    strategy_options,
)
from muster.commands.wrapping import say

IN_PYTHON = ("dashboard", "kwargs", "observers", "reuse", "wait", "warm")  # arguments that have no option
LONGEST_SCRIPT = 1_000_000  # characters of a script that are searched for names of its own options
NUMBER = re.compile(r"[\d.]+")
UNIT = re.compile(r"d(ays?)?|h(rs?|ours?)?|m(ins?|inutes?)?|s(ecs?|econds?)?", re.IGNORECASE)


class ScriptCommand(PlatformCommand):
    """A command that takes its own options before SCRIPT and after it; any other after SCRIPT is the script's.

    Only whole names count after SCRIPT (``-bs`` is never ``-b -s``), and ``--`` ends the command's own options.
    """

    allow_interspersed_args = False

    def declared_options(self) -> Iterator[DeclaredOption]:
        """Return the options that strategies and platforms declare."""
        yield from strategy_options()
        yield from platform_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command's own options first, which is where click looks for them."""
        options = {
            name: parameter
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        takes_value = {name: not parameter.is_flag for name, parameter in options.items()}
        try:
            rest = super().parse_args(ctx, own_options_first(args, takes_value))
        except click.NoSuchOption as error:
            if (name := _argument(error.option_name)) in IN_PYTHON:
                raise click.UsageError(
                    f"No such option {error.option_name!r}: {name}= is for Python alone.", ctx
                ) from None
            if difflib.get_close_matches(error.option_name, takes_value, cutoff=NEAR):
                raise
            if flags := flags_of(error.option_name, options.values()):
                words = f"No such option {error.option_name!r}. Did you mean {' or '.join(flags)}?"
                raise click.UsageError(words, ctx) from None
            missing = "" if names_script(args, takes_value) else ", and SCRIPT is missing"
            words = f"No such option {error.option_name!r}{missing}: options after SCRIPT are the script's own."
            raise click.UsageError(words, ctx) from None
        script = ctx.params.get("worker_script")
        times = {name for name, parameter in options.items() if isinstance(parameter.type, TimeSpan)}
        for unit, meant in times_in_two_words(args, times).items():
            if unit != script:
                say(f"Warning: {unit} goes to the script. Try: {meant}", err=True)
            elif not ctx.params.get("module") and not os.path.exists(script):
                raise click.UsageError(f"{script!r} stands where SCRIPT does. Try: {meant}", ctx)
        for word, meant in misspelt(args, takes_value, _text_of(script)).items():
            say(f"Warning: {word} is no option of muster and goes to the script. Try: {meant}", err=True)
        return rest


def flags_of(option: str, options: Iterable[click.Option]) -> list[str]:
    """Return the flags that an option stands for which has an argument's name in Python, or in another tool.

    >>> stall = click.Option(["--stall", "stall_seconds"])
    >>> flags_of("--stall-seconds", [stall]), flags_of("--epochs", [stall])
    (['--stall'], [])
    """
    flags = {str(parameter.name): parameter.opts[-1] for parameter in options}
    return [flags[name] for name in right_names(_argument(option), flags)]


def _argument(option: str) -> str:
    """Return the name in Python of the argument that an option gives."""
    return option.lstrip("-").replace("-", "_")


def own_options_first(args: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Return the arguments with all known options moved in front of SCRIPT.

    Args:
        args: the arguments on the command line.
        takes_value: for each known option, whether a value follows it.

    >>> own_options_first(["train.py", "--epochs", "3", "-n", "2", "--", "-n"], {"-n": True})
    ['-n', '2', 'train.py', '--epochs', '3', '-n']
    """
    own: list[str] = []
    rest: list[str] = []  # SCRIPT and the script's arguments
    words = iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        if word == "--" and rest:
            rest += words
        elif name in takes_value and (name.startswith("--") or not equals):
            own += [word, *(itertools.islice(words, 1) if takes_value[name] and not equals else ())]
        elif rest or not word.startswith("-"):
            rest.append(word)
        else:
            own.append(word)  # click says what is wrong with it
    return own + rest


def names_script(args: Sequence[str], takes_value: Mapping[str, bool]) -> bool:
    """Return whether any of the words may name a script, including words that may be values of unknown options.

    >>> names_script(["-n", "2", "--epochs", "3"], {"-n": True}), names_script(["--epochs", "3", "train.py"], {})
    (False, True)
    """
    words = iter(args)
    for word in words:
        if takes_value.get(word):
            next(words, None)
        elif not word.startswith("-") and not NUMBER.fullmatch(word):
            return True
    return False


def times_in_two_words(args: Sequence[str], times: Collection[str]) -> dict[str, str]:
    """Return units that are separate words, and so not part of the time before, each with what was likely meant.

    >>> times_in_two_words(["--detach", "8", "hours", "train.py", "--stall=2", "min"], {"--detach", "--stall"})
    {'hours': '--detach 8h', 'min': '--stall 2m'}
    """
    own = itertools.takewhile(lambda word: word != "--", args)
    words = [part for word in own for part in word.split("=", 1)]
    return {
        unit: f"{option} {number}{unit[0].lower()}"
        for option, number, unit in zip(words, words[1:], words[2:], strict=False)
        if option in times and NUMBER.fullmatch(number) and UNIT.fullmatch(unit)
    }


def misspelt(args: Sequence[str], takes_value: Mapping[str, bool], script: str = "") -> dict[str, str]:
    """Return words for the script that look like options of the command, each with what was likely meant.

    Args:
        args: the arguments on the command line. Those after ``--`` are certainly the script's.
        takes_value: for each known option, whether a value follows it.
        script: the text of the script; an option that it names is its own.

    >>> misspelt(["train.py", "--strategi=mpi", "-n2", "--epochs", "3"], {"--strategy": True, "-n": True})
    {'--strategi': '--strategy', '-n2': '-n 2'}
    >>> misspelt(["--sbatch-args", "--exclusive", "train.py"], {"--sbatch-args": True, "--exclude": True})
    {}
    """
    found = {}
    known = [name for name in takes_value if name.startswith("--")]
    words = itertools.takewhile(lambda word: word != "--", args)
    for word in words:
        name, equals, _ = word.partition("=")
        if name in takes_value and (name.startswith("--") or not equals):
            if takes_value[name] and not equals:
                next(words, None)  # its value, which may look like an option
            continue
        if name.startswith("--"):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            own = {name[2:], name[2:].replace("-", "_")}
            if near and not any(re.search(rf"(?<!\w){re.escape(text)}(?!\w)", script) for text in own):
                found[name] = near[0]
        elif (short := re.fullmatch(r"(-\w)=?(\d+)", word)) and takes_value.get(short[1]) and short[1] not in script:
            found[word] = f"{short[1]} {short[2]}"
    return found


def _text_of(script: str | None) -> str:
    """Return the text of a script's file; empty where it cannot be read."""
    try:
        with open(script or "", encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST_SCRIPT)
    except (OSError, ValueError):
        return ""
