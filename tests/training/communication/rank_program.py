"""Program that test_ranks.py reads: every scheme on real ranks, with gradients that differ from rank to rank.

    python rank_program.py FOLDER

Writes FOLDER/rank-R-of-N.pickle, one entry for each function of `CHECKS`, and of `CHECKS_OF_TWO` where N is 2.
"""

import functools
import hashlib
import pickle
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from muster.training import communication, horovod
from muster.training import keras as distributed
from muster.training.communication import (
    FP16,
    BlockMomentum,
    Compressor,
    Dense,
    KBit,
    LocalAggregation,
    ModelAveraging,
    NoMemory,
    OneBit,
    PartialSynchronisation,
    Reducer,
    Scheme,
    Threshold,
    TopK,
    WarmStart,
    compiled,
)

from tests.training.communication.oracle import BATCH, BLOCK, CONSERVED_STEPS, RATE, SHAPES, Array, gradients
from tests.training.forked_ranks import Ranks

GUIDE = Path(__file__).parents[3] / "docs" / "communication.md"
GRADIENT_SCHEMES: dict[str, Callable[[], Scheme]] = {
    "dense": Dense,
    "fp16": lambda: Reducer(FP16()),
    "top-k": lambda: Reducer(TopK(0.01)),
    "threshold": lambda: Reducer(Threshold(1.5)),
    "1 bit": lambda: Reducer(OneBit()),
    "4 bit": lambda: Reducer(KBit(4)),
}
STATEFUL_SCHEMES: dict[str, Callable[[], Scheme]] = {
    **GRADIENT_SCHEMES,
    "averaged": lambda: ModelAveraging(4),
    "block momentum": lambda: BlockMomentum(4 * BATCH * horovod.size(), BATCH),
    "partial": lambda: PartialSynchronisation(4),
    "warm start": lambda: WarmStart(OneBit(), 2 * BATCH, BATCH),
    "aggregated": lambda: LocalAggregation(TopK(0.01), 2),
}


compiled.WORTH_COMPILING = 1_000  # so that whole tensors are decoded by compiled code here, and stripes are not


class Model:
    """Variables under SGD; eager unless it is to be traced."""

    def __init__(self, scheme: Scheme, momentum: float = 0.0, traced: bool = False) -> None:
        self.scheme = scheme
        self.variables = [tf.Variable(tf.fill(shape, 1.0)) for shape in SHAPES]
        self.moments = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
        self.received = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
        self.momentum = momentum
        self.applied: list[Any] = []
        self.traces = 0
        scheme.build(self.variables, self.moments)
        self.step = tf.function(self._step) if traced else self._step

    def _step(self, *own: tf.Tensor) -> None:
        self.traces += 1

        def apply(means: Sequence[tf.Tensor]) -> None:
            for variable, moment, mean, kept in zip(self.variables, self.moments, means, self.received, strict=True):
                kept.assign(mean)
                moment.assign(self.momentum * moment + mean)
                variable.assign_sub(RATE * moment)

        self.scheme.step(own, self.variables, apply)

    def train(self, steps: range) -> "Model":
        for step in steps:
            self.step(*[tf.constant(gradient) for gradient in gradients(horovod.rank(), step)])
            self.applied.append([kept.numpy() for kept in self.received])
        return self

    def weights(self) -> list[Array]:
        return [variable.numpy() for variable in self.variables]

    def digest(self) -> str:
        return digest(self.variables)


def digest(variables: Sequence[Any]) -> str:
    return hashlib.sha256(b"".join(np.asarray(variable).tobytes() for variable in variables)).hexdigest()


def digests_of_steps() -> dict[str, list[str]]:
    """The weights' digests after each of some steps on different data."""
    found = {}
    schemes: dict[str, Callable[[], Scheme]] = {
        **GRADIENT_SCHEMES,
        "skips one decode": lambda: Reducer(Forgetful(0.01)),
    }
    for name, scheme in schemes.items():
        model = Model(scheme(), traced=horovod.size() == 2)
        found[name] = [model.train(range(step, step + 1)).digest() for step in range(5)]
    return found


class Forgetful(TopK):
    """The negative control: the last rank leaves out what the first one sent."""

    def mean(self, payloads: Sequence[Any], shape: Sequence[int]) -> tf.Tensor:
        received = len(payloads) > 1 and horovod.rank() == horovod.size() - 1
        return super().mean(payloads[1:] if received else payloads, shape)


def conservation() -> dict[str, Any]:
    """The sum of what was applied, and all that residuals hold in the end."""
    schemes: dict[str, Callable[[], Scheme]] = {
        **GRADIENT_SCHEMES,
        "forgets the rest": lambda: Reducer(TopK(0.01), memory=NoMemory),
    }
    del schemes["dense"]
    found = {}
    for name, scheme in schemes.items():
        model = Model(scheme()).train(range(CONSERVED_STEPS))
        found[name] = {
            "applied": [np.sum(of_variable, 0) for of_variable in zip(*model.applied, strict=True)],
            "state": model.scheme.state_dict(),
        }
    return found


def identity() -> dict[str, Any]:
    """Return what schemes that leave nothing out apply, and one that leaves out a little."""
    schemes: dict[str, Compressor | Scheme] = {
        "dense": Dense(),
        "top-k": TopK(1.0),
        "threshold": Threshold(0.0),
        "32 bit": KBit(32),
        "almost all": TopK(0.999),
    }
    return {name: Model(communication.as_scheme(scheme)).train(range(4)).applied for name, scheme in schemes.items()}


def averaged_models() -> dict[str, Any]:
    """Weights after each step of schemes that let models drift apart."""
    size = horovod.size()
    block: dict[str, Any] = {"block_size": BLOCK * BATCH * size, "batch_size": BATCH}
    schemes = {
        "averaged": (ModelAveraging(BLOCK), 0.0),
        "like averaged": (
            BlockMomentum(**block, momentum=0, learning_rate=1 / size, nesterov=False, reset_momentum=False),
            0.0,
        ),
        "block momentum": (BlockMomentum(**block), 0.9),
        "block momentum, time constant": (
            BlockMomentum(**block, time_constant=500.0, learning_rate=0.7, nesterov=False, reset_momentum=False),
            0.9,
        ),
        "one chunk": (PartialSynchronisation(1), 0.0),
        "three chunks": (PartialSynchronisation(3), 0.0),
        "synchronous": (Dense(), 0.0),
    }
    found = {}
    for name, (scheme, momentum) in schemes.items():
        model = Model(scheme, momentum)
        found[name] = [model.train(range(step, step + 1)).weights() for step in range(3 * BLOCK)]
    model = Model(PartialSynchronisation(3)).train(range(2))
    model.scheme.synchronise(model.variables)
    found["synchronised"] = [model.weights()]
    return found


def bytes_sent() -> dict[str, list[int]]:
    """After each step; of a code too that takes a byte for each bit."""
    found = {}
    schemes: dict[str, Callable[[], Scheme]] = {**STATEFUL_SCHEMES, "not packed": lambda: Reducer(KBit(8))}
    for name, scheme in schemes.items():
        model = Model(scheme())
        found[name] = [model.train(range(step, step + 1)).scheme.bytes_sent for step in range(4)]
    return found


def resumed() -> dict[str, Any]:
    """Weights of four steps in one go, and of two and two with everything saved between, and with residuals lost."""
    found = {}
    for name, scheme in STATEFUL_SCHEMES.items():
        whole = Model(scheme(), 0.9).train(range(4))
        first = Model(scheme(), 0.9).train(range(2))
        digests = [whole.digest()]
        for state in (pickle.loads(pickle.dumps(first.scheme.state_dict())), None):
            again = scheme()
            if state is not None:
                again.load_state_dict(state)
            second = Model(again, 0.9)
            for own, saved in zip(second.variables + second.moments, first.variables + first.moments, strict=True):
                own.assign(saved)
            if state is not None:
                again.load_state_dict(state)  # for the second time, now that there are variables
            digests.append(second.train(range(2, 4)).digest())
        found[name] = digests
    return found


def many_steps() -> dict[str, int]:
    """Count traces of a step; and those of five steps that are told their number, which is no tensor."""
    names = ("threshold", "1 bit", "block momentum", "partial", "warm start", "aggregated")
    found = {name: Model(STATEFUL_SCHEMES[name](), traced=True).train(range(12)).traces for name in names}
    model = Model(Dense())
    step = tf.function(lambda number, *own: model._step(*own))
    for number in range(5):
        step(number, *map(tf.constant, gradients(horovod.rank(), number)))
    return {**found, "numbered": model.traces}


def not_finite() -> dict[str, Any]:
    """A step in which the last rank's gradient is not finite, and the one after it."""
    found = {}
    for name, scheme in GRADIENT_SCHEMES.items():
        for value in (np.nan, np.inf):
            model = Model(scheme()).train(range(2))
            before = [model.digest(), pickle.dumps(residuals(model.scheme))]
            own = gradients(horovod.rank(), 2)
            if horovod.rank() == horovod.size() - 1:
                own[0][0, 0] = value
            model.step(*[tf.constant(gradient) for gradient in own])
            after = [model.digest(), pickle.dumps(residuals(model.scheme))]
            finite = bool(np.isfinite(model.train(range(3, 4)).weights()[0]).all())
            found[f"{name}, {value}"] = {"unchanged": before == after, "digest": model.digest(), "finite": finite}
    return found


def residuals(scheme: Scheme) -> dict[str, Any]:
    return {name: value for name, value in scheme.state_dict().items() if name != "bytes_sent"}


def out_of_range() -> list[float]:
    """Return what three steps of fp16 apply of a value beyond its range, and of one that is always almost nothing."""
    scheme = Reducer(FP16())
    variable = tf.Variable([[0.0, 0.0]])
    for value in (100_000.0, 0.0, 0.0):
        scheme.step(
            [tf.constant([[value, 1e-7]])], [variable], lambda means: variable.assign_add(tf.cast(means[0], tf.float32))
        )
    found: list[float] = variable.numpy()[0].tolist()
    return found


def fit() -> dict[str, Any]:
    """`model.fit` on data of each rank's own, whose last batch has another size on every rank."""
    found = {}
    schemes = {**STATEFUL_SCHEMES, "own": own_scheme}
    for name in ("top-k", "1 bit", "block momentum", "aggregated", "partial", "own"):
        keras.utils.set_random_seed(0)
        layers = [keras.Input((40,)), keras.layers.Dense(50, activation="relu"), keras.layers.Dense(3)]
        model = keras.Sequential(layers)
        optimizer = distributed.DistributedOptimizer(keras.optimizers.SGD(0.05, 0.9), compression=schemes[name]())
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, jit_compile=False)
        random = np.random.RandomState(horovod.rank())
        examples = 3 * BATCH + 1 + horovod.rank()
        before = digest(model.weights)
        model.fit(
            random.normal(size=(examples, 40)).astype("float32"),
            random.randint(0, 3, examples),
            batch_size=BATCH,
            epochs=2,
            callbacks=distributed.callbacks(),
            verbose=0,
        )
        found[name] = {
            "changed": digest(model.weights) != before,
            "digest": digest(model.trainable_variables),
            "steps": int(optimizer.iterations),
        }
    return found


def own_scheme() -> Scheme:
    """Return a scheme with the guide's compressor of one's own, word for word."""
    (code,) = re.findall(r"```python\n(from muster[^`]*class QSGD[^`]*)```", GUIDE.read_text())
    names: dict[str, Any] = {}
    exec(code, names)
    return Reducer(names["QSGD"](levels=16), memory=NoMemory)


def sparse_gradients() -> dict[str, str]:
    """Eagerly, with an embedding's gradient and a variable without one."""
    found = {}
    for name, scheme in GRADIENT_SCHEMES.items():
        variables = [tf.Variable(tf.zeros((300, 8))), tf.Variable(tf.zeros((40, 50)))]
        made = scheme()
        for _ in range(2):
            rows = tf.constant([horovod.rank(), 7])
            made.step(
                [tf.IndexedSlices(tf.ones((2, 8)), rows, (300, 8)), None],
                variables,
                lambda means, variables=variables: variables[0].assign_add(means[0]),
            )
        found[name] = digest(variables)
    return found


def few_columns() -> dict[str, str]:
    """Weights after steps on a tensor of fewer columns than there are ranks, so that some average none of it."""
    found = {}
    for name in ("1 bit", "4 bit"):
        variable, scheme = tf.Variable(tf.zeros((1_200, 1))), GRADIENT_SCHEMES[name]()
        for seed in (0, 1):
            own = tf.random.stateless_normal(variable.shape, (seed, horovod.rank()))
            scheme.step([own], [variable], lambda means, variable=variable: variable.assign_add(means[0]))
        found[name] = digest([variable])
    return found


def refusals() -> dict[str, str]:
    try:
        Dense(op="Adasum").build([tf.Variable(0.0)])
    except ValueError as error:
        return {"adasum": str(error)}
    return {}


CHECKS = [
    digests_of_steps,
    conservation,
    identity,
    averaged_models,
    bytes_sent,
    out_of_range,
    few_columns,
    refusals,
]
CHECKS_OF_TWO = [not_finite, sparse_gradients, resumed, many_steps, fit]


def run_checks(folder: Path) -> None:
    tf.get_logger().setLevel("ERROR")  # it wonders at so many functions traced in a row
    checks = [*CHECKS, *CHECKS_OF_TWO] if horovod.size() == 2 else CHECKS
    results = {check.__name__: check() for check in checks}
    (folder / f"rank-{horovod.rank()}-of-{horovod.size()}.pickle").write_bytes(pickle.dumps(results))


def main(folder: Path) -> None:
    for size in (2, 3):
        with Ranks(size, functools.partial(run_checks, folder)) as ranks:
            assert ranks.wait() == size * [0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
