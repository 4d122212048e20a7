"""Imports of packages that not every installation of Muster has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from muster.errors import ExtraMissing


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import packages of an optional part of Muster.

    Args:
        name: the extra of setup.cfg that brings them, such as ``serve``.

    Raises:
        ExtraMissing: they are not installed; the advice is the command that installs them.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"{(error.name or 'something').partition('.')[0]} (a Python package) is not installed, which this needs.",
            advice=f"pip install 'muster[{name}]'",
        ) from error
