"""The network benchmarks' use of measurements; measuring itself is tried in training/test_network.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("horovod")
network_schemes = pytest.importorskip("benchmarks.network_schemes")
network_servers = pytest.importorskip("benchmarks.network_servers")

TIMES = {"dense": 1.6, "top-K 1 %": 0.1, "1-bit": 0.2}  # seconds


def schemes() -> dict[str, Any]:
    """A result of ``network_schemes``."""
    taken = {name: [{"seconds": time, "bytes": 1e6, "counted": 1.05e6}] * 3 for name, time in TIMES.items()}
    learned = {name: [{"accuracy": 0.97 - index / 1000}] * 3 for index, name in enumerate(TIMES)}
    figures = [network_schemes.step("100 Mbit/s", name, taken) for name in TIMES]
    figures += [network_schemes.counted(name, taken[name]) for name in TIMES]
    figures += [figure for name in TIMES for figure in network_schemes.accuracy(name, learned)]
    return {"benchmark": "network_schemes", "figures": [figure.to_dict() for figure in figures]}


def servers() -> dict[str, Any]:
    """A result of ``network_servers``."""
    rates = {"ring allreduce": 40.0, "1 parameter server": 20.0, "2 parameter servers": 30.0}
    figures = [
        {"what": f"{count} workers, {way}", "median": rate * count, "quartiles": [rate * count] * 2}
        for count in network_servers.WORKERS
        for way, rate in rates.items()
    ]
    return {"benchmark": "network_servers", "figures": figures}


def test_what_is_promised_is_measured_against_its_target() -> None:
    targets = {figure["what"]: (figure["target"], figure["met"]) for figure in schemes()["figures"] if figure["target"]}
    assert targets == {
        "100 Mbit/s: a step, top-K 1 %": ("≤ 0.125 ×", True),
        "100 Mbit/s: a step, 1-bit": ("≤ 0.125 ×", True),
        "bytes on the wire in a step, dense": ("≤ 1.08 ×", True),
        "bytes on the wire in a step, top-K 1 %": ("≤ 1.08 ×", True),
        "bytes on the wire in a step, 1-bit": ("≤ 1.08 ×", True),
        "lost on average by top-K 1 %": ("≤ 0.3 points", True),
        "lost on average by 1-bit": ("≤ 0.3 points", True),
    }


def test_schemes_have_a_line_each() -> None:
    assert network_schemes.summary(schemes()).splitlines() == [
        "| scheme | MB a step | ms a step, 100 Mbit/s | accuracy, % |",
        "|---|---:|---:|---:|",
        "| dense | 1.05 | 1,600 | 97.0 (97.0 to 97.0) |",
        "| 1-bit | 1.05 | 200 (8 ×) | 96.8 (96.8 to 96.8) |",
        "| top-K 1 % | 1.05 | 100 (16 ×) | 96.9 (96.9 to 96.9) |",
    ]


def test_numbers_of_workers_have_a_line_each() -> None:
    assert network_servers.summary(servers()).splitlines() == [
        "| workers | ring allreduce | 1 parameter server | 2 parameter servers |",
        "|---:|---:|---:|---:|",
        "| 2 | 80 | 40 | 60 |",
        "| 3 | 120 | 60 | 90 |",
        "| 4 | 160 | 80 | 120 |",
    ]


@pytest.mark.slow
def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import network_pictures

    for draw, result in ((network_pictures.schemes, schemes()), (network_pictures.servers, servers())):
        path = tmp_path / "picture.png"
        draw({figure["what"]: figure for figure in result["figures"]}, path)
        assert path.read_bytes().startswith(b"\x89PNG")
