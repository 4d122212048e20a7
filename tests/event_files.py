"""Event files as TensorBoard reads them, written without TensorFlow, which takes seconds to import."""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


def write_events(folder: str | Path) -> None:
    """Write one loss."""
    Path(folder).mkdir(parents=True)
    loss = Summary(value=[Summary.Value(tag="loss", simple_value=0.5)])
    with (Path(folder) / "events.out.tfevents.1").open("wb") as file:
        for event in (Event(wall_time=1.0, file_version="brain.Event:2"), Event(wall_time=1.0, step=1, summary=loss)):
            RecordWriter(file).write(event.SerializeToString())
