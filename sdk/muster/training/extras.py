"""Imports of packages that the interpreter of a training script may not have. Python 3.6 syntax."""

import importlib.util
import sys
from contextlib import contextmanager
from typing import Iterator


@contextmanager
def extra(name: str = "") -> Iterator[None]:
    """Import packages of an optional part of Muster; the error for a missing one has the command that installs it.

    Args:
        name: The extra of Muster that brings them, such as `tensorflow`; empty for packages that are named themselves.

    Raises:
        ModuleNotFoundError: One of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # Workers have this folder alone, and perhaps a Python on which Muster itself cannot be installed.
        is_whole = importlib.util.find_spec("muster.api") is not None
        wanted = "'muster[{}]'".format(name) if name and is_whole else (error.name or "").partition(".")[0]
        error.msg += ". Try: {} -m pip install {}".format(sys.executable, wanted)
        raise
