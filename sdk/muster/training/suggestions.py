"""Suggestions for misspelt names in errors, as newer Pythons make them in the tracebacks that they print.

Standard library and Python 3.6 syntax only: any training interpreter imports this.
"""

import builtins
import difflib
import re
import sys
from typing import Any, Iterable

LIKENESS = 0.7
MOST_NAMES = 20000  # that are compared


def did_you_mean(error: BaseException) -> str:
    """Return the existing name that is most similar to the one that an error is about; empty if there is none."""
    for kind, pattern, names_of in MISSES:
        found = re.match(pattern, str(error)) if isinstance(error, kind) else None
        if found:
            try:
                return _nearest(found.group("name"), names_of(error, found))
            except Exception:  # dir() of the user's modules and objects may raise anything
                return ""
    return ""


def _nearest(missing: str, names: Iterable[Any]) -> str:
    known = sorted({name for name in names if isinstance(name, str) and name != missing})[:MOST_NAMES]
    known = [name for name in known if missing.startswith("_") or not name.startswith("_")]
    near = difflib.get_close_matches(missing, known, n=1, cutoff=LIKENESS)
    return near[0] if near else ""


def _in_scope(error: BaseException, found: Any) -> Iterable[str]:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame if trace is not None else None
    return [*frame.f_locals, *frame.f_globals, *dir(builtins)] if frame is not None else []


def _in_module(error: BaseException, found: Any) -> Iterable[str]:
    return dir(sys.modules[found.group("module")])


def _in_object(error: BaseException, found: Any) -> Iterable[str]:
    thing = getattr(error, "obj", None)  # from Python 3.10 on
    return dir(thing) if type(thing).__name__ == found.group("type") else []


MISSES = (
    (NameError, r"name '(?P<name>\w+)' is not defined", _in_scope),
    (AttributeError, r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'", _in_module),
    (AttributeError, r"'(?P<type>\w+)' object has no attribute '(?P<name>\w+)'", _in_object),
    (ImportError, r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'", _in_module),
)  # type: Any
