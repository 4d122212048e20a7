"""Tests that the benchmarks run and say what they are meant to say; never how fast anything is."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import hostile, measuring, training
from benchmarks.measuring import Figure, Target, by_turns, spread, table
from tests.support import needs_horovod

RESULT = {
    "benchmark": "import_time",
    "date": "2026-11-21",
    "machine": {
        "cores": 2,
        "memory_gb": 4.2,
        "processor": "Example",
        "system": "Linux 6.1 x86_64",
        "python": "3.11.7",
        "load": 0.25,
        "packages": {"horovod": "0.28.1"},
    },
    "figures": [Figure("starting", "s", [1, 2, 3], "bare Python", [2, 2, 2], Target(1)).to_dict()],
}


def test_spread_is_the_median_and_the_quartiles() -> None:
    assert spread([1, 2, 3, 4, 50]) == {"median": 3, "quartiles": [2, 4], "values": [1, 2, 3, 4, 50]}
    assert spread([1.23456]) == {"median": 1.235, "quartiles": [1.235, 1.235], "values": [1.235]}


def test_turns_change_their_order_from_round_to_round() -> None:
    order: list[str] = []

    def turn(name: str) -> int:
        order.append(name)
        return len(order)

    taken = by_turns(3, {name: functools.partial(turn, name) for name in "ab"})
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert taken == {"a": [1, 4, 5], "b": [2, 3, 6]}


def test_ratio_is_the_median_of_those_within_each_turn() -> None:
    figure = Figure("x", "s", [1, 20, 3], "y", [1, 10, 1]).to_dict()
    assert figure["ratio"]["values"] == [1, 2, 3]
    assert figure["ratio"]["median"] == 2
    assert figure["met"] is None


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target(2), True),
        (Target(1.9), False),
        (Target(2, at_least=True), True),
        (Target(2.1, at_least=True), False),
        (Target(5, "s"), False),
        (Target(20, "s"), True),
    ],
)
def test_targets_are_of_the_ratio_or_in_the_unit_of_the_figure(target: Target, met: bool) -> None:
    assert Figure("x", "s", [20], "y", [10], target).to_dict()["met"] is met


def test_table_has_a_line_a_figure_and_the_machine_once() -> None:
    text = table([RESULT, RESULT])
    assert "| starting | 2 s (1.5 to 2.5) | bare Python: 2 s | 1 | ≤ 1 × met |" in text.splitlines()
    assert text.count("2 cores (Example), 4.2 GB, Linux 6.1 x86_64, Python 3.11.7, horovod 0.28.1.") == 1
    assert text.endswith("began: 0.2 to 0.2.\nMeasured on 2026-11-21: import_time, import_time.")


def test_the_page_shows_the_last_full_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "KEPT", tmp_path / "results.json")
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    (tmp_path / "import_time.json").write_text(json.dumps(RESULT))
    page = tmp_path / "figures.md"
    page.write_text("before\n\n<!-- figures -->\nold\n<!-- /figures -->\n\nafter\n")
    assert command.update_figures(page) == 0
    assert page.read_text() == f"before\n\n<!-- figures -->\n{table([RESULT])}\n<!-- /figures -->\n\nafter\n"
    (kept,) = json.loads((tmp_path / "results.json").read_text())
    assert kept["figures"][0]["quartiles"] == [1.5, 2.5]
    assert "values" not in (tmp_path / "results.json").read_text()
    assert command.tables([kept]) == command.tables([RESULT])


def test_a_page_without_markers_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(command, "KEPT", tmp_path / "results.json")
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    (tmp_path / "import_time.json").write_text(json.dumps(RESULT))
    (tmp_path / "figures.md").write_text("text")
    assert command.update_figures(tmp_path / "figures.md") == 1
    assert (tmp_path / "figures.md").read_text() == "text"
    assert "<!-- figures -->" in capsys.readouterr().err


@needs_horovod
def test_the_page_and_the_kept_results_say_the_same() -> None:
    text = command.FIGURES.read_text(encoding="utf-8") if command.FIGURES.exists() else ""
    if "<!-- figures -->\n|" not in text:
        pytest.skip("there is no table on the page")
    for name, content in command.tables(json.loads(measuring.KEPT.read_text(encoding="utf-8"))).items():
        assert command.between_markers(text, name, content) == text


def test_the_command_runs_keeps_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "import_time", "--quick"])
    assert command.main() == 0
    assert "`import muster`" in capsys.readouterr().out
    kept = json.loads((tmp_path / "results" / "import_time-quick.json").read_text())
    assert kept["quick"] is True
    assert kept["machine"]["cores"] >= 1
    assert len(kept["figures"]) == 2


def test_an_unknown_benchmark_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "speed"])
    with pytest.raises(SystemExit):
        command.main()
    assert "there is no benchmark speed" in capsys.readouterr().err


def test_first_step_compares_cold_and_warm_with_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    # Training itself would take most of a minute.
    taken = {"horovodrun": 7.0, "agents": 4.0}
    monkeypatch.setattr(training, "by_muster", lambda launcher="horovodrun": {"seconds": taken[launcher], "end": 1.0})
    monkeypatch.setattr(training, "by_horovodrun", lambda hosts, *options: {"seconds": 10.0, "end": 2.0})
    figures = quick_figures("first_step")
    assert [figure["ratio"]["median"] for figure in figures] == [0.7, 0.4, 0.7, 0.5]
    assert [figure["target"] for figure in figures] == ["≤ 1 ×", "≤ 0.6 ×", None, None]


QUICK = {
    "serve_ready": [],
    "kubernetes_load": ["≤ 0.5 1/s"],
    "thousand_agents": ["≤ 10 %"],
    "relayed_agents": ["≤ 10 %", "≤ 1 s"],
    "hostile": [],
}  # with their targets; CI runs others


@pytest.fixture(scope="module")
def quick_runs() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """All at once, as nobody looks at their figures; each leaves helpers of what it compares with, until it ends."""
    with contextlib.ExitStack() as stack:
        begun = {}
        for name in QUICK:
            (measuring.RESULTS / f"{name}-quick.json").unlink(missing_ok=True)
            command = [sys.executable, "-m", "benchmarks", name, "--quick"]
            begun[name] = stack.enter_context(subprocess.Popen(command, cwd=measuring.FOLDER.parent))
        yield begun


@pytest.mark.slow
@pytest.mark.parametrize(("name", "targets"), QUICK.items())
def test_quick_modes_run(name: str, targets: list[str], quick_runs: dict[str, subprocess.Popen[bytes]]) -> None:
    assert quick_runs[name].wait() == 0
    figures = json.loads((measuring.RESULTS / f"{name}-quick.json").read_text())["figures"]
    assert [figure["target"] for figure in figures if figure["target"]] == targets
    for figure in figures:
        measured = [*figure["values"], *(figure["floor"] or {"values": []})["values"]]
        assert all(math.isfinite(value) and value > 0 for value in measured), figure


def test_figures_of_attacks_stand_side_by_side() -> None:
    figures = [
        Figure(f"session|{attack}|{key}", unit, [value], "before", [2 * value]).to_dict()
        for attack, value in (("nobody", 40.0), ("drip", 0.0))
        for key, unit in hostile.UNITS["session"].items()
    ]
    text = hostile.summary({"figures": figures})
    assert "| the session, beside | memory, MB | descriptors |" in text
    assert "| nobody | 80 → 40 |" in text
    assert "| drip | 0 → 0 |" in text
    assert "Commit before → this one" in text
    assert "Commit" not in hostile.summary({"figures": [{**figure, "floor": None} for figure in figures]})


def quick_figures(name: str) -> list[dict[str, Any]]:
    """Return the measurements of a benchmark's quick mode, as plain data."""
    return [figure.to_dict() for figure in importlib.import_module(f"benchmarks.{name}").measure(quick=True)]


def test_lists_of_numbers_stay_on_a_line(tmp_path: Path) -> None:
    data = {
        "quartiles": [1.5, -2e-07, None],
        "text": "[\n1,\n2\n]",
        "words": ["a", "b"],
        "none": [],
        "many": [[1], [2]],
    }
    measuring.write_json(tmp_path / "file", data)
    text = (tmp_path / "file").read_text()
    assert json.loads(text) == data
    assert '"quartiles": [1.5, -2e-07, null],\n' in text
    assert '"words": [\n  "a",\n' in text
