"""The programs in the guides are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import muster
import pytest

DOCS = Path(__file__).parents[1] / "docs"


def program(guide: str, name: str) -> str:
    """The block of Python behind ``<!-- name -->``."""
    found = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL)
    assert found
    return found[1]


def test_a_sweep_finds_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    alive: list[int] = []
    start = muster.Cluster.start

    def counted(cluster: muster.Cluster) -> muster.Cluster:
        started = start(cluster)
        alive.append(sum(run.status == "running" for run in muster.list_runs()))
        return started

    monkeypatch.setattr(muster.Cluster, "start", counted)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(program("sweeps.md", "sweep"), names)
    assert names["best"] == {"learning_rate": 0.1, "layers": 1}
    assert names["value"] == {"loss": 1.0}
    assert len(names["results"]) == len(muster.list_runs()) == 6  # type: ignore[arg-type]
    assert max(alive) <= 2
    assert all(run.status == "succeeded" for run in muster.list_runs())


def test_the_coordinator_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(program("cluster-coordinator.md", "coordinator"))
    cluster = muster.run_cluster(2, n_ps=1, worker_script="train.py", run_timeout=120).cluster
    assert 1 < float(cluster.logs("chief-0").rpartition("weight ")[2]) < 3.5
    assert cluster.result.metrics["loss"] < 3
