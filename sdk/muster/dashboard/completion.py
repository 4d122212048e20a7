"""Completion in a notebook's cells: the names of strategies and platforms in a call, and the options that they have."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

CALL = re.compile(r"\b(?:run_cluster|doctor|pool)\(")
ARGUMENT = re.compile(r"[(,]\s*(\w*)$")


def complete_in(shell: Any) -> None:
    """Have IPython complete these, beside what it completes by itself: it knows named parameters alone."""
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher()  # type: ignore[untyped-decorator]
    def of_muster(context: Any) -> dict[str, Any]:
        lines = context.full_text.split("\n")[: context.cursor_line]
        before = "\n".join([*lines, context.text_until_cursor])
        values, options = completions(before)
        found = [SimpleCompletion(text=name, type="text") for name in values]
        found += [SimpleCompletion(text=f"{name}=", type="param") for name in options]
        return {"completions": found, "suppress": bool(values)}  # files and magics are no such names

    shell.Completer.custom_matchers.append(of_muster)


def completions(before: str) -> tuple[list[str], list[str]]:
    """Return what may follow a piece of code in a call: names of strategies or platforms, and names of their options.

    >>> completions('run_cluster(2, strategy="pro')
    (['processes'], [])
    >>> completions('run_cluster(2, strategy="mpi", sl')
    ([], ['slots'])
    """
    from muster import platforms, strategies  # not needed before, and `import muster` is to be quick

    calls = list(CALL.finditer(before))
    call = before[calls[-1].end() - 1 :] if calls else ""
    depths = list(accumulate((character == "(") - (character == ")") for character in call))
    if 0 in depths or not depths:
        return [], []  # there is no call, or it is complete
    options: list[str] = []
    for argument, table, options_of in (
        ("strategy", strategies.STRATEGIES, strategies.option_names),
        ("platform", platforms.PLATFORMS, platforms.option_names),
    ):
        chosen = re.search(rf"\b{argument}\s*=\s*[\"'](\w*)([\"']?)", call)
        if chosen and chosen.end() == len(call) and not chosen[2]:
            return [name for name in table if name.startswith(chosen[1])], []
        options += options_of(chosen[1]) if chosen else []
    typed = ARGUMENT.search(call)
    return [], [name for name in options if name.startswith(typed[1])] if typed else []
