"""More workers than this process may have connections: it asks for more room, or says so before anything starts."""

from __future__ import annotations

import resource

import pytest
from muster.errors import JobError
from muster.run.check import check
from muster.run.request import RunRequest
from muster.runtime import descriptors
from muster.testing import ScriptedPlatform


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits of this process, as far as Muster can see: soft and hard."""
    limits = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: limits.__setitem__(slice(None), new))
    monkeypatch.setattr(descriptors, "_open_now", lambda: 72)
    return limits


def test_a_limit_is_raised_once_and_only_as_far_as_needed(limits: list[int]) -> None:
    descriptors.make_room(100)
    assert limits == [1024, 4096]
    descriptors.make_room(2000)
    assert limits == [2200, 4096]
    descriptors.make_room(2000)
    descriptors.make_room(10_000)
    assert limits == [2200, 4096]


def test_no_limit_is_no_limit(limits: list[int]) -> None:
    limits[:] = [1024, resource.RLIM_INFINITY]
    descriptors.check(1_000_000)
    descriptors.make_room(2000)
    assert limits == [2200, resource.RLIM_INFINITY]
    limits[:] = [resource.RLIM_INFINITY, resource.RLIM_INFINITY]
    descriptors.make_room(2000)
    assert limits == [resource.RLIM_INFINITY, resource.RLIM_INFINITY]


def test_more_than_the_system_allows_is_refused_before_anything_starts(limits: list[int]) -> None:
    platform = ScriptedPlatform()
    with pytest.raises(JobError, match=r"5000 workers need 5200 file descriptors .* may have 4096") as caught:
        check(RunRequest(lambda: None, n_workers=5000, strategy="processes", platform=platform))
    assert "Try: fewer workers, or a higher limit before this process starts: ulimit -Hn 5200" in str(caught.value)
    assert not platform.calls


def test_fewer_workers_are_not_advised_where_none_at_all_could_be_had(limits: list[int]) -> None:
    limits[:] = [100, 100]
    with pytest.raises(JobError, match=r"Try: a higher limit") as caught:
        check(RunRequest(lambda: None, n_workers=2, strategy="processes", platform=ScriptedPlatform()))
    assert "fewer" not in str(caught.value)


def test_real_limits_are_looked_at() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors.check(10)
    descriptors.make_room(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    assert descriptors._open_now() > 3


def test_a_session_with_a_low_limit_makes_room(limits: list[int]) -> None:
    """The limit is raised before the platform starts anything, as ssh is for its check, which inherits it."""
    seen = []
    platform = ScriptedPlatform()
    platform.check = lambda: seen.append(limits[0])  # type: ignore[method-assign]
    limits[0] = 100
    check(RunRequest(lambda: None, strategy="processes", platform=platform))
    assert seen == [201]
