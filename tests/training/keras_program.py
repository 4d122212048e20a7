"""Program that test_keras.py reads: small trainings of two ranks and of one process, and what came of them.

    python keras_program.py FOLDER

Writes FOLDER/rank-R-of-N.json, one entry for each function of `CHECKS`. Only the two report their progress.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from muster.training import horovod, progress
from muster.training import keras as distributed
from muster.training.communication import BlockMomentum, Scheme, TopK

from tests.training.forked_ranks import Ranks

STEPS, COMMON_BATCH_SIZE = 6, 16
FOLDER = Path(sys.argv[1])


def digest(*variables: list[keras.Variable]) -> str:
    """SHA-256 over all bytes of all variables."""
    return hashlib.sha256(b"".join(np.asarray(v).tobytes() for group in variables for v in group)).hexdigest()


def network(seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3, activation="softmax")]
    )


def compiled(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    return model


def own_data(n: int = STEPS * 16) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Other examples on every rank."""
    random = np.random.RandomState(horovod.rank())
    return random.normal(size=(n, 8)).astype("float32"), random.randint(0, 3, n)


def share_of_common_data() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """This rank's part of every batch, so that all ranks' k-th batches together are the k-th of a process alone."""
    random = np.random.RandomState(99)
    n = STEPS * COMMON_BATCH_SIZE
    images, labels = random.normal(size=(n, 8)).astype("float32"), random.randint(0, 3, n)
    mine = np.arange(n).reshape(STEPS, horovod.size(), -1)[:, horovod.rank()].reshape(-1)
    return images[mine], labels[mine]


def fit() -> dict[str, Any]:
    """`model.fit` with everything, on other data and from other initial weights on every rank."""
    model = compiled(network(seed=horovod.rank()), distributed.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    before = digest(model.weights)
    seen: dict[str, Any] = {}
    later = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.update(logs))
    checkpoint = FOLDER / f"checkpoints-of-{horovod.rank()}-of-{horovod.size()}" / "epoch-{epoch:02d}.keras"
    history = model.fit(
        *own_data(),
        batch_size=16,
        epochs=2,
        validation_data=own_data(),
        callbacks=[*distributed.callbacks(checkpoint, batch_size=16), later],
        verbose=0,
    ).history
    return {
        "before": before,
        "after": digest(model.weights, model.optimizer.variables),
        "last_epoch": {name: values[-1] for name, values in history.items()},
        "seen_by_later_callbacks": seen,
        "steps": int(model.optimizer.iterations),
        "bytes_sent": model.optimizer.communication.bytes_sent,
        "predictions": model.predict(np.eye(8, dtype="float32"), verbose=0).tolist(),
    }


class Own(keras.Model):  # type: ignore[misc]
    """A model whose outputs are unknown before it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(3, activation="softmax")

    def call(self, inputs: Any) -> Any:
        return self.layer(inputs)


def traces() -> dict[str, Any]:
    """How often the training step of several kinds of models was traced, and what their histories have."""
    two = keras.Input((8,))
    outputs = {name: keras.layers.Dense(3, activation="softmax", name=name)(two) for name in ("left", "right")}
    own = Own()
    own(np.zeros((1, 8), "float32"))
    images, labels = own_data()
    both = {"left": labels, "right": labels}
    kinds: dict[str, tuple[keras.Model, Any, Any]] = {
        "plain": (network(), labels, ["accuracy"]),
        "without metrics": (network(), labels, None),
        "own metric": (network(), labels, [keras.metrics.SparseTopKCategoricalAccuracy(2)]),
        "two outputs": (keras.Model(two, outputs), both, {"left": ["accuracy"], "right": []}),
        "own class": (own, labels, ["accuracy"]),
        "no such metric": (network(), labels, ["exactness"]),
    }
    found: dict[str, Any] = {}
    for kind, (model, truth, metrics) in kinds.items():
        optimizer = distributed.DistributedOptimizer(keras.optimizers.Adam(0.01))
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=metrics, jit_compile=False)
        calls: list[int] = []
        step = model.train_step
        model.train_step = lambda batch, calls=calls, step=step: calls.append(1) or step(batch)
        try:
            histories = [
                model.fit(images, truth, 16, verbose=0, callbacks=distributed.callbacks()).history for _ in range(2)
            ]
        except ValueError as error:
            found[kind] = str(error)
            continue
        found[kind] = [len(calls), sorted(histories[0]), sorted(histories[0]) == sorted(histories[1])]
    return found


class OneHot(keras.Model):  # type: ignore[misc]
    """A model whose training step uses other labels than the data set's."""

    def train_step(self, data: Any) -> Any:
        images, labels = data
        return super().train_step((images, keras.ops.one_hot(labels, 3)))


class AutoEncoder(keras.Model):  # type: ignore[misc]
    """A model whose metrics compare its output with its input."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *others: Any, **more: Any) -> Any:
        return keras.ops.mean(keras.ops.square(x - y_pred))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().compute_metrics(x, x, y_pred, sample_weight)


class HalfTrained(keras.Model):  # type: ignore[misc]
    """A model whose training step changes only the variables of its last layer."""

    def train_step(self, data: Any) -> Any:
        images, labels = data
        last = self.layers[-1].trainable_variables
        with tf.GradientTape() as tape:
            loss = self.compute_loss(images, labels, self(images, training=True))
        self.optimizer.apply(tape.gradient(loss, last), last)
        return {"loss": loss}


def own_steps() -> dict[str, Any]:
    """Models with steps of their own, and a callback after ours that sets weights: what came of them."""
    images, labels = own_data()
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(8)(inputs)
    outputs = keras.layers.Dense(3, activation="softmax")(hidden)
    entropy, sparse = "categorical_crossentropy", "sparse_categorical_crossentropy"
    block = BlockMomentum(16, 16, momentum=0.5)
    kinds: dict[str, tuple[keras.Model, str, Any]] = {
        "one hot": (OneHot(inputs, outputs), entropy, None),
        "auto-encoder": (AutoEncoder(inputs, hidden), "mse", None),
        "half trained": (HalfTrained(inputs, outputs), sparse, block),
    }
    found: dict[str, Any] = {}
    for kind, (model, loss, scheme) in kinds.items():
        optimizer = distributed.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=scheme)
        metrics = None if kind == "half trained" else ["accuracy"]
        model.compile(optimizer, loss, metrics=metrics, jit_compile=False)
        history = model.fit(images, labels, 16, verbose=0, callbacks=[distributed.BroadcastVariables()]).history
        found[kind] = sorted(history)
    model = network()
    optimizer = distributed.DistributedOptimizer(
        keras.optimizers.SGD(0.0), compression=BlockMomentum(16, 16, momentum=0.5)
    )
    restored = [np.full(weight.shape, 5.0) for weight in model.weights]
    later = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: model.set_weights(restored))
    compiled(model, optimizer).fit(images, labels, 16, verbose=0, callbacks=[*distributed.callbacks(), later])
    found["restored"] = sorted({float(value) for weight in model.weights for value in weight.numpy().ravel()})
    return found


def fit_without_averaging() -> dict[str, Any]:
    """The negative control: the same beginning, but nothing keeps the ranks together."""
    model = compiled(network(), keras.optimizers.Adam(0.01))
    distributed.broadcast_variables(model)
    before = digest(model.weights)
    model.fit(*own_data(), batch_size=16, verbose=0)
    return {"before": before, "after": digest(model.weights)}


def fit_on_common_data() -> dict[str, Any]:
    """To be compared between two ranks and one process with twice the batch."""
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5)
    model = compiled(network(), distributed.DistributedOptimizer(optimizer))
    batch_size = COMMON_BATCH_SIZE // horovod.size()
    model.fit(
        *share_of_common_data(), batch_size=batch_size, shuffle=False, callbacks=distributed.callbacks(), verbose=0
    )
    return {"weights": [weight.numpy().tolist() for weight in model.weights]}


def custom_loops() -> dict[str, Any]:
    """Traced and eager loops over a model with an embedding, whose gradient is sparse."""
    keras.utils.set_random_seed(horovod.rank())
    model = keras.Sequential(
        [keras.Input((4,), dtype="int32"), keras.layers.Embedding(20, 5), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    optimizer = distributed.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    distributed.broadcast_variables(model, optimizer)
    random = np.random.RandomState(horovod.rank())
    kinds: set[str] = set()

    def step(words: tf.Tensor, labels: tf.Tensor, apply: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=model(words, training=True))
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        kinds.update(type(gradient).__name__ for gradient in gradients)
        apply(gradients)

    def apply_gradients(gradients: list[Any]) -> None:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    results = {}
    for name, apply in {"apply": optimizer.apply, "apply_gradients": apply_gradients}.items():
        for traced in (True, False):
            run = tf.function(step) if traced else step
            for _ in range(STEPS):
                run(tf.constant(random.randint(0, 20, (8, 4))), tf.constant(random.randint(0, 3, 8)), apply)
            results[f"{name}, {'traced' if traced else 'eager'}"] = digest(model.weights, optimizer.variables)
    return {"digests": results, "gradients": sorted(kinds)}


def infinite_gradient_on_last_rank() -> dict[str, Any]:
    """Mixed precision: every rank must leave out the step, and take the next one."""
    model = network()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0)
    distributed.DistributedOptimizer(optimizer)
    distributed.broadcast_variables(model, optimizer)
    digests = [digest(model.weights)]
    overflow = horovod.rank() == horovod.size() - 1
    for value in (np.inf if overflow else 1.0, 1.0):
        gradients = [tf.fill(variable.shape, tf.constant(value, tf.float32)) for variable in model.trainable_variables]
        optimizer.apply(gradients, model.trainable_variables)
        digests.append(digest(model.weights))
    return {"digests": digests}


def average_metrics() -> dict[str, Any]:
    logs = {"loss": float(horovod.rank()), "accuracy": 1.0}
    distributed.AverageMetrics().on_epoch_end(0, logs)
    return logs


class FirstRankOnly(Scheme):
    """Not a mean, so that it shows: what rank 0 found is what all apply."""

    def _step(self, gradients: Any, variables: Any, apply: Any) -> None:
        self.calls = [variable.path for variable in variables]
        apply([horovod.broadcast(gradient, 0, name=f"own_{i}") for i, gradient in enumerate(gradients)])


def collectives() -> dict[str, Any]:
    """Broadcast from the last rank, and a scheme of one's own in place of averaging."""
    last = horovod.size() - 1
    variable = keras.Variable(np.zeros(2), name="variable")
    optimizer = distributed.DistributedOptimizer(keras.optimizers.SGD(1.0))
    distributed.DistributedOptimizer(optimizer, compression=FirstRankOnly("own"))
    optimizer.apply([tf.fill([2], float(1 + horovod.rank()))], [variable])
    return {
        "rank": horovod.rank(),
        "broadcast": int(horovod.broadcast(tf.constant(horovod.rank()), last, name="number")),
        "after own scheme": variable.numpy().tolist(),
        "calls": optimizer.communication.calls,
    }


def batches() -> list[list[int]]:
    """The sizes of variables of two types that are sent together."""
    distributed.BATCH_BYTES, kept = 40, distributed.BATCH_BYTES
    try:
        variables = [keras.Variable(np.zeros(n, "float32")) for n in (5, 5, 20, 0, 5)]
        variables[1:1] = [keras.Variable(np.zeros(n, "int64")) for n in (0, 1)]
        return [[int(np.prod(variable.shape)) for variable in batch] for batch in distributed._in_batches(variables)]
    finally:
        distributed.BATCH_BYTES = kept


def matrix(rows: int, columns: int) -> keras.Model:
    return keras.Sequential([keras.Input((rows,)), keras.layers.Dense(columns, use_bias=False)])


def refusals() -> dict[str, str]:
    """Return what is refused, and with which message."""
    averaging = distributed.DistributedOptimizer
    model = network()
    tries: dict[str, Callable[[], Any]] = {
        "plain optimizer": lambda: fit_briefly(keras.optimizers.SGD()),
        "loss scale outside": lambda: fit_briefly(
            keras.optimizers.LossScaleOptimizer(averaging(keras.optimizers.SGD()))
        ),
        "XLA": lambda: fit_briefly(averaging(keras.optimizers.SGD()), jit_compile=True),
        "not built": lambda: distributed.broadcast_variables(keras.Sequential([keras.layers.Dense(1)])),
        "not an optimizer": lambda: averaging("adam"),
        "not a scheme": lambda: averaging(keras.optimizers.SGD(), compression=cast(Any, 0.01)),
        "compressed loss scale": lambda: averaging(
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), compression=TopK(0.01)
        ),
        "file name": lambda: distributed.CheckpointOnRankZero("model.h5"),
        "different models": lambda: distributed.broadcast_variables(matrix(3 + horovod.rank(), 4 - horovod.rank())),
    }

    def fit_briefly(optimizer: Any, jit_compile: bool = False) -> None:
        model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=jit_compile)
        model.fit(*own_data(4), callbacks=distributed.callbacks(), verbose=0)

    messages = {}
    for name, attempt in tries.items():
        try:
            attempt()
        except (TypeError, ValueError) as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return messages


def half_a_file() -> dict[str, Any]:
    """A save that fails in the middle, over a checkpoint that is there."""

    class Failing:
        def save(self, path: Path) -> None:
            path.write_text("half")
            raise OSError("disk full")

    folder = FOLDER / f"half-a-file-{horovod.rank()}-of-{horovod.size()}"
    folder.mkdir()
    (folder / "model.keras").write_text("whole")
    try:
        distributed.save_atomically(Failing(), folder / "model.keras")
    except OSError as error:
        return {"error": str(error), "files": {path.name: path.read_text() for path in folder.iterdir()}}
    return {}


def load_what_two_ranks_saved() -> dict[str, Any]:
    """In one process, after them: the file is an ordinary model."""
    (path,) = FOLDER.glob("checkpoints-of-0-of-2/epoch-02.keras")
    model = keras.models.load_model(path)
    predictions = model.predict(np.eye(8, dtype="float32"), verbose=0).tolist()
    optimizer = {"class": type(model.optimizer).__name__, "steps": int(model.optimizer.iterations)}
    distributed.DistributedOptimizer(model.optimizer)
    model.fit(*own_data(), batch_size=16, callbacks=distributed.callbacks(), verbose=0)
    return {"predictions": predictions, "optimizer": optimizer, "steps_after_more": int(model.optimizer.iterations)}


CHECKS = [
    fit,
    traces,
    own_steps,
    fit_without_averaging,
    fit_on_common_data,
    custom_loops,
    infinite_gradient_on_last_rank,
    average_metrics,
    collectives,
    batches,
    refusals,
    half_a_file,
]


def run_checks() -> None:
    checks = CHECKS if horovod.size() > 1 else [*CHECKS, load_what_two_ranks_saved]
    results = {check.__name__: check() for check in checks}
    (FOLDER / f"rank-{horovod.rank()}-of-{horovod.size()}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    for size in (2, 1):
        with Ranks(size, run_checks) as ranks:
            assert ranks.wait() == size * [0]
        os.environ.pop(progress.ADDRESS_VARIABLE, None)
