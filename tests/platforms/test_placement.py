"""Placement of workers on hosts, and on a pool's own workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from muster.errors import LaunchRefused, PlatformError
from muster.job import Status, WorkerSpec
from muster.platforms.hosts.routes import PoolRelay, Routes
from muster.platforms.placement import Key, Placement, key_of

from tests.support import Run


class Scene:
    """Hosts with slots, and workers that are launched on them and end."""

    def __init__(self, **slots: int) -> None:
        self.statuses: dict[Key, Status] = {}
        self.asked = 0
        self.down: set[str] = set()
        self.placement = Placement(
            slots,
            self._status_of,
            lambda name: LaunchRefused(f"no slot for {name}"),
            lambda host: host not in self.down,
        )

    def _status_of(self, worker: Key) -> Status | None:
        self.asked += 1
        return self.statuses.get(worker)

    def launch(self, specs: list[WorkerSpec]) -> list[str]:
        hosts = self.placement.place(specs)
        self.statuses.update(dict.fromkeys(map(key_of, specs), Status.RUNNING))
        return hosts

    def end(self, spec: WorkerSpec) -> None:
        self.statuses[key_of(spec)] = Status.SUCCEEDED


@pytest.fixture
def specs(run: Run) -> list[WorkerSpec]:
    return [run.spec(f"worker-{number}") for number in range(4)]


def test_the_first_host_with_a_free_slot_is_taken_and_kept(specs: list[WorkerSpec]) -> None:
    scene = Scene(a=2, b=1)
    assert scene.launch(specs[:3]) == ["a", "a", "b"]
    assert scene.placement.place([specs[2], specs[0]]) == ["b", "a"]
    with pytest.raises(LaunchRefused, match="no slot for worker-3"):
        scene.placement.place(specs)
    scene.end(specs[1])
    assert scene.launch(specs[3:]) == ["a"]


def test_hosts_that_are_not_up_come_last(specs: list[WorkerSpec]) -> None:
    scene = Scene(a=1, b=1, c=1)
    scene.down = {"a"}
    assert scene.launch(specs[:1]) == ["b"]
    assert scene.launch(specs[1:3]) == ["c", "a"]
    scene.down = {"b"}
    assert scene.placement.place(specs[:1]) == ["b"]  # where it is already


def test_workers_that_find_no_slot_take_none(specs: list[WorkerSpec]) -> None:
    scene = Scene(a=2)
    others = [replace(spec, run_id="another") for spec in specs[:2]]
    scene.launch(specs[:1])
    with pytest.raises(LaunchRefused, match="no slot for worker-1"):
        scene.placement.place(others)
    scene.end(specs[0])
    assert scene.placement.place(others) == ["a", "a"]


def test_a_worker_that_comes_back_has_its_slot_beside_one_that_is_new(specs: list[WorkerSpec]) -> None:
    scene = Scene(a=1, b=1)
    scene.launch(specs[:1])
    scene.end(specs[0])
    assert scene.placement.place([specs[1], replace(specs[0], generation=1)]) == ["b", "a"]


def test_a_worker_that_comes_back_after_its_slot_was_taken_gets_another_one(specs: list[WorkerSpec]) -> None:
    scene = Scene(a=1, b=1)
    scene.launch(specs[:1])
    scene.end(specs[0])
    assert scene.launch([replace(specs[1], run_id="another")]) == ["a"]
    again = replace(specs[0], generation=1)
    assert scene.launch([again]) == ["b"]
    scene.end(again)
    assert scene.launch([specs[2]]) == ["b"]
    with pytest.raises(LaunchRefused, match="no slot for worker-0"):
        scene.placement.place([replace(specs[0], generation=2)])


def test_a_slot_is_held_between_placing_and_launching_a_worker_that_comes_back(specs: list[WorkerSpec]) -> None:
    scene = Scene(a=1)
    scene.launch(specs[:1])
    scene.end(specs[0])
    again = replace(specs[0], generation=1)
    scene.placement.place([again])
    with pytest.raises(LaunchRefused, match="no slot for worker-1"):
        scene.placement.place(specs[1:2])
    assert scene.launch([again]) == ["a"]


def test_a_lost_worker_hands_its_slot_on_to_the_one_that_replaces_it(specs: list[WorkerSpec]) -> None:
    """A worker on a silent host may have ended without anybody knowing."""
    scene = Scene(a=1)
    scene.launch(specs[:1])
    again = replace(specs[0], generation=1)
    scene.placement.place([again])
    scene.placement.take_back([again])
    with pytest.raises(LaunchRefused):
        scene.placement.place(specs[1:2])
    again = replace(specs[0], generation=2)
    assert scene.launch([again]) == ["a"]
    scene.end(specs[0])
    with pytest.raises(LaunchRefused):
        scene.placement.place(specs[1:2])
    scene.end(again)
    assert scene.placement.place(specs[1:2]) == ["a"]


def test_only_slots_of_workers_that_were_never_launched_are_taken_back(specs: list[WorkerSpec]) -> None:
    scene = Scene(a=1, b=1)
    scene.launch(specs[:1])
    scene.placement.place(specs[:2])
    scene.placement.take_back(specs[:2])
    assert scene.placement.place([specs[0], specs[2]]) == ["a", "b"]


def test_workers_with_no_way_to_the_session_keep_no_slots(specs: list[WorkerSpec]) -> None:
    class Blocked(Routes):
        def __init__(self) -> None:
            pass

        def route(self, host: str, session: tuple[str, int], port: int = 0) -> tuple[str, int]:
            raise PlatformError(f"{host} cannot reach the session")

    scene = Scene(a=2)
    with pytest.raises(PlatformError, match="a cannot reach"):
        PoolRelay(Blocked(), ("127.0.0.1", 1), scene.placement).addresses_for(specs[:2])
    assert scene.launch(specs[2:]) == ["a", "a"]


def many(spec: WorkerSpec, run_id: str) -> Iterator[WorkerSpec]:
    return (replace(spec, run_id=run_id, name=f"worker-{number}") for number in range(3000))


def test_workers_are_not_looked_at_once_for_each_other_one(run: Run) -> None:
    """Many hosts and many workers cost as much each as few do, also where a relay says what they dial."""

    class Open(Routes):
        def __init__(self) -> None:
            pass

        def route(self, host: str, session: tuple[str, int], port: int = 0) -> tuple[str, int]:
            return session

    scene = Scene(**{f"h{number}": 1 for number in range(3000)})
    first, second = (list(many(run.spec(), name)) for name in ("first", "second"))
    scene.launch(first)
    for spec in first:
        scene.end(spec)
    PoolRelay(Open(), ("127.0.0.1", 1), scene.placement).addresses_for(second)
    scene.launch(second)
    assert scene.asked == 3000
