"""A pod is taken away: it is replaced alone, and nothing that was learnt is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import muster
import pytest

from tests.platforms.kubernetes.cluster import until
from tests.platforms.kubernetes.space import Space
from tests.platforms.recovering import recovers, servers_recover, take_away

WITH_TENSORFLOW = {"cpu": 0.6, "memory": 1.5, "timeout_seconds": 240, "run_timeout": 240}


@pytest.mark.parametrize(
    "options",
    [
        {"cpu": 0.1},
        pytest.param({"strategy": "horovod", **WITH_TENSORFLOW}, marks=[pytest.mark.elsewhere, pytest.mark.horovod]),
    ],
    ids=["processes", "horovod"],
)
def test_a_pod_whose_agent_is_told_to_end_is_replaced(space: Space, options: dict[str, Any]) -> None:
    recovers(take_away, platform="kubernetes", python=space.python, **space.options, **options)


@pytest.mark.elsewhere
def test_a_run_goes_on_without_the_pod_that_a_quota_no_longer_has_room_for(space: Space) -> None:
    def take_away_for_good(running: muster.Cluster) -> None:
        quota = {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}}
        path = f"/api/v1/namespaces/{space.name}/resourcequotas"
        space.cluster.client.create(path, quota)
        until(lambda: space.cluster.client.get(f"{path}/tight").get("status", {}).get("used"), "the quota counts")
        take_away(running)

    options = {"platform": "kubernetes", "python": space.python, "cpu": 0.1, **space.options}
    recovers(take_away_for_good, is_left_alone=True, min_workers=1, **options)


@pytest.mark.elsewhere
def test_all_start_again_without_a_server_whose_agent_is_told_to_end(space: Space, tmp_path: Path) -> None:
    """Chief and server write the checkpoint's parts to a volume that all pods have."""
    if not space.cluster.is_own:
        pytest.skip("somebody else's nodes share no folder with this machine")
    overlay = json.loads(Path(space.options["overlay"]).read_text())
    kept = tmp_path / "kept"
    kept.mkdir()
    kept.chmod(0o777)  # pods are not root
    overlay["spec"]["volumes"].append({"name": "kept", "hostPath": {"path": str(kept)}})
    overlay["spec"]["containers"][0]["volumeMounts"].append({"name": "kept", "mountPath": "/kept"})
    Path(space.options["overlay"]).write_text(json.dumps(overlay))
    servers_recover(
        lambda running: take_away(running, "ps-0"), platform="kubernetes", python=space.python,
        env={"KEPT": "/kept"}, **space.options, **WITH_TENSORFLOW,
    )  # fmt: skip
