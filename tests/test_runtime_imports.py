"""Imports with the garbage collector paused leave it as it was."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.runtime.imports import import_at_once


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    gc.unfreeze()  # what pytest has frozen
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that makes much, and says whether the collector runs meanwhile."""
    (tmp_path / "many_objects.py").write_text("import gc\nmade = [[] for _ in range(5000)]\nis_on = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "many_objects", raising=False)
    return "many_objects"


def test_nothing_is_looked_through_meanwhile_nor_soon_after(module: str) -> None:
    begun: list[int] = []

    def note(phase: str, facts: dict[str, int]) -> None:
        begun.append(facts["generation"])

    gc.callbacks.append(note)
    try:
        found = import_at_once(module)
        assert (found.is_on, begun) == (False, [])
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()


def test_a_collector_that_somebody_has_turned_off_stays_off(module: str) -> None:
    gc.disable()
    import_at_once(module)
    assert not gc.isenabled()


def test_what_somebody_has_frozen_stays_frozen(module: str) -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    import_at_once(module)
    assert 0 < before <= gc.get_freeze_count() + 100  # but for what has gone meanwhile


def test_it_runs_again_after_an_import_that_fails() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_at_once("no_such_module_of_anybody")
    assert gc.isenabled()


def test_what_is_there_already_is_not_made_to_stay(module: str) -> None:
    class Node:
        pass

    import_at_once(module)
    gc.disable()
    gc.collect()
    garbage = Node()
    garbage.itself = garbage  # type: ignore[attr-defined]
    went = weakref.ref(garbage)
    del garbage
    import_at_once(module)
    gc.collect(0)
    assert went() is None
