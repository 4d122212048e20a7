"""Workers that cannot dial the session: their platform carries their connections, as long as their pool lives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import muster
import pytest
from muster.errors import PlatformError
from muster.platforms.base import Platform
from muster.run.check import check
from muster.run.checked import describe_place
from muster.run.request import RunRequest

from tests.plain import Plain
from tests.platforms.relayed import Relayed, Unrelayed
from tests.support import Run, StubSession, eventually

PLATFORMS = {"relayed": Relayed}


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest, run: Run) -> Iterator[Platform]:
    made = PLATFORMS[request.param]()
    yield made
    made.close()


# -- the contract of every platform that relays -----------------------------------------------------------------------


def test_agents_dial_the_relay_and_reach_the_session(platform: Platform, run: Run) -> None:
    session = StubSession(platform.reach().listen)
    relay = platform.open_relay(session.address.host, session.address.port)
    try:
        specs = [run.spec(f"worker-{index}", session=session.address) for index in range(2)]
        addresses = relay.addresses_for(specs)
        assert (session.address.host, session.address.port) not in addresses
        platform.submit(list(map(session.dialled_at, specs, addresses)), run.id)
        assert {hello["worker"] for hello in session.wait_for("hello", count=2)} == {"worker-0", "worker-1"}
        platform.close()
    finally:
        relay.close()
        relay.close()
        session.close()


def test_what_is_said_beforehand_names_the_relay(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    request = RunRequest(script=tmp_path / "train.py", strategy="processes", platform=platform)
    assert f"through a relay of {platform.name}" in describe_place(check(request))


# -- a pool and its relay ---------------------------------------------------------------------------------------------


@pytest.fixture
def relayed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relayed]:
    monkeypatch.chdir(tmp_path)
    made = Relayed()
    yield made
    made.close()


def test_a_run_has_a_relay_of_its_own_that_ends_with_it(relayed: Relayed) -> None:
    for _ in range(2):
        cluster = muster.run_cluster(2, worker_script=lambda: 7, strategy=Plain(), memory=0.5, platform=relayed).cluster
        assert cluster.result.values == [7, 7]
    assert len(relayed.relays) == 2
    for relay in relayed.relays:
        assert relay.asked == [("worker-0", 0), ("worker-1", 0)]
        assert relay.is_closed


def test_another_address_of_the_session_needs_no_relay(relayed: Relayed) -> None:
    muster.run_cluster(
        1, worker_script=lambda: 7, strategy=Plain(), memory=0.5, platform=relayed, session_address="127.0.0.1:0"
    )
    assert relayed.relays == []


def test_a_relay_that_cannot_be_made_is_told_and_leaves_nothing(run: Run) -> None:
    platform = Unrelayed()
    with pytest.raises(PlatformError, match="permission denied") as raised:
        muster.run_cluster(1, worker_script=lambda: 7, strategy=Plain(), memory=0.5, platform=platform)
    assert raised.value.advice == "log in by hand once"
    assert platform.list() == []
    platform.close()


def test_a_relay_that_breaks_may_be_repaired_while_the_lease_lasts(relayed: Relayed, tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(
        "import pathlib, time\nprint('up', flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n"
    )
    cluster = muster.run_cluster(
        1, worker_script="wait.py", strategy=Plain(), memory=0.5, platform=relayed, wait=False
    ).cluster
    eventually(lambda: "up" in cluster.logs("worker-0"), "it runs")
    (relay,) = relayed.relays
    relay.repair()
    (tmp_path / "go").touch()
    cluster.wait()
    assert cluster.result.status == "succeeded"
    assert relay.is_closed
