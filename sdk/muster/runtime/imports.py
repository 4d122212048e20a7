"""Imports of many modules at once, undisturbed by the garbage collector."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType


def import_at_once(name: str) -> ModuleType:
    """Import a module, and what it imports, with the garbage collector paused.

    It would look through the new modules again and again, which takes a tenth of a first run's start, though all stay.
    Only the first import is like that: what has come into being before a later one may be garbage, and is collected.
    """
    if name in sys.modules:
        return import_module(name)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if not gc.get_freeze_count():  # else these are somebody's own, which must stay frozen
            gc.freeze()
            gc.unfreeze()  # all that is young is among the oldest now, and is not looked through soon
        if was_enabled:
            gc.enable()
