"""Checkpoints of a training on one rank or many, from which it can resume as if it had never been interrupted.

With Keras:

>>> from muster.training import partition, keras as distributed
>>> from muster.training.checkpoint import Checkpoint
>>> x, y = np.zeros((8, 1)), np.zeros(8)
>>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
>>> model.compile("sgd", "mse")
>>> checkpoint = Checkpoint("checkpoints", model, keep=3)
>>> start = checkpoint.restore()
>>> start  # there is none yet
Position(epoch=0, step=0, total=0)
>>> history = model.fit(
...     partition.epochs(x, y, batch_size=2, first=start.epoch), steps_per_epoch=partition.steps(len(x), 2),
...     initial_epoch=start.epoch, epochs=2, verbose=0,
...     callbacks=[*distributed.callbacks(), distributed.SaveCheckpoints(checkpoint, every=3)],
... )

and in a custom loop:

>>> position = checkpoint.restore()
>>> for epoch in range(position.epoch, 4):
...     for x_batch, y_batch in partition.batches(x, y, batch_size=2, epoch=epoch, first=position.step):
...         loss = model.train_on_batch(x_batch, y_batch)
...         position = position.after_step()
...         if position.total % 10 == 0:
...             checkpoint.save(position)
...     position = position.after_epoch()
>>> latest("checkpoints").name
'step-00000010'

A checkpoint is a folder `step-00001234` that all ranks must be able to reach. Rank 0 writes the variables of model and
optimizer (`model.npz`), and each rank its own state (`rank-N.npz`): variables in which the ranks differ, such as the
seeds of dropout and the moving averages of batch normalisation; the residuals of a communication scheme; random states
of Python, NumPy and TensorFlow; and the objects in `own`. They write into a hidden folder, which rank 0 renames when
all are done: whenever a process is killed or the power fails, the existing checkpoints are complete.

When another number of ranks resumes, each rank gets the means of the saved ranks' own states. That is right for
residuals: gradients are averaged over the ranks, and so are residuals when they are sent later. If a value that is not
a floating-point number differs between the ranks, each rank keeps its present one; a warning names objects to which
that happens. The epoch resumes at the last whole step of the new number of ranks: a few examples may come twice.
"""

from __future__ import annotations

import json
import os
import random
import warnings
import zlib
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from .extras import extra

with extra("tensorflow"):
    import keras
    import numpy as np
    import tensorflow as tf

from . import horovod, states
from .store import Store, latest

__all__ = ["Checkpoint", "CheckpointError", "Position", "latest"]

MANIFEST = "manifest.json"


class CheckpointError(Exception):
    """A checkpoint cannot be saved or restored; the message says which, why, and what to try."""


class Position(NamedTuple):
    """Position in training: steps taken in this epoch (the first is 0), and in all."""

    epoch: int = 0
    step: int = 0
    total: int = 0

    def after_step(self, steps: int = 1) -> Position:
        """Return the position `steps` steps later in the same epoch."""
        return Position(self.epoch, self.step + steps, self.total + steps)

    def after_epoch(self) -> Position:
        """Return the position at the beginning of the next epoch."""
        return Position(self.epoch + 1, 0, self.total)


class Checkpoint:
    """Saves a training in a folder, and restores it from there. Every rank makes one and calls the same methods.

    Args:
        folder: Folder of the checkpoints, for one training only. It is created when the first one is saved.
        model: The model, built.
        optimizer: The optimizer; default: the one that the model is compiled with, if any.
        own: Further state of each rank, by name: objects with `state_dict()`, which returns NumPy arrays, numbers and
            strings, or dicts and lists of them, and `load_state_dict(state)`; and, if the mean over the ranks would be
            wrong, `merge_states(states)`, which returns a state for this rank from the states of all saved ranks when
            their number was another one. The scheme of a `DistributedOptimizer` is included by itself.
        keep: Number of newest checkpoints to keep; older ones are removed.

    Raises:
        ValueError: The model is not built, or `keep` is less than 1.
    """

    def __init__(
        self,
        folder: Union[str, os.PathLike[str]],
        model: keras.Model,
        optimizer: Optional[keras.optimizers.Optimizer] = None,
        *,
        own: Optional[Mapping[str, Any]] = None,
        keep: int = 3,
    ) -> None:
        if not model.built:
            raise ValueError(
                f"Model {model.name!r} has no variables to save yet: begin it with keras.Input(shape), or call it on a "
                "batch first."
            )
        if keep < 1:
            raise ValueError(f"keep={keep}: at least the newest checkpoint is kept.")
        self._store = Store(folder, keep)
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        self.own = dict(own or {})
        scheme = getattr(self.optimizer, "communication", None)
        if scheme is not None:
            self.own["communication"] = scheme
        self.position = Position()
        self._saved: Optional[Mapping[str, Any]] = None  # the restored state of this rank
        self._differing: List[int] = []  # indices of variables
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)

    def save(self, position: Position) -> None:
        """Save a checkpoint of this position, unless no step has been taken since the last one.

        All ranks must call it, and it returns when all are done.

        Raises:
            CheckpointError: A rank could not do its part; raised on every rank. Earlier checkpoints are unchanged.
        """
        if position.total == self.position.total:
            return
        values = _values(self._variables)
        differing = horovod.differing([zlib.crc32(value.tobytes()) for value in values], "checkpoint_checksums")
        path = self._store.path(position.total)
        _together(f"prepare {path}", lambda: self._prepare(position.total), only_first=True)
        try:
            _together(f"write its part of {path}", lambda: self._write(position, values, differing))
            _together(f"complete {path}", lambda: self._store.publish(position.total), only_first=True)
        except CheckpointError:
            if horovod.rank() == 0:
                self._store.discard(position.total)  # it may have filled the disk
            raise
        self.position = position

    def restore(self) -> Position:
        """Load the newest checkpoint, and return its position; that of the beginning if there is no checkpoint.

        Raises:
            CheckpointError: A rank could not read it, or it is not of this model; raised on every rank.
        """
        newest = -1

        def look() -> None:
            nonlocal newest
            newest = self._store.newest()

        _together(f"look for checkpoints in {self._store.folder}", look, only_first=True)
        newest = int(horovod.broadcast(tf.constant(newest, tf.int64), 0, name="newest_checkpoint"))
        if newest >= 0:
            path = self._store.path(newest)
            _together(f"restore {path} (remove it to go back to the one before)", lambda: self._load(path))
        return self.position

    def refuse_another_training(self) -> None:
        """Raise CheckpointError if the folder has a newer checkpoint than this training has restored or saved."""
        newest = self._store.newest()
        if newest > self.position.total:
            raise CheckpointError(
                f"{self._store.path(newest)} is there, and this training has not gone on from it. Begin with "
                "restore(), or save another training in another folder."
            )

    def _prepare(self, total: int) -> None:
        self.refuse_another_training()
        self._store.prepare(total)

    def _write(self, position: Position, values: Sequence[np.ndarray[Any, Any]], differing: Sequence[int]) -> None:
        folder = self._store.unfinished(position.total)
        if horovod.rank() == 0:
            states.write(folder / "model.npz", list(values))
            manifest = {"ranks": horovod.size(), "differing": differing, **position._asdict()}
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        state = {
            "variables": [values[index] for index in differing],
            "metrics": _values(self.model.metrics_variables),
            "own": {name: thing.state_dict() for name, thing in self.own.items()},
            "random": _random_state(),
        }
        states.write(folder / f"rank-{horovod.rank()}.npz", state)

    def _load(self, path: Path) -> None:
        manifest = json.loads((path / MANIFEST).read_text())
        _assign(self._variables, states.read(path / "model.npz"), f"model {self.model.name!r} and its optimizer")
        self._differing = manifest["differing"]
        ranks = manifest["ranks"]
        if ranks == horovod.size():
            self._saved = states.read(path / f"rank-{horovod.rank()}.npz")
            self._load_own([self._saved["own"]])
            self.take_up()
        else:
            every = [states.read(path / f"rank-{rank}.npz") for rank in range(ranks)]
            self._load_own([state["own"] for state in every])
            self._load_means([state["variables"] for state in every])
        self.position = Position(manifest["epoch"], manifest["step"] * ranks // horovod.size(), manifest["total"])

    def take_up(self) -> None:
        """Restore the random states, and the variables in which the ranks differ, once more, as `restore` did.

        Needed if variables are broadcast, or random numbers drawn, between `restore` and the first step.
        """
        if self._saved is not None:
            variables = self._variables
            _assign([variables[index] for index in self._differing], self._saved["variables"], "the ranks' variables")
            _set_random_state(self._saved["random"])

    def take_up_metrics(self) -> None:
        """Set the model's metrics to those that `restore` loaded, of the interrupted epoch."""
        self.model.reset_metrics()
        if self._saved is not None:
            _assign(self.model.metrics_variables, self._saved["metrics"], "the metrics")

    def _load_means(self, saved: Sequence[Sequence[np.ndarray[Any, Any]]]) -> None:
        variables = self._variables
        for index, values in zip(self._differing, zip(*saved)):
            if states.is_floating(values[0]):
                variables[index].assign(states.merged(values))

    def _load_own(self, saved: Sequence[Mapping[str, Any]]) -> None:
        missing = set(self.own) ^ set(saved[0])
        if missing:
            raise CheckpointError(f"own={sorted(self.own)}, and the checkpoint has {sorted(saved[0])}.")
        for name, thing in self.own.items():
            try:
                merge = getattr(thing, "merge_states", states.merged)
                state = saved[0][name] if len(saved) == 1 else merge([rank[name] for rank in saved])
            except ValueError:
                warnings.warn(
                    f"{name} was saved by {len(saved)} ranks in states that cannot be merged for {horovod.size()}, and "
                    "begins anew.",
                    stacklevel=2,
                )
                continue
            thing.load_state_dict(state)

    @property
    def _variables(self) -> List[keras.Variable]:
        """The variables of the model and the optimizer, without those of the metrics."""
        metrics = {id(variable) for variable in self.model.metrics_variables}
        of_model = [variable for variable in self.model.variables if id(variable) not in metrics]
        return of_model if self.optimizer is None else [*of_model, *self.optimizer.variables]


def _together(what: str, action: Callable[[], None], only_first: bool = False) -> None:
    """Call `action` on every rank, or only on rank 0, and wait for all; raise on all ranks if it has failed on one."""
    problem: Optional[Exception] = None
    try:
        if not only_first or horovod.rank() == 0:
            action()
    except Exception as error:  # whatever it is, the other ranks must not wait for this one
        problem = error
    failures = horovod.allreduce(tf.constant(float(problem is not None), tf.float64), name="checkpoint_failures")
    if isinstance(problem, CheckpointError):
        raise problem
    if problem is not None:
        advice = " Every rank must reach the folder, and there must be room." if isinstance(problem, OSError) else ""
        raise CheckpointError(
            f"Rank {horovod.rank()} could not {what}: {type(problem).__name__}: {problem}.{advice}"
        ) from problem
    if float(failures) > 0:
        raise CheckpointError(f"Another rank could not {what}; what it says itself says why.")


def _random_state() -> Dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "tensorflow": tf.random.get_global_generator().state.numpy(),
    }


def _set_random_state(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    tf.random.get_global_generator().reset(state["tensorflow"])


def _values(variables: Sequence[keras.Variable]) -> List[np.ndarray[Any, Any]]:
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def _assign(variables: Sequence[keras.Variable], values: Sequence[np.ndarray[Any, Any]], what: str) -> None:
    expected, found = [tuple(variable.shape) for variable in variables], [np.shape(value) for value in values]
    if expected != found:
        raise CheckpointError(f"The checkpoint is of another training: of {what} it has {found}, not {expected}.")
    for variable, value in zip(variables, values):
        variable.assign(value)
