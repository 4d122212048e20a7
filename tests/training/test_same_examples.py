"""Ranks that read the same examples are warned of; those that have shares of their own are not."""

from __future__ import annotations

from pathlib import Path

import muster
import pytest

SCRIPT = """
import keras, numpy as np
from muster.training import horovod, partition, report
from muster.training.keras import DistributedOptimizer, callbacks

horovod.init()
rng = np.random.default_rng(0)
x, y = rng.random((64, 4), np.float32), rng.random((64, 1), np.float32)

def train(x, y, **options):
    output = keras.layers.Dense(1, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((4,)), output])
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    model.fit(x, y, epochs=1, callbacks=callbacks(), verbose=0, **options)

train(*(partition.array(part, uneven="trim") for part in (x, y)), batch_size=8)
report(shared=1)
report(shared=2)
train(x, y, batch_size=8, shuffle=False)
"""


@pytest.mark.slow
def test_ranks_that_read_the_same_examples_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    cluster = muster.run_cluster(2, strategy="horovod", worker_script="train.py", run_timeout=120).cluster
    events = list(muster.open_run(cluster.run_id).events())
    told = [event.kind for event in events if event.kind == "note" or "shared" in event.data.get("metrics", {})]
    assert told.count("note") == 1
    assert told[0] == "progress"
    (note,) = [event.data["text"] for event in events if event.kind == "note"]
    assert "reads the same examples as all other ranks" in note
