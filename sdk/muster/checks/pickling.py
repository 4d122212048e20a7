"""Pickling of a function by value, and the search for the part of it that cannot be pickled."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import io
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from muster.errors import ScriptError

FILENAME = 10  # among the arguments of CodeType
SPAWNED = "__mp_main__"  # the script's module in processes that multiprocessing has spawned
SHELL = "get_ipython"  # what !commands and %magics become in a cell


def pickled(function: Callable[..., Any], name: str) -> tuple[bytes, set[str]]:
    """Return the pickle of a function, and the names of the files that the code in it comes from.

    Args:
        name: of the function, for errors.

    Raises:
        ScriptError: it cannot be pickled; what of it cannot is named, and its value is not.
    """
    try:
        return _dump(function)
    except Exception as error:  # whatever the user's objects raise when pickled
        found = _in_the_way(function, set())
        if SHELL in found:
            raise ScriptError(
                f"{name} cannot be sent to the workers: it uses {SHELL}, as !commands and %magics do, and workers have "
                "no notebook.",
                advice="subprocess.run([...], check=True) in their place",
            ) from error
        is_given = found.startswith("its argument")
        uses = f", as it uses {found}" if found and not is_given else f" with {found}" if found else ""
        raise ScriptError(
            f"{name} cannot be sent to the workers{uses}: {error}",
            advice="make it inside the function, of something plain that is given to it"
            if is_given
            else "open files, locks and sessions inside the function, not around it",
        ) from error


def _dump(value: Any) -> tuple[bytes, set[str]]:
    import cloudpickle

    names = set()

    def reduced(code: CodeType) -> tuple[Any, ...]:
        names.add(code.co_filename)
        return _with_filename(code)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table = ChainMap({CodeType: reduced}, cloudpickle.Pickler.dispatch_table)

    file = io.BytesIO()
    _take_script_by_value()
    Pickler(file).dump(value)
    return file.getvalue(), names


def _take_script_by_value() -> None:
    """Have cloudpickle pickle what the script defines by value in a process that ``multiprocessing`` has spawned, too.

    There the script is the module ``__mp_main__``, which no worker can import; cloudpickle knows ``__main__`` alone.
    """
    import cloudpickle

    script = sys.modules.get(SPAWNED)
    if script is not None and script.__name__ == SPAWNED:  # elsewhere that is another name of ``__main__``
        cloudpickle.register_pickle_by_value(script)


def _with_filename(code: CodeType) -> tuple[Any, ...]:
    """Reduce code as cloudpickle does, with the name of its file: cloudpickle leaves that out from 3.1.3 on.

    Tracebacks name it, and TensorFlow finds the source by it.
    """
    import cloudpickle

    made, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return made, (*arguments[:FILENAME], code.co_filename, *arguments[FILENAME + 1 :])


def _in_the_way(function: Any, seen: set[int]) -> str:
    """Return the name of the part of a function that cannot be pickled; empty if no single part is to blame."""
    seen.add(id(function))
    for what, value in _parts(function):
        if id(value) in seen or _can_be_pickled(value):
            continue
        inside = _in_the_way(value, seen) if isinstance(value, (FunctionType, functools.partial)) else ""
        if not what or SHELL in inside:
            return inside
        return f"{what}, which uses {inside}" if inside else what
    return ""


def _parts(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts that are pickled with a function, each after its name; that of a partial's function is empty."""
    if isinstance(function, functools.partial):
        yield from ((f"its argument {name!r}", value) for name, value in function.keywords.items())
        yield from ((f"its argument number {number}", value) for number, value in enumerate(function.args, 1))
        yield "", function.func
    elif inspect.ismethod(function):
        yield "the object that it is a method of", function.__self__
    elif isinstance(function, FunctionType):
        defaults = inspect.signature(function).parameters.values()
        yield from ((f"the default of {p.name!r}", p.default) for p in defaults if p.default is not p.empty)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # it is empty
                yield f"the variable {name!r} from around it", cell.cell_contents
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                yield SHELL if name == SHELL else f"the global {name!r}", function.__globals__[name]


def _global_names(code: CodeType) -> dict[str, None]:
    """Return the names of globals that code, or a function inside it, reads, in order."""
    names = {i.argval: None for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def _can_be_pickled(value: Any) -> bool:
    try:
        _dump(value)
    except Exception:  # as above
        return False
    return True
