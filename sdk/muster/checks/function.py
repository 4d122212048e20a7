"""A function given as ``worker_script``: its name, what it must be called with, and its pickle.

What it will be called with may be secret, and is repeated nowhere: not in its name, nor in errors about it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import linecache
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from muster.checks.pickling import pickled
from muster.errors import ScriptError
from muster.job import Script
from muster.text.traceback import cell_name

READS_ARGV = {"argv", "argparse", "parse_args", "parse_known_args"}  # names in its code
TASK_PARAMETERS = 3  # run(cluster, server, task_index)


def function_script(function: Callable[..., Any], kwargs: Mapping[str, Any] | None = None) -> Script:
    """Return a script that calls ``function`` with these keyword arguments.

    Raises:
        ScriptError: it cannot be called so, or cannot be pickled.
    """
    name = name_of(function)
    if inspect.iscoroutinefunction(_innermost(function)):
        raise ScriptError(
            f"{name} is a coroutine function, which nobody would await on the workers.",
            advice="a function that calls asyncio.run(...)",
        )
    if inspect.isgeneratorfunction(_innermost(function)):
        raise ScriptError(
            f"{name} is a generator function, which nobody would iterate over on the workers.",
            advice="a function that has the loop over it inside, and returns",
        )
    signature = _signature(function, name)
    if kwargs:
        _check_keywords(name, signature, kwargs)
        function = functools.partial(function, **kwargs)
        signature = _signature(function, name)
    positional, missing = _required(signature)
    if missing or len(positional) not in (0, TASK_PARAMETERS):
        needs = positional + missing
        raise ScriptError(
            f"{name} takes {len(needs)} argument{'s' if len(needs) != 1 else ''} that nobody gives it: "
            f"{', '.join(needs)}.",
            advice=f"kwargs={{{', '.join(f'{need!r}: ...' for need in needs)}}}; what args= has is in sys.argv"
            + "; parameter servers call run(cluster, server, task_index)" * (len(needs) > 1),
        )
    by_value, files = pickled(function, name)
    return Script("function", name, len(positional) == TASK_PARAMETERS, by_value, _sources_of(files))


def without_arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of parameters that get no value, if the function does not read ``sys.argv`` either.

    >>> def train(rate=0.1):
    ...     return rate
    >>> without_arguments(train), without_arguments(functools.partial(train, rate=1))
    (['rate'], [])
    """
    inner = _innermost(function)
    if READS_ARGV & set(getattr(getattr(inner, "__code__", None), "co_names", ())):
        return []
    given = function.keywords if isinstance(function, functools.partial) else {}
    parameters = _signature(function, name_of(function)).parameters.values()
    return [p.name for p in parameters if p.default is not p.empty and p.name not in given]


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of a callable object."""
    inner = _innermost(function)
    for name in (getattr(inner, "__qualname__", None), getattr(inner, "__name__", None)):
        if isinstance(name, str):  # objects that answer to every name have others
            return name
    return type(inner).__qualname__


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function below any number of ``functools.partial``."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # what they say repeats the arguments
        if isinstance(function, functools.partial):
            why = "it does not take the arguments that functools.partial binds to it"
        else:
            why = "Python cannot tell which arguments it takes"
        raise ScriptError(
            f"{name} cannot be called on the workers: {why}.", advice="a function of your own that calls it"
        ) from None


def _required(signature: inspect.Signature) -> tuple[list[str], list[str]]:
    """Return the parameters without a default: the positional ones, and the keyword-only ones."""
    needed = [p for p in signature.parameters.values() if p.default is p.empty]
    positional = [p.name for p in needed if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional, [p.name for p in needed if p.kind == p.KEYWORD_ONLY]


def _check_keywords(name: str, signature: inspect.Signature, kwargs: Mapping[str, Any]) -> None:
    if any(not isinstance(keyword, str) for keyword in kwargs):
        raise ScriptError("kwargs has keys that are no names of arguments.", advice='kwargs={"learning_rate": 0.1}')
    parameters = signature.parameters.values()
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for keyword in kwargs:
        if keyword not in known:
            near = difflib.get_close_matches(keyword, known, n=1)
            advice = near[0] if near else f"it takes {', '.join(known) or 'none'}"
            raise ScriptError(f"{name} takes no argument {keyword!r}, which kwargs has.", advice=advice)


def _sources_of(names: Iterable[str]) -> bytes:
    """Return the texts of cells and files, and what the notebook calls the cells, by the names of their files, pickled.

    They are needed as tracebacks quote the source and name the cell, and TensorFlow compiles a function from it. A file
    of this machine need not be on a worker, so its text is sent, too; it is no cell, and its name for one is empty.
    """
    import pickle  # only here, as most scripts are files

    sources = {}
    for name in sorted(names):
        linecache.checkcache(name)  # a file may have been edited, and loaded anew, since it was read
        text = "".join(linecache.getlines(name))
        if text:
            sources[name] = (cell_name(name), text)
    return pickle.dumps(sources, protocol=2) if sources else b""
