"""The doctor on each platform, where runs work: it must find nothing wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import muster
import pytest


def test_the_doctor_finds_nothing_wrong_on_any_platform_whose_runs_work(
    workers_elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('trained')\n")
    options: dict[str, Any] = {"strategy": "processes", "memory": 0.5, "timeout_seconds": 120}
    report = muster.doctor(2, worker_script="train.py", **options, **getattr(muster.run_cluster, "keywords", {}))
    assert report.is_fine, str(report)
    assert "2 workers came up" in str(report)
