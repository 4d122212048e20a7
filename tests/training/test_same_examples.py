"""Ranks that read the same examples are warned of; those that have shares of their own are not."""

from __future__ import annotations

from pathlib import Path

import muster
import pytest

BEGINNING = """
import keras, numpy as np, tensorflow as tf
from muster.training import communication, horovod, partition, report
from muster.training.keras import DistributedOptimizer, broadcast_variables, callbacks

horovod.init()
rng = np.random.default_rng(0)
x, y = rng.random((64, 4), np.float32), rng.random((64, 1), np.float32)
batches = [(x[first : first + 8], y[first : first + 8]) for first in range(0, 64, 8)]
shares = list(partition.batches(x, y, batch_size=8))

def built(compression=None):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    return model, DistributedOptimizer(keras.optimizers.SGD(0.1), compression=compression)
"""
FIT = """
def train(x, y, compression=None, **options):
    model, optimizer = built(compression)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    model.fit(x, y, epochs=1, callbacks=callbacks(), verbose=0, **options)

train(*(partition.array(part, uneven="trim") for part in (x, y)), batch_size=8)
train(x, y, communication.WarmStart(None, 64, 8), batch_size=8, shuffle=False)  # alike, as it has to be
report(shared=1)
report(shared=2)
train(x, y, batch_size=8, shuffle=False)
"""
LOOP = """
def train(batches, compression=None, compiled=tf.function):
    model, optimizer = built(compression)
    broadcast_variables(model, optimizer)

    @compiled
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    for x, y in batches:
        step(x, y)

train(shares)
train(shares, communication.TopK(0.5))
train(shares, compiled=lambda step: step)
train([(x, 0 * y) for x, y in batches])  # nothing to learn, and so no gradient: that tells nothing
train(batches[:4] + shares, communication.WarmStart(None, 32, 8))
report(shared=1)
report(shared=2)
train({batches})
"""
NO_OPTIMIZER = """
def train(batches):
    weights, scheme = tf.Variable(tf.zeros((4, 1))), communication.Dense()
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights - y) ** 2)
        scheme.step([tape.gradient(loss, weights)], [weights], lambda means: weights.assign_sub(0.1 * means[0]))

train(shares)
report(shared=1)
report(shared=2)
train(batches)
"""
TRAININGS = {
    "model.fit": FIT,
    "a traced loop": LOOP.format(batches="batches"),
    "an eager loop": LOOP.format(batches="batches, compiled=lambda step: step"),
    "local aggregation": LOOP.format(batches="batches, communication.LocalAggregation(communication.TopK(0.5), 2)"),
    "averaged models": LOOP.format(batches="batches, communication.ModelAveraging(4)"),
    "no optimizer": NO_OPTIMIZER,
}


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("training", TRAININGS)
def test_ranks_that_read_the_same_examples_are_warned_of(
    training: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(BEGINNING + TRAININGS[training])
    cluster = muster.run_cluster(2, strategy="horovod", worker_script="train.py", run_timeout=120).cluster
    events = list(muster.open_run(cluster.run_id).events())
    told = [event.kind for event in events if event.kind == "note" or "shared" in event.data.get("metrics", {})]
    assert told.count("note") == 1
    assert told[0] == "progress"
    (note,) = [event.data["text"] for event in events if event.kind == "note"]
    assert "reads the same examples as all other ranks" in note
