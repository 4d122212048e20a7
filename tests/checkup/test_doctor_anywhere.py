"""The doctor on each platform, where runs work: it must find nothing wrong."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.checkup.probe import packages

from tests.platforms.containers_podman import Podman
from tests.platforms.hosts_network import Network

SYSTEM_PYTHON = "/usr/bin/python3"


def test_the_doctor_finds_nothing_wrong_on_any_platform_whose_runs_work(
    workers_elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('trained')\n")
    options: dict[str, Any] = {"strategy": "processes", "memory": 0.5, "timeout_seconds": 120}
    report = muster.doctor(2, worker_script="train.py", **options, **getattr(muster.run_cluster, "keywords", {}))
    assert report.is_fine, str(report)
    assert "2 workers came up" in str(report)


def findings(report: Any, kind: str) -> set[str]:
    """What a report has found of a kind."""
    return {finding.text for finding in report.of(kind)}


def test_the_doctor_says_what_differs_on_a_host(
    hosts: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same path is this session's interpreter on the one host, and the system's on the other."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('trained')\n")
    for name, python in (("h1", sys.executable), ("h2", SYSTEM_PYTHON)):
        wrapper = f'#!/bin/sh\nexec {python} "$@"\n'
        hosts.hosts[name].run(f"mkdir /root/bin && printf '{wrapper}' > /root/bin/python && chmod +x /root/bin/python")
    look = "import importlib.metadata as m, platform; print(platform.python_version(), m.version('numpy'))"
    there = subprocess.run([SYSTEM_PYTHON, "-c", look], capture_output=True, text=True).stdout.split()
    if len(there) != 2:
        pytest.skip("the system's Python has no numpy")
    try:
        report = muster.doctor(
            2, worker_script="train.py", strategy="processes", platform="hosts", hosts=["h1", "h2"],
            python="/root/bin/python", memory=0.5, cache=False,
        )  # fmt: skip
    finally:
        for name in ("h1", "h2"):
            hosts.hosts[name].run("rm -r /root/bin")
    python, numpy, tensorflow = platform.python_version(), packages()["numpy"], packages()["tensorflow"]
    said = findings(report, "versions")
    assert f"python is {python} in this session, and {there[0]} on worker-1" in said
    assert f"numpy is {numpy} in this session, and {there[1]} on worker-1" in said
    assert f"tensorflow is {tensorflow} in this session, and missing on worker-1" in said
    assert f"numpy is {numpy} on worker-0; {there[1]} on worker-1" in said
    assert f"tensorflow is {tensorflow} on worker-0; missing on worker-1" in said
    assert len(said) < 20, "not a line for each of hundreds of packages"


def test_the_doctor_says_what_differs_in_a_container(
    engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('trained')\n")
    image, other = "localhost/muster-tests-numpy", b"Metadata-Version: 1.0\nName: numpy\nVersion: 1.19.5\n"
    engine.add_layer(engine.add_python(), "numpy-1.19.5.egg-info", other, image, "ENV PYTHONPATH=/")
    report = muster.doctor(
        1, worker_script="train.py", strategy="processes", platform="containers", image=image, memory=0.5
    )
    engine.run("rmi", image)
    numpy, tensorflow = packages()["numpy"], packages()["tensorflow"]
    said = findings(report, "versions")
    assert f"numpy is {numpy} in this session, and 1.19.5 on worker-0" in said
    assert f"tensorflow is {tensorflow} in this session, and missing on worker-0" in said
