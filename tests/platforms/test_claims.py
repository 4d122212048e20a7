"""Cores and GPUs of this machine, which one worker has to itself among those of all users."""

from __future__ import annotations

import os
import resource
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.agent.claims import claim, claim_cores, claim_memory, claimed_memory, core_numbers
from muster.errors import LaunchRefused, ResourceError
from muster.job import Resources
from muster.platforms import machine
from muster.platforms.local import LocalPlatform

from tests.platforms.test_local import worker_of
from tests.support import Run, eventually, first_line, handles_of, shell

SHOW_GPUS = shell("echo $CUDA_VISIBLE_DEVICES; sleep 600")
SHOW_CORES = shell(
    f"exec {sys.executable} -c 'import os, time; print(sorted(os.sched_getaffinity(0))); time.sleep(600)'"
)
WITH_GPU = Resources(cpu=1, memory=0.5, gpu=1)
GPUS = [f"GPU-{os.getpid()}-a", f"GPU-{os.getpid()}-b"]  # names that no other test uses at the same time


@pytest.fixture
def platforms(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LocalPlatform, LocalPlatform]]:
    """Two platform objects on a machine with two GPUs."""
    monkeypatch.setattr(machine, "gpus", lambda: GPUS)
    both = LocalPlatform(), LocalPlatform()
    yield both
    for platform in both:
        platform.close()


@pytest.fixture
def cores() -> list[int]:
    """The cores of this machine; skips the test where there is one only, or where a run outside the tests has one."""
    found = machine.cores()
    if len(found) < 2:
        pytest.skip("this machine has one core")
    held = claim_cores(found, [1] * len(found))
    if not all(core.devices for core in held):
        pytest.skip("somebody trains on this machine")
    for core in held:
        core.close()
    return found


@pytest.mark.alone  # the cores are those of the whole machine
def test_cores_are_given_to_one_cluster_only(
    platforms: tuple[LocalPlatform, LocalPlatform], run: Run, cores: list[int]
) -> None:
    first, second = platforms
    workers = first.launch([run.spec(f"worker-{index}", process=SHOW_CORES) for index in range(2)])
    assert [first_line(first, worker.id) for worker in workers] == [str(cores[:2])] * 2  # they share their cores
    everything = Resources(cpu=len(cores), memory=0.5)
    (worker,) = second.launch([run.spec("worker-2", process=SHOW_CORES, resources=everything)])
    assert first_line(second, worker.id) == str(cores)  # no claim, no pinning


@pytest.mark.alone
def test_cores_that_another_user_has_are_not_taken(
    platforms: tuple[LocalPlatform, LocalPlatform],
    run: Run,
    cores: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for index, platform in enumerate(platforms):
        monkeypatch.setenv("MUSTER_HOME", str(tmp_path / f"of user {index}"))
        (worker,) = platform.launch([run.spec(f"worker-{index}", process=SHOW_CORES)])
        assert first_line(platform, worker.id) == str([cores[index]])


def test_gpus_are_exclusive(platforms: tuple[LocalPlatform, LocalPlatform], run: Run) -> None:
    first, second = platforms
    workers = first.launch([run.spec(f"worker-{i}", resources=WITH_GPU, process=SHOW_GPUS) for i in range(2)])
    assert {first_line(first, worker.id) for worker in workers} == set(GPUS)
    with pytest.raises(LaunchRefused, match="other clusters"):
        second.launch([run.spec("worker-2", resources=WITH_GPU)])
    with pytest.raises(ResourceError, match="3 GPUs; this machine has 2"):
        second.launch([run.spec(f"worker-{i}", resources=WITH_GPU) for i in range(3, 6)])
    with pytest.raises(LaunchRefused, match="worker-8 could not be started: too few GPUs are free"):
        second.submit([run.spec("worker-7"), run.spec("worker-8", resources=WITH_GPU)], "partial")
    assert second.list() == []
    eventually(lambda: not [pid for pid in run.processes() if "worker-7" in worker_of(pid)], "the first is stopped")
    first.stop(handles_of(workers[:1]))
    eventually(lambda: first.poll(handles_of(workers))[0].status.is_final, "it has stopped")
    assert second.launch([run.spec("worker-6", resources=WITH_GPU)])


def test_gpus_that_another_user_has_are_not_taken(
    platforms: tuple[LocalPlatform, LocalPlatform], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = platforms
    (worker,) = first.launch([run.spec("worker-0", resources=WITH_GPU, process=SHOW_GPUS)])
    assert first_line(first, worker.id) == GPUS[0]
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "of another user"))
    (worker,) = second.launch([run.spec("worker-1", resources=WITH_GPU, process=SHOW_GPUS)])
    assert first_line(second, worker.id) == GPUS[1]
    with pytest.raises(LaunchRefused, match="GPUs are free"):
        second.launch([run.spec("worker-2", resources=WITH_GPU)])


def test_claims_end_with_their_holders() -> None:
    first = claim(["a", "b", "c"], 2)
    assert first is not None
    assert first.devices == ["a", "b"]
    assert claim(["a", "b", "c"], 2) is None
    second = claim(["a", "b", "c"], 1)
    assert second is not None
    assert second.devices == ["c"]
    first.close()
    third = claim_cores([10005, 10006], [1, 1])
    assert [core_numbers(held) for held in third] == [[10005], [10006]]
    assert [held.devices for held in claim_cores([10005, 10006, 10007], [1, 1])] == [[], []]
    assert [held.devices for held in claim_cores([10007], [0.5])] == [[]]
    for held in (second, *third):
        held.close()


def test_reads_what_nvidia_smi_says() -> None:
    listing = textwrap.dedent(
        """\
        GPU 0: NVIDIA H200 (UUID: GPU-1f0b2e4c-0000-1111-2222-333344445555)
          MIG 1g.18gb     Device  0: (UUID: MIG-aaaa-bbbb)
          MIG 1g.18gb     Device  1: (UUID: MIG-cccc-dddd)
        GPU 1: NVIDIA H200 (UUID: GPU-2f0b2e4c-0000-1111-2222-333344445555)
        """
    )
    expected = ["MIG-aaaa-bbbb", "MIG-cccc-dddd", "GPU-2f0b2e4c-0000-1111-2222-333344445555"]
    assert machine.parse_gpus(listing) == expected
    assert machine.parse_gpus("No devices found.\n") == []


def test_nothing_stays_claimed_where_no_descriptor_is_left_for_the_rest() -> None:
    highest = max(map(int, os.listdir("/proc/self/fd")))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.open(os.devnull, os.O_RDONLY)]
    while free[-1] <= highest + 1:
        free.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, before[1]))
    try:
        os.close(free.pop())
        with pytest.raises(OSError, match="Too many open files"):
            claim_cores([10011, 10012], [1, 1])
        with pytest.raises(OSError, match="Too many open files"):
            claim(["d", "e"], 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in free:
            os.close(descriptor)
    again = [*claim_cores([10011, 10012], [1, 1]), claim(["d", "e"], 2)]
    assert [held and held.devices for held in again] == [["core-10011"], ["core-10012"], ["d", "e"]]
    for held in again:
        assert held is not None
        held.close()


def test_memory_is_claimed_for_others_to_see_and_may_be_claimed_twice() -> None:
    amount = 10**14 + os.getpid()  # which no other test claims at the same time
    first, second = claim_memory(amount), claim_memory(amount)
    assert claimed_memory() >= 2 * amount
    first.close()
    assert amount <= claimed_memory() < 2 * amount
    second.close()
    assert claimed_memory() < amount
