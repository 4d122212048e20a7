"""Waiting for workers, and each way in which clients of the workbench have got it wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import muster
import pytest
from muster.errors import JobError, PlatformError

from tests.workbench.scripted import TIME, ScriptedWorkbench


def at_look(number: int, change: Callable[[], object]) -> Callable[[int], None]:
    """Have something change just before the listing of that number is answered."""

    def look(current: int) -> None:
        if current == number:
            change()

    return look


def ids(workers: list[dict[str, Any]]) -> list[str]:
    return [worker["id"] for worker in workers]


def test_zero_seconds_are_no_time_out(scripted: ScriptedWorkbench) -> None:
    worker = scripted.add("running")
    scripted.looks = at_look(2, lambda: worker.update(status="succeeded"))
    assert ids(muster.await_workers([worker], timeout_seconds=0)["workers"]) == [worker["id"]]


def test_every_worker_is_looked_at_whatever_the_others_do(scripted: ScriptedWorkbench) -> None:
    slow, failed, done = scripted.add("running"), scripted.add("failed"), scripted.add("succeeded")
    found = muster.await_workers([slow, failed, done], timeout_seconds=0.2)
    assert ids(found["workers"]) == [done["id"]]
    assert ids(found["failures"]) == [slow["id"], failed["id"]]
    assert "still running at the deadline" in found["failures"][0]["reason"]


def test_the_wait_ends_with_the_last_decision_and_not_at_the_deadline(scripted: ScriptedWorkbench) -> None:
    workers = [scripted.add("running") for _ in range(3)]

    def decide() -> None:
        for worker, status in zip(workers, ("succeeded", "failed", "timedout"), strict=True):
            worker["status"] = status

    scripted.looks = at_look(2, decide)
    started = time.monotonic()
    found = muster.await_workers(workers, timeout_seconds=60)
    assert time.monotonic() - started < 10
    assert ids(found["workers"]) == ["engine-0"]
    assert ids(found["failures"]) == ["engine-1", "engine-2"]


def test_a_worker_that_is_not_listed_has_failed(scripted: ScriptedWorkbench) -> None:
    worker = scripted.add("running")
    scripted.looks = at_look(2, lambda: scripted.workers.remove(worker))
    (failure,) = muster.await_workers([worker], timeout_seconds=30)["failures"]
    assert failure["id"] == worker["id"]
    assert "no worker of this session" in failure["reason"]
    assert failure["log_tail"] == ""


def test_one_of_muster_s_own_that_vanishes_says_so(scripted: ScriptedWorkbench) -> None:
    launched = muster.launch_workers(1, 1, 1, code="print()")
    scripted.looks = at_look(2, scripted.workers.clear)
    (failure,) = muster.await_workers(launched, timeout_seconds=30)["failures"]
    assert "vanished" in failure["reason"]


def test_one_that_had_only_vanished_from_a_listing_is_stopped(scripted: ScriptedWorkbench) -> None:
    muster.launch_workers(1, 1, 1, code="print()")
    (worker,) = scripted.workers
    muster.list_workers()
    scripted.workers.clear()
    muster.list_workers()
    scripted.workers.append(worker)
    muster.stop_workers()
    assert worker["status"] == "stopped"


def test_stopping_all_workers_says_which_runs_go_on_and_what_ends_them(
    scripted: ScriptedWorkbench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert muster.stop_workers() == []
    assert not capsys.readouterr().err
    monkeypatch.setattr("muster.run.cluster.running_clusters", lambda: [SimpleNamespace(run_id="a-run")])
    assert muster.stop_workers() == []
    assert capsys.readouterr().err == "Runs of run_cluster go on. What ends them: muster.open_run('a-run').stop()\n"


def test_one_that_is_listed_late_has_not_vanished(scripted: ScriptedWorkbench) -> None:
    launched = muster.launch_workers(1, 1, 1, code="print()")
    late = scripted.workers.pop()
    assert [worker["status"] for worker in muster.list_workers()] == ["scheduling"]
    scripted.looks = at_look(2, lambda: scripted.workers.append({**late, "status": "succeeded"}))
    found = muster.await_workers(launched, timeout_seconds=30)
    assert ids(found["workers"]) == ids(launched)


def test_a_refused_launch_is_a_failure_with_its_message(scripted: ScriptedWorkbench) -> None:
    done = scripted.add("succeeded")
    refused = {"message": "no more GPUs", "engineId": "session"}
    found = muster.await_workers([refused, done], timeout_seconds=5)
    assert ids(found["workers"]) == [done["id"]]
    assert [failure["reason"] for failure in found["failures"]] == ["no more GPUs"]


def test_running_without_an_address_is_not_there_yet(scripted: ScriptedWorkbench) -> None:
    worker = scripted.add("running", address="unknown")
    (failure,) = muster.await_workers([worker], wait_for_completion=False, timeout_seconds=0.1)["failures"]
    assert "address is still unknown" in failure["reason"]
    scripted.looks = at_look(scripted.count("GET") + 2, lambda: worker.update(ip_address="10.1.2.3"))
    (ready,) = muster.await_workers([worker], wait_for_completion=False, timeout_seconds=30)["workers"]
    assert ready["ip_address"] == "10.1.2.3"


def test_success_before_running_was_seen_is_a_failure_for_who_wants_to_reach_it(scripted: ScriptedWorkbench) -> None:
    worker = scripted.add("succeeded")
    assert muster.await_workers([worker])["workers"]
    (failure,) = muster.await_workers([worker], wait_for_completion=False)["failures"]
    assert "before it could be reached" in failure["reason"]


@pytest.mark.parametrize("status", ["failed", "stopped", "timedout"])
@pytest.mark.parametrize("wait_for_completion", [True, False])
def test_bad_ends_are_failures_either_way(scripted: ScriptedWorkbench, status: str, wait_for_completion: bool) -> None:
    worker = scripted.add(status, finished_at=TIME)
    found = muster.await_workers([worker["id"]], wait_for_completion)
    assert found["workers"] == []
    assert found["failures"][0]["status"] == status
    assert found["failures"][0]["reason"]


def test_the_shapes_are_the_workbench_s(scripted: ScriptedWorkbench) -> None:
    worker = scripted.add("succeeded", finished_at=TIME)
    (listed,) = muster.list_workers()
    assert set(listed) == set(worker)
    assert listed["created_at"] == "2026-01-02T03:04:05.678000+00:00"
    assert (listed["status"], listed["ip_address"], listed["app_url"]) == ("succeeded", "10.0.0.1", "https://app")


def test_one_listing_a_look_for_all_workers_and_ever_fewer_looks(
    scripted: ScriptedWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append, time=time.time)
    monkeypatch.setattr("muster.workbench.workers.time", clock)
    muster.await_workers([scripted.add("running") for _ in range(20)], timeout_seconds=2.25)
    assert slept == [1, 1.25]
    assert scripted.count("GET") == 3  # at once, after 1 s, and at the deadline instead of after 2.3 s


def test_what_has_an_unknown_status_is_waited_for(scripted: ScriptedWorkbench) -> None:
    worker = scripted.add("resting")
    scripted.looks = at_look(2, lambda: worker.update(status="succeeded"))
    assert muster.await_workers([worker], timeout_seconds=30)["workers"]


def test_stopping_takes_ids_dicts_lists_and_nothing(scripted: ScriptedWorkbench) -> None:
    workers = [scripted.add("running") for _ in range(5)]
    muster.stop_workers(workers[0]["id"])
    muster.stop_workers(workers[1])
    muster.stop_workers([workers[2], {"message": "was refused"}])
    assert [worker["status"] for worker in workers] == ["stopped"] * 3 + ["running"] * 2
    stopped = muster.stop_workers()
    assert ids(stopped) == ids(workers)
    assert {worker["status"] for worker in workers} == {"stopped"}
    assert scripted.count("PUT") == 5


def test_stopping_a_refused_launch_stops_nobody(scripted: ScriptedWorkbench) -> None:
    scripted.add("running")
    assert muster.stop_workers({"message": "was refused"}) == []
    assert scripted.count("PUT") == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"])
def test_a_time_out_that_is_none_is_refused(scripted: ScriptedWorkbench, timeout: Any) -> None:
    with pytest.raises(JobError, match="timeout_seconds"):
        muster.await_workers([], timeout_seconds=timeout)


def test_a_key_that_expires_meanwhile_ends_the_wait_and_says_so(scripted: ScriptedWorkbench) -> None:
    worker = scripted.add("running")

    def expire() -> None:
        scripted.key = "another"

    scripted.looks = at_look(1, expire)
    with pytest.raises(PlatformError, match="does not accept the key") as caught:
        muster.await_workers([worker], timeout_seconds=0)
    assert "the-key" not in str(caught.value)
