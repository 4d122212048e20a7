"""Program that test_checkpoint.py reads: trainings on real Horovod ranks that are saved, killed and resumed.

    python checkpoint_program.py FOLDER

Each scenario has a folder of its own; ranks leave what they found out in NAME-of-RANK.json there.
"""

import functools
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from muster.training import communication, horovod, partition, progress
from muster.training import keras as distributed
from muster.training.checkpoint import Checkpoint, CheckpointError, Position, latest

from tests.training.forked_ranks import Ranks

EPOCHS = 3
EXAMPLES, BATCH_SIZE = 45, 4  # five batches of each of two ranks, and one example too many
KILLS = 8
SCHEMES: dict[str, Callable[[], Any]] = {
    "top-k": lambda: communication.Reducer(communication.TopK(0.3), minimum_size=1),
    "one-bit": lambda: communication.Reducer(communication.OneBit(), minimum_size=1),
    "partial": lambda: communication.PartialSynchronisation(3),
}

random.seed(0)
features = np.random.RandomState(0).normal(size=(EXAMPLES, 8)).astype("float32")
labels = np.random.RandomState(1).randint(0, 3, EXAMPLES)


class Residuals:
    """State that each rank has for itself, and a number on which all agree."""

    def __init__(self) -> None:
        self.values = np.zeros(3, np.float32)
        self.rounds = 0

    def add(self) -> None:
        self.values += np.array([0.1, 1, 10], np.float32) * (1 + horovod.rank()) * np.float32(random.random())
        self.rounds += 1

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values.copy(), "rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values, self.rounds = state["values"].copy(), state["rounds"]


def network(scheme: str) -> keras.Model:
    """Make a model with dropout, whose seeds differ on every rank."""
    keras.utils.set_random_seed(horovod.rank())
    tf.random.get_global_generator().reset_from_seed(horovod.rank())
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    optimizer = distributed.DistributedOptimizer(keras.optimizers.Adam(0.01), compression=SCHEMES[scheme]())
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    return model


def digest(model: keras.Model) -> str:
    """SHA-256 over all bytes of all variables, those of the optimizer and the seeds among them."""
    variables = [*model.variables, *model.optimizer.variables]
    return hashlib.sha256(b"".join(keras.ops.convert_to_numpy(v).tobytes() for v in variables)).hexdigest()


def note(folder: Path, name: str, **found: Any) -> None:
    (folder / f"{name}-of-{horovod.rank()}.json").write_text(json.dumps(found))


def die_at(total: int) -> None:
    """Kill the last rank; the others lose it in the middle of a collective."""
    if total == 11 and horovod.rank() == horovod.size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)


def fit(folder: Path, name: str, checkpoints: str, dies: bool = False) -> None:
    """`model.fit` from wherever it was."""
    reports: list[list[int]] = []

    def take(message: dict[str, Any], seconds: float) -> bool:
        reports.append([message[what] for what in ("epoch", "step", "examples")])
        return True

    progress._reporter = progress.Reporter(take)
    os.environ[progress.ADDRESS_VARIABLE] = "this list"
    model, residuals = network("one-bit"), Residuals()
    checkpoint = Checkpoint(folder / checkpoints, model, own={"residuals": residuals}, keep=2)
    start = checkpoint.restore()
    data = partition.epochs(features, labels, batch_size=BATCH_SIZE, seed=7, first=start.epoch)
    steps: list[int] = []

    def at_step(batch: int, logs: Any) -> None:
        steps.append(batch)
        if len(steps) > start.step:
            residuals.add()
        if dies:
            die_at(len(steps))

    saving = distributed.SaveCheckpoints(checkpoint, every=4)
    history = model.fit(
        data,
        steps_per_epoch=partition.steps(EXAMPLES, BATCH_SIZE),
        initial_epoch=start.epoch,
        epochs=EPOCHS,
        callbacks=[
            *distributed.callbacks(batch_size=BATCH_SIZE),
            keras.callbacks.LambdaCallback(on_train_batch_end=at_step),
            saving,
        ],
        verbose=0,
    ).history
    progress._reporter.flush()
    note(
        folder, name,
        start=start, steps=steps, digest=digest(model), history=history, residuals=residuals.values.tolist(),
        random=[random.random(), np.random.random(), float(tf.random.get_global_generator().uniform([]))],
        kept=sorted(os.listdir(folder / checkpoints)), reports=reports,
    )  # fmt: skip


def loop(folder: Path, name: str, checkpoints: str, dies: bool = False, scheme: str = "top-k") -> None:
    """A loop of one's own, which saves at every second step."""
    model, residuals = network(scheme), Residuals()
    distributed.broadcast_variables(model, model.optimizer)
    checkpoint = Checkpoint(folder / checkpoints, model, own={"residuals": residuals}, keep=1)
    start = position = checkpoint.restore()
    scheme_state = {
        name: np.asarray(value).tolist() for name, value in checkpoint.own["communication"].state_dict().items()
    }
    loaded = {"residuals": residuals.values.tolist(), "communication": scheme_state}
    model.optimizer.communication.build(model.trainable_variables)  # not within the step, which would be traced twice
    loss = keras.losses.SparseCategoricalCrossentropy()
    taken = []

    def train_on(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        model.optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)

    step = tf.function(train_on, reduce_retracing=True)
    for epoch in range(position.epoch, EPOCHS):
        numbers = np.arange(EXAMPLES)
        shuffled = {"batch_size": BATCH_SIZE, "epoch": epoch, "seed": 7, "first": position.step}
        for x, y, chosen in partition.batches(features, labels, numbers, **shuffled):
            step(tf.constant(x), tf.constant(y))
            residuals.add()
            taken.append([epoch, chosen.tolist()])
            position = position.after_step()
            if dies:
                die_at(position.total)
            if position.total % 2 == 0:
                checkpoint.save(position)
        position = position.after_epoch()
    trained = hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in model.trainable_weights)).hexdigest()
    note(
        folder, name, start=start, digest=digest(model), trained=trained, residuals=residuals.values.tolist(),
        loaded=loaded, taken=taken, kept=sorted(os.listdir(folder / checkpoints)),
    )  # fmt: skip


def save_for_ever(folder: Path) -> None:
    """Checkpoints in which everything is the number of the step, one after the other."""
    model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300)])
    residuals = Residuals()
    checkpoint = Checkpoint(folder, model, own={"residuals": residuals}, keep=2)
    position = checkpoint.restore()
    while True:
        state = [*model.weights]
        assert all((weight.numpy() == position.total).all() for weight in state if position.total)
        assert residuals.rounds == position.total, (residuals.rounds, position)
        position = position.after_step()
        for weight in state:
            weight.assign(tf.fill(weight.shape, float(position.total)))
        residuals.rounds = position.total
        checkpoint.save(position)


def kill_at_random_moments(folder: Path) -> dict[str, Any]:
    """Two ranks that do nothing but save, one of which is killed, time and again; each time they go on.

    Moments are random, but two of them, which are in the middle of a save: the first rank makes and publishes its
    folder.
    """
    totals, in_the_middle = [], 0
    moments = random.Random(1)
    for number in range(KILLS):
        before = latest(folder)
        with Ranks(2, functools.partial(save_for_ever, folder)) as ranks:
            deadline = time.monotonic() + 60
            while latest(folder) == before:
                assert time.monotonic() < deadline, "nothing was saved"
                time.sleep(0.001)
            if number % 4 == 3:
                ranks.kill_while(0, lambda: list(folder.glob(".step-*.part")))
            else:
                time.sleep(moments.uniform(0, 0.1))
                ranks.kill(moments.randrange(2))
            time.sleep(moments.uniform(0, 0.02))
        newest = latest(folder)
        totals.append(int(newest.name[-8:]) if newest else -1)
        in_the_middle += bool(list(folder.glob(".step-*")))
    return {"totals": totals, "in_the_middle": in_the_middle}


def mistakes(folder: Path) -> None:
    """Return what is refused on both ranks, also where only one of them has the problem."""

    class Failing(Residuals):
        is_broken = False

        def state_dict(self) -> dict[str, Any]:
            if self.is_broken:
                raise OSError("No space left on device")
            return super().state_dict()

    def refusal(attempt: Callable[[], Any]) -> str:
        try:
            attempt()
        except (CheckpointError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return "nothing was raised"

    model = network("top-k")
    failing = Failing()
    saved = Checkpoint(folder, model, own={"failing": failing})
    saved.save(Position(0, 3, 3))
    failing.is_broken = horovod.rank() == 1
    other = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5)])
    saving = distributed.SaveCheckpoints(saved)
    found = {
        "failing rank": refusal(lambda: saved.save(Position(0, 4, 4))),
        "another training": refusal(lambda: Checkpoint(folder, model).save(Position(0, 2, 2))),
        "another model": refusal(Checkpoint(folder, other).restore),
        "other own": refusal(Checkpoint(folder, model, own={"residuals": Residuals()}).restore),
        "nothing to keep": refusal(lambda: Checkpoint(folder, model, keep=0)),
        "not built": refusal(lambda: Checkpoint(folder, keras.Sequential([keras.layers.Dense(1)]))),
        "wrong epoch": refusal(lambda: saving.on_epoch_begin(1)),
        "uneven": refusal(
            lambda: model.fit(
                features[: 24 + horovod.rank()], labels[: 24 + horovod.rank()],
                batch_size=4, callbacks=distributed.callbacks(), verbose=0,
            )
        ),
    }  # fmt: skip
    saved.save(saved.position)  # nothing new, so nothing to save
    note(folder, "mistakes", found=found, left=sorted(name for name in os.listdir(folder) if "step" in name))


def main(folder: Path) -> None:
    def run(size: int, work: Callable[..., None], name: str, *arguments: Any) -> list[int]:
        with Ranks(size, functools.partial(work, folder, name, *arguments)) as ranks:
            return ranks.wait()

    def run_whole_and_killed_and_resumed(name: str, work: Callable[..., None]) -> list[list[int]]:
        """The exit codes. A copy of what the killed run left stays for others to look at."""
        whole = run(2, work, f"{name}-whole", f"{name}-whole")
        killed = run(2, functools.partial(work, dies=True), f"{name}-killed", f"{name}-killed")
        shutil.copytree(folder / f"{name}-killed", folder / f"{name}-left")
        return [whole, killed, run(2, work, f"{name}-resumed", f"{name}-killed")]

    codes = {"fit": run_whole_and_killed_and_resumed("fit", fit)}
    for scheme in ("top-k", "partial"):
        codes[scheme] = run_whole_and_killed_and_resumed(scheme, functools.partial(loop, scheme=scheme))
    for size, scheme, before in ((1, "one-bit", "fit"), (3, "top-k", "top-k")):
        name = f"{scheme}-on-{size}"
        shutil.copytree(folder / f"{before}-left", folder / name)
        codes[name] = [run(size, functools.partial(loop, scheme=scheme), name, name)]
    kills = folder / "kills"
    found = kill_at_random_moments(kills)
    (folder / "mistakes").mkdir()
    with Ranks(2, functools.partial(mistakes, folder / "mistakes")) as ranks:
        codes["mistakes"] = [ranks.wait()]
    (folder / "results.json").write_text(json.dumps({"codes": codes, "kills": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
