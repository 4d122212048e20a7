"""Placement of workers on hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from muster.errors import LaunchRefused
from muster.platforms.placement import Key, Placement

from tests.support import Run


def test_the_first_host_with_a_free_slot_is_taken_and_kept(run: Run) -> None:
    ended: set[Key] = set()
    placement = Placement({"a": 2, "b": 1}, ended.__contains__)
    specs = [run.spec(f"worker-{number}") for number in range(4)]
    assert placement.place(specs[:3]) == ["a", "a", "b"]
    assert placement.place([specs[2], specs[0]]) == ["b", "a"]
    with pytest.raises(LaunchRefused, match="no slot for worker-3: all 3"):
        placement.place(specs)
    ended.add((specs[1].run_id, "worker-1"))
    assert placement.host_of(specs[3]) == "a"
    placement.free(specs[2])
    assert placement.host_of(replace(specs[0], name="another")) == "b"


def test_workers_are_not_looked_at_once_for_each_other_one(run: Run) -> None:
    """Many hosts and many workers cost as much each as few do."""
    asked = 0

    def has_ended(worker: Key) -> bool:
        nonlocal asked
        asked += 1
        return True

    placement = Placement({f"h{number}": 1 for number in range(3000)}, has_ended)
    spec = run.spec()
    first = [replace(spec, run_id="first", name=f"worker-{number}") for number in range(3000)]
    second = [replace(known, run_id="second") for known in first]
    assert placement.place(first) == placement.place(second)
    assert asked == 3000
