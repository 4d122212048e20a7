"""A run's journal survives whatever comes: events that JSON has no words for, and a disk that takes nothing."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster.events import Event, EventData, Note, Progress, RunRequested
from muster.events.observers import Observers
from muster.records import lookup
from muster.records.journal import MOST_WAITING, PROGRESS_PER_SECOND, Journal

from tests.agent.test_full_disk import fill
from tests.plain import Plain


class Rude:
    """Something that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def circle() -> list[Any]:
    parts: list[Any] = []
    parts.append(parts)
    return parts


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ODD = {
    "a rank that is a dict": {"rank": {"a": 1}},
    "keys that are no texts": {"rank": 0, "extra": {(1, 2): 3, None: 4}},
    "not a number": {"step": math.nan, "parts": [math.inf]},
    "a circle": {"extra": circle()},
    "too deep": {"extra": nested(100_000)},
    "too long a number": {"step": 10**5000},
    "bytes": {"extra": b"\xff"},
    "rude": {"extra": Rude()},
    "surrogates": {"text": "\udcff \ud800"},
    "metrics that are no numbers": {"metrics": {1: Rude(), "a": math.nan}},
}


ODD_DATA: dict[str, Callable[[Any], EventData]] = {  # whose fields nobody has checked
    "run_requested": lambda odd: RunRequested(job=odd),
    "progress": lambda odd: Progress(step=odd),
    "note": lambda odd: Note(text=odd),
}


def test_progress_that_nothing_follows_is_written_after_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.records.journal.PROGRESS_INTERVAL", 0.05)
    journal = Journal(tmp_path / "events.jsonl")

    async def written() -> None:
        while len(read(journal)) < 2:
            await asyncio.sleep(0.01)

    async def tell() -> None:
        keeping_up = asyncio.create_task(journal.keep_up())
        for step, when in enumerate([10.0, 10.01, 10.02]):
            journal(Event("progress", "worker-0", {"rank": 0, "step": step, "epoch": 1}, time=when))
            await asyncio.sleep(0)
        assert [event["step"] for event in read(journal)] == [0]
        await asyncio.wait_for(written(), 10)
        keeping_up.cancel()

    asyncio.run(tell())
    assert [event["step"] for event in read(journal)] == [0, 2]
    journal.close()


def test_a_session_that_has_nothing_to_write_gives_a_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.records.journal.SIGN_SECONDS", 0.05)
    journal = Journal(tmp_path / "events.jsonl")
    os.utime(journal.path, (1, 1))

    async def signed() -> None:
        keeping_up = asyncio.create_task(journal.keep_up())
        while journal.path.stat().st_mtime == 1:
            await asyncio.sleep(0.01)
        keeping_up.cancel()

    asyncio.run(asyncio.wait_for(signed(), 10))
    assert time.time() - journal.path.stat().st_mtime < 10
    journal.close()
    assert read(journal) == []


def test_events_of_one_turn_of_the_event_loop_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    written: list[bytes] = []

    def write(descriptor: int, data: bytearray) -> int:
        written.append(bytes(data))
        return len(data)

    monkeypatch.setattr("muster.records.journal.os.write", write)

    async def tell() -> None:
        for index in range(1000):
            journal(Event("process_exited", f"worker-{index}", {"rank": index, "exit_code": 0}))
        assert not written
        await asyncio.sleep(0)
        assert [data.count(b"\n") for data in written] == [1000]

    asyncio.run(tell())
    journal.close()


def test_the_first_reports_of_very_many_ranks_are_not_all_written_as_they_come(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl")

    def report(index: int, step: int, when: float) -> None:
        told = {"rank": index, "step": step, "epoch": step}
        journal(Event("progress", f"worker-{index}", told, time=when))

    for index in range(1000):
        report(index, 1, 10.0 + index / 500)
    journal(Event("note", "worker-0", {"text": "has all before it written, too"}, time=12.0))
    written = [event["step"] for event in read(journal) if event["kind"] == "progress"]
    assert PROGRESS_PER_SECOND < len(written) < 2 * PROGRESS_PER_SECOND
    report(999, 2, 12.0)
    journal.close()
    told = [(event["rank"], event["step"]) for event in read(journal) if event["kind"] == "progress"]
    assert sorted(told) == [*((rank, 1) for rank in range(1000)), (999, 2)]


def test_no_event_of_one_turn_is_lost_however_many_there_are(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl")

    async def tell() -> None:
        for index in range(20):
            journal(Event("note", f"worker-{index}", {"text": "x" * (MOST_WAITING // 8)}))

    asyncio.run(tell())
    journal.close()
    assert [event["worker"] for event in read(journal)] == [f"worker-{index}" for index in range(20)]


def test_what_is_held_back_of_a_ranks_progress_is_added_to_and_the_last_word_on_an_epoch_is_kept(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    reports: list[dict[str, Any]] = [
        {"step": 1, "steps": 2, "epoch": 1},
        {"step": 2, "epoch": 1, "metrics": {"loss": 0.5}},
        {"epoch": 1, "metrics": {"val_loss": 0.6}},
        {"step": 1, "steps": 2, "epoch": 2},
        {"step": 2, "steps": 2, "epoch": 2},
        {"metrics": {"test_loss": 0.7}},
    ]
    journal(Event("progress", "worker-0", {"rank": 1}, time=0.0))  # so that the run has lasted for long
    for index, told in enumerate(reports):
        journal(Event("progress", "worker-0", {"rank": 0, **told}, time=500 + index / 10))
    journal.close()

    keys = ("epoch", "step", "metrics")
    assert [tuple(event.get(key) for key in keys) for event in read(journal)[1:]] == [
        (1, 1, {}),
        (1, 2, {"loss": 0.5, "val_loss": 0.6}),
        (2, 1, {}),
        (2, 2, {"test_loss": 0.7}),
    ]


def read(journal: Journal) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in journal.path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ODD_DATA)
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_event_is_recorded_and_the_record_goes_on(tmp_path: Path, odd: str, kind: str) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    observers = Observers([journal])
    observers.tell(Event.of(ODD_DATA[kind](ODD[odd]), "worker-0"))
    observers.tell(Event("run_ended", data={"status": "succeeded"}))
    journal.close()
    assert [event["kind"] for event in read(journal)] == [kind, "run_ended"]
    assert read(journal)[0]["worker"] == "worker-0"


@given(
    data=st.dictionaries(
        st.text(), st.floats() | st.text() | st.binary() | st.integers() | st.lists(st.floats()), max_size=3
    )
)
def test_any_event_is_one_line_of_strict_json(data: dict[str, Any]) -> None:
    line = Event.of(RunRequested(job=data)).to_json()
    assert "\n" not in line
    line.encode()
    assert json.loads(line, parse_constant=pytest.fail)


def test_what_a_full_disk_did_not_take_is_written_when_there_is_room(
    tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(256)
    journal = Journal(disk / "events.jsonl")
    observers = Observers([journal])
    observers.tell(Event("note", data={"text": "0"}))
    fill(disk)
    for number in range(1, 101):
        observers.tell(Event("note", data={"text": f"{number} {'x' * 100}"}))
    (disk / "ballast").unlink()
    observers.tell(Event("note", data={"text": "101"}))
    assert [int(event["text"].split()[0]) for event in read(journal)] == [*range(102)]
    journal.close()
    assert [path.name for path in disk.iterdir()] == ["events.jsonl"]


def test_what_is_lost_is_said(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(4096)
    journal = Journal(disk / "events.jsonl")
    fill(disk)
    for _ in range(20):
        journal(Event("note", data={"text": "x" * (MOST_WAITING // 10)}))
    (disk / "ballast").unlink()
    journal(Event("run_phase", data={"phase": "ending"}))
    journal.close()
    kinds = [(event["kind"], event.get("text", "")[:20]) for event in read(journal)]
    kept = kinds.count(("note", "x" * 20))
    assert 5 < kept < 20
    assert kinds[-1] == ("note", f"{20 - kept} events are missing"[:20])
    assert "No space left on device" in read(journal)[-1]["text"]


def test_how_a_run_ended_is_known_although_the_disk_is_full(
    tmp_path: Path, small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk(512)
    monkeypatch.setenv("MUSTER_HOME", str(disk))
    script = tmp_path / "fills.py"
    script.write_text(
        f"""
import glob, os
os.mkdir(glob.glob({str(disk)!r} + "/runs/*")[0] + "/result.json")  # whatever room there is in the end
size = 1 << 16
with open({str(disk / "ballast")!r}, "wb", buffering=0) as file:
    while size:
        try:
            file.write(b"x" * size)
        except OSError:
            size //= 2
"""
    )
    cluster = muster.run_cluster(1, worker_script=script, strategy=Plain()).cluster
    assert cluster is not None
    assert cluster.result.status == "succeeded"
    run = lookup.open_run("last")
    assert not (run.run_dir / "result.json").is_file()
    assert run.status == "succeeded"
    assert 0 < run.seconds < 60
    assert "succeeded" in run.explain()
    assert "succeeded" in repr(run)
    assert os.listdir(run.run_dir)


def test_epochs_without_end_do_not_fill_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    for epoch in range(20_000):  # a thousand a second
        journal(Event.of(Progress(rank=0, epoch=epoch), "worker-0", 1000 + epoch / 1000))
    journal.close()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines[:100]] == [*range(100)]
    assert json.loads(lines[-1])["epoch"] == 19_999
    assert len(lines) < 1100  # some epochs have two, of which one is the last word on it


def test_a_clock_that_is_set_back_neither_holds_progress_back_nor_fills_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    for epoch in range(1000):  # ten a second, and the clock is set back by an hour in the middle
        when = 10_000 + epoch / 10 - (3600 if epoch >= 500 else 0)
        for step in range(10):
            journal(Event.of(Progress(rank=0, epoch=epoch, step=step), "worker-0", when + step / 100))
    journal.close()
    told = [event for event in read(journal) if event["kind"] == "progress"]
    assert {event["epoch"] for event in told if event["epoch"] < 300} == {*range(300)}
    assert {event["epoch"] for event in told if 500 <= event["epoch"] < 800} == {*range(500, 800)}
    assert len(told) < 2200


def test_progress_without_epochs_is_written_on_once_the_clock_is_set_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    for step in range(200):  # two a second, and the clock is set back by an hour in the middle
        journal(Event.of(Progress(rank=0, step=step), "worker-0", 10_000 + step / 2 - (3600 if step >= 100 else 0)))
    told = [event["step"] for event in read(journal) if event["kind"] == "progress"]  # while it is still open
    journal.close()
    assert len([step for step in told if step >= 100]) > 40
