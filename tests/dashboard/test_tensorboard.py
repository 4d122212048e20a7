"""The offer of TensorBoard once a run has something for it, also in a picture without buttons."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from muster.dashboard import tensorboard
from muster.dashboard.tensorboard import RunBoard, has_events, hint

from tests.event_files import write_events


def test_it_is_wanted_once_there_are_event_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = RunBoard(lambda: tmp_path).is_wanted
    assert not wanted()
    write_events(tmp_path / "tensorboard" / "train")
    assert not wanted(), "not every tick looks"

    monkeypatch.setattr(tensorboard, "CHECK_SECONDS", 0.0)
    assert wanted()


def test_the_hint_is_a_call_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hint(tmp_path) == ""
    write_events(tmp_path / "run" / "tensorboard")

    assert hint(tmp_path / "run") == f"For TensorBoard: muster.tensorboard('{tmp_path}/run/tensorboard')"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hint(tmp_path / "run") == "For TensorBoard: muster.tensorboard('~/run/tensorboard')"


def test_folders_that_come_and_go_are_no_error(tmp_path: Path) -> None:
    folder, over = tmp_path / "tensorboard", threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            (folder / "train" / "plugins").mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder / "train")

    writer = threading.Thread(target=come_and_go)
    writer.start()
    try:
        for _ in range(5000):
            assert not has_events(tmp_path)
    finally:
        over.set()
        writer.join()
