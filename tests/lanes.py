"""Hooks of pytest that say which tests may run at the same time, in several processes.

Most tests mainly wait, so that several can share a core. A test that is marked ``alone`` measures a time, or looks at
the whole machine: no other runs beside it. These come first, one after the other in one process, so that the others
wait for them only once. All tests of a group, such as a file, run in one process, so that they share its fixtures.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# The locks are on files that exist anyway, so that no lock file is left; a process holds them by its own open files.
MACHINE = Path(__file__).open("rb")  # noqa: SIM115 - open as long as the process lives
STAYS_ALONE = pytest.StashKey[bool]()  # whether the test before has left the machine to the next one
TURN = Path(__file__).with_name("conftest.py").open("rb")  # noqa: SIM115
# Else a child that a test has forked would hold the locks of a tests' process that was ended, and stop all others.
os.register_at_fork(after_in_child=MACHINE.close)
os.register_at_fork(after_in_child=TURN.close)
# The longest tests come first, so that short ones fill the gaps at the end.
FIRST = ("tests/notebooks/", "tests/browser/", "tests/test_demo.py", "tests/test_benchmarks.py", "tests/faults/")
WITH_TESTS_ALONE = (
    "tests/agent/test_agent.py",
    "tests/agent/test_sshd.py",
    "tests/browser/test_notebooks.py",
    "tests/cluster/test_run_cluster.py",
    "tests/dashboard/test_kernel.py",
    "tests/faults/test_interrupts.py",
    "tests/faults/test_kernel.py",
    "tests/faults/test_real_training.py",
    "tests/platforms/test_claims.py",
    "tests/pools/test_attacked_run.py",
    "tests/pools/test_hostile_clients.py",
    "tests/serve/test_hostile_clients.py",
    "tests/training/test_network.py",
    "tests/workbench/test_faults.py",
)
# Files of the same group run in one process: they share an engine or a cluster. Two Podmans must not run at once: each
# chooses the names of bridges by those that it sees, but of Muster's own networks, and two would choose the same. Of
# files with containers, those of other platforms run in other processes (``group_of``).
SHARED = {
    "tests/checkup/test_doctor_anywhere.py": "containers",
    "tests/platforms/test_contract.py": "containers",
    "tests/platforms/test_detached.py": "containers",
    "tests/platforms/test_guides_there.py": "containers",
    "tests/platforms/test_pools_elsewhere.py": "containers",
    "tests/platforms/test_recovery.py": "containers",
    "tests/platforms/test_worker_image.py": "containers",
    **dict.fromkeys(WITH_TESTS_ALONE, "alone"),
    "tests/platforms/kubernetes/test_contract.py": "kubernetes",
    "tests/platforms/kubernetes/test_detached.py": "kubernetes",
    "tests/platforms/kubernetes/test_disruptions.py": "kubernetes",
    "tests/platforms/kubernetes/test_inside.py": "kubernetes",
    "tests/platforms/kubernetes/test_kubernetes.py": "kubernetes",
    "tests/platforms/kubernetes/test_many.py": "kubernetes",
    "tests/platforms/kubernetes/test_pools.py": "kubernetes",
    "tests/platforms/kubernetes/test_recovery.py": "kubernetes",
    "tests/platforms/kubernetes/test_rights.py": "kubernetes",
    "tests/platforms/kubernetes/test_strategies.py": "kubernetes",
    "tests/platforms/kubernetes/test_tunnels.py": "kubernetes",
}

OF_CONTAINERS = re.compile(r"tests/platforms/test_containers\w*\.py")
# A parameter that has a test run elsewhere; all tests of a platform share its engine.
ON_A_PLATFORM = re.compile(r"\bon (hosts|containers|slurm|kubernetes)\b")
# In a file with containers, a test of another platform: by its name or its parameter.
NOT_IN_CONTAINERS = re.compile(r"(?:\[|_on_|_of_)(?:a_)?(host|slurm|kubernetes)s?(?:_|\b)")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Run a test while others run, or, if it is marked ``alone``, while none does, until the last of several."""
    if not item.config.stash.get(STAYS_ALONE, False):
        fcntl.flock(TURN, fcntl.LOCK_EX)  # so that no test overtakes one that waits to be alone
        fcntl.flock(MACHINE, fcntl.LOCK_EX if _is_alone(item) else fcntl.LOCK_SH)
        fcntl.flock(TURN, fcntl.LOCK_UN)
    item.config.stash[STAYS_ALONE] = stays = _is_alone(item) and nextitem is not None and _is_alone(nextitem)
    try:
        return (yield)
    finally:
        if not stays:
            fcntl.flock(MACHINE, fcntl.LOCK_UN)  # even if children that were forked meanwhile have the file open


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that run alone first, and then those that take longest."""
    places = {folder: place for place, folder in enumerate(FIRST)}

    def place(item: pytest.Item) -> int:
        if _is_alone(item):
            return -1
        return next((number for folder, number in places.items() if item.nodeid.startswith(folder)), len(places))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Return a scheduler that gives whole groups to processes, in order."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


def group_of(nodeid: str) -> str:
    """Return the name of a test's group, all of which run in one process."""
    file, _, test = nodeid.partition("::")
    group = "containers" if OF_CONTAINERS.fullmatch(file) else SHARED.get(file, file)
    if platform := ON_A_PLATFORM.search(test):
        return platform[1]
    if group == "containers" and (platform := NOT_IN_CONTAINERS.search(test)):
        group = "hosts" if platform[1] == "host" else platform[1]
    return group


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None
