"""The end of a run is in its journal, however full the disk is, and however much waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from muster.events import Event
from muster.records.journal import MOST_WAITING, Journal

from tests.agent.test_full_disk import fill


def kinds(journal: Journal) -> list[str]:
    return [json.loads(line)["kind"] for line in journal.path.read_text().splitlines()]


def test_there_is_room_for_the_last_events_on_a_full_disk(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(256)
    journal = Journal(disk / "events.jsonl")
    fill(disk)
    for number in range(50):  # more than the rest of a page that the file has already
        journal(Event("note", data={"text": f"{number} {'x' * 100}"}))
    journal(Event("run_ended", data={"status": "succeeded"}))
    journal.close()
    assert kinds(journal) == [*["note"] * 50, "run_ended"]


def test_the_end_is_kept_where_more_waits_than_may(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(4096)
    journal = Journal(disk / "events.jsonl")
    fill(disk)
    for size in (MOST_WAITING // 10, 10_000, 1000, 100, 1):
        for _ in range(110):
            journal(Event("note", data={"text": "x" * size}))
    journal(Event("run_ended", data={"status": "succeeded"}))
    (disk / "ballast").unlink()
    journal.close()
    assert "run_ended" in kinds(journal)
