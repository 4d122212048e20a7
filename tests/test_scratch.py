"""Scratch folders: which of them a session removes that others have left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from muster.records import sessions
from muster.records.scratch import OWNER, sweep

GONE = {"pid": 1 << 22, "started": 1}  # no process has that id


@pytest.mark.parametrize(
    ("changes", "is_kept"),
    [
        ({}, True),
        (GONE, False),
        ({**GONE, "boot": "another"}, False),
        ({**GONE, "pids": 1}, True),  # of a container that shares this folder: its session may well be alive
        ({"pids": 1, "boot": "another"}, False),
    ],
)
def test_only_what_is_certainly_left_is_removed(tmp_path: Path, changes: dict[str, Any], is_kept: bool) -> None:
    folder = tmp_path / "muster-a"
    folder.mkdir()
    (folder / OWNER).write_text(json.dumps({**sessions.this_session(), **changes}))
    sweep(tmp_path)
    assert folder.exists() is is_kept
