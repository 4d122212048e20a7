"""Data-parallel training of Keras 3 models on Horovod's collectives, with the TensorFlow backend.

A script needs these lines::

    from muster.training import horovod, partition, keras as distributed

    horovod.init()
    model.compile(optimizer=distributed.DistributedOptimizer(keras.optimizers.Adam(0.001 * horovod.size())),
                  loss=..., metrics=["accuracy"], jit_compile=False)
    model.fit(partition.epochs(x_train, y_train, batch_size=64), steps_per_epoch=partition.steps(len(x_train), 64),
              epochs=8, callbacks=distributed.callbacks("model.keras", batch_size=64))

Each rank trains on its own share of the data and averages its gradients with the other ranks' before it applies them.
All start from the same variables (`BroadcastVariables`) and therefore stay the same, bit for bit. Every rank must take
the same number of steps: one that stops early leaves the others waiting for its gradients.

Horovod's own Keras integration (0.28.1, the last release) does not work with Keras 3; its collectives do, and only they
are used here. In a process that `horovodrun` did not start, everything works with one rank.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
import types
import zlib
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

from .extras import extra

with extra("tensorflow"):
    import keras
    import tensorflow as tf

from . import communication, horovod
from .checkpoint import Checkpoint
from .progress import preempted, report
from .store import write_durably

Logs = Optional[Dict[str, Any]]
SECONDS_PER_LOOK = 1.0  # about how often the ranks check for preemption
BATCH_BYTES = 64 * 2**20  # a broadcast costs milliseconds, whatever its size, and needs its size in memory twice more


def DistributedOptimizer(  # noqa: N802 - Horovod's name for it, which is used like a class
    optimizer: keras.optimizers.Optimizer, *, compression: communication.Compression = None
) -> keras.optimizers.Optimizer:
    """Make an optimizer average the gradients of all ranks before it applies them, or follow another scheme.

    It works in `model.fit` and in custom loops that call `optimizer.apply` or `optimizer.apply_gradients`. The
    optimizer is changed in place and returned: its class, configuration and state stay the same, so that a model is
    saved and loaded as if there were one process, and the optimizer of a loaded model can be used again. Clipping and
    weight decay come after the averaging. A second call replaces the scheme, which is `optimizer.communication`.

    For mixed precision pass the outermost optimizer: `DistributedOptimizer(LossScaleOptimizer(Adam()))`, so that all
    ranks see the same infinite gradients and skip the same steps.

    Args:
        optimizer: Any Keras 3 optimizer, built or not.
        compression: What the ranks send: None for uncompressed gradients, or a compressor or scheme of
            `muster.training.communication`, such as `TopK(0.01)`, to send less.

    Raises:
        TypeError: `optimizer` is not a Keras 3 optimizer, or `compression` neither a compressor nor a scheme.
        ValueError: A `LossScaleOptimizer` with anything but plain averaging: residuals would be kept at one scale and
            sent at another, and steps be skipped without its knowledge.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer) or not hasattr(optimizer, "apply"):
        raise TypeError(f"DistributedOptimizer takes a Keras 3 optimizer, not {type(optimizer)!r}.")
    scheme = communication.as_scheme(compression)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and not isinstance(scheme, communication.Dense):
        raise ValueError(
            f"{type(scheme).__name__} cannot work on the scaled gradients of a LossScaleOptimizer. Train in "
            "mixed_bfloat16 or float32, which need no loss scale, or without compression."
        )

    def apply(
        self: Any, grads: Sequence[communication.Gradient], trainable_variables: Optional[Sequence[Any]] = None
    ) -> None:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        if not self.built:
            self.build(variables)
        _build_scheme(self, variables)

        def apply_reduced(reduced: Sequence[communication.Gradient]) -> None:
            # Schemes apply in a branch of tf.cond, and Keras accepts no mixture of tensors from inside and outside it.
            inside = [None if gradient is None else tf.identity(gradient) for gradient in reduced]
            type(self).apply(self, inside, trainable_variables)

        scheme.step(grads, variables, apply_reduced)

    # On the instance and not in a subclass: a subclass would be saved under a name that nobody can load.
    optimizer.apply = types.MethodType(apply, optimizer)
    optimizer.communication = scheme
    return optimizer


def _build_scheme(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the variables of an optimizer's scheme, unless they are there; the optimizer is built."""
    averages = {id(average) for average in getattr(optimizer, "_model_variables_moving_average", ())}  # of `use_ema`
    slots = [slot for slot in optimizer.variables if len(slot.shape) and id(slot) not in averages]
    optimizer.communication.build(variables, slots)


def broadcast_variables(
    model: keras.Model, optimizer: Optional[keras.optimizers.Optimizer] = None, root_rank: int = 0
) -> None:
    """Give every rank the variables of one rank: the model's weights, and the optimizer's state if one is given.

    Call it in custom loops, between building (or loading) the model and the first step; in `model.fit` use
    `BroadcastVariables`. The seeds of dropout and the like stay different on each rank.

    Raises:
        ValueError: The model is not built yet, so there is nothing to broadcast; or it is not the same on all ranks.
    """
    if not model.built:
        raise ValueError(
            f"Model {model.name!r} has no variables to broadcast yet: begin it with keras.Input(shape), or call it "
            "on a batch first."
        )
    variables = list(model.weights)
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables += optimizer.variables
    _check_models(variables)
    for number, batch in enumerate(_in_batches(variables)):
        _broadcast_together(batch, root_rank, f"variables_{number}")


def _broadcast_together(variables: Sequence[Any], root_rank: int, name: str) -> None:
    flat = tf.concat([tf.reshape(keras.ops.convert_to_tensor(variable), [-1]) for variable in variables], 0)
    values = tf.split(horovod.broadcast(flat, root_rank, name=name), [_size(variable) for variable in variables])
    for variable, value in zip(variables, values):
        variable.assign(tf.reshape(value, variable.shape))


def _in_batches(variables: Sequence[Any]) -> List[List[Any]]:
    """Group variables of the same type, up to `BATCH_BYTES` in each group; a larger one is in a group by itself."""
    batches: List[List[Any]] = []
    by_type = itertools.groupby(sorted(variables, key=lambda variable: variable.dtype), lambda variable: variable.dtype)
    for dtype, alike in by_type:
        room = -1  # no batch of this type is begun
        for variable in alike:
            needed = _size(variable) * tf.as_dtype(dtype).size
            if needed > room:
                batches.append([])
                room = BATCH_BYTES
            batches[-1].append(variable)
            room -= needed
    return batches


def _size(variable: Any) -> int:
    return math.prod(variable.shape)


class BroadcastVariables(keras.callbacks.Callback):
    """Gives every rank the model and optimizer variables of one rank before the first step.

    It also makes the variables that the first step would make, so that TensorFlow traces that step only once.
    With several ranks it also raises ValueError if they would wait for each other for ever, or train apart.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self.root_rank = root_rank

    def on_train_begin(self, logs: Logs = None) -> None:
        """Check how the model is compiled, then broadcast; raises ValueError."""
        if horovod.size() > 1:
            _check_compiled(self.model)
            _check_steps(self.params.get("steps"))
        broadcast_variables(self.model, self.model.optimizer, self.root_rank)
        _prepare_first_step(self.model)


def _prepare_first_step(model: keras.Model) -> None:
    """Have the variables of the scheme and the metrics made just before the first step, after all callbacks.

    TensorFlow traces a function once more if it has made variables, which takes as long as the first time. A model with
    a training step of its own makes them there: nothing is known of the variables and labels that it uses.
    """
    step = model.train_function
    if step is None or type(model).train_step is not keras.Model.train_step:
        return

    def prepare_and_step(iterator: Any) -> Any:
        model.train_function = step
        if hasattr(model.optimizer, "communication"):
            _build_scheme(model.optimizer, model.trainable_variables)
        if type(model).compute_metrics is keras.Model.compute_metrics:
            with contextlib.suppress(Exception):  # what is wrong with the metrics is raised by the step itself
                _build_metrics(model, iterator.element_spec)
        return step(iterator)

    model.train_function = prepare_and_step


def _build_metrics(model: keras.Model, batch: Any) -> None:
    """Build the metrics that the model is compiled with, for batches of this specification.

    It uses private parts of Keras 3. Only the metrics of models with one output are built, others by the first step.
    """
    _, labels, _ = keras.utils.unpack_x_y_sample_weight(batch)
    metrics = model._compile_metrics
    if not metrics.built and isinstance(labels, tf.TensorSpec) and len(model.outputs) == 1:
        metrics.build(keras.KerasTensor(labels.shape, labels.dtype.name), model.outputs[0])


def _check_compiled(model: keras.Model) -> None:
    if "apply" not in vars(model.optimizer):  # where DistributedOptimizer puts it
        raise ValueError(
            f"The optimizer of model {model.name!r} does not average gradients, so its ranks would train apart: "
            "compile the model with DistributedOptimizer(...), for mixed precision "
            "DistributedOptimizer(LossScaleOptimizer(...))."
        )
    if model.jit_compile:
        raise ValueError("XLA cannot compile Horovod's collectives: compile the model with jit_compile=False.")


def _check_steps(steps: Optional[int]) -> None:
    """Raise ValueError if the ranks would take different numbers of steps in an epoch, as far as these are known."""
    if horovod.differing([steps or 0], "steps"):
        raise ValueError(
            f"The ranks would take different numbers of steps in an epoch, rank {horovod.rank()} {steps}, and wait for "
            'each other for ever: share the data out by partition.epochs(...) or partition.array(..., uneven="trim").'
        )


def _check_models(variables: Sequence[Any]) -> None:
    """Raise ValueError if the ranks' variables differ in number, type, shape or order."""
    kinds = [(variable.dtype, tuple(variable.shape)) for variable in variables]
    if horovod.differing([zlib.crc32(repr(kinds).encode())], "variables"):
        raise ValueError(
            "The ranks have built different models: their variables differ in number, type, shape or order. Build the "
            "same model and optimizer on every rank."
        )


class AverageMetrics(keras.callbacks.Callback):
    """Averages the metrics of an epoch over all ranks at its end.

    The metrics are replaced in place: callbacks after this one, the history and the progress bar see the same numbers
    on every rank. All ranks have the same weight, whatever the size of their share of the data.
    """

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Replace the numbers in `logs`, which all callbacks share."""
        if not logs:
            return
        names = sorted(logs)
        values = tf.constant([float(logs[name]) for name in names], tf.float64)
        logs.update(zip(names, horovod.allreduce(values, name="metrics").numpy().tolist()))


class SynchroniseVariables(keras.callbacks.Callback):
    """Makes the model the same on all ranks at the end of an epoch, before anything is saved.

    Some schemes let the ranks' models drift apart in between: model averaging, block momentum, partial synchronisation.
    """

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Synchronise the trainable variables."""
        scheme = getattr(self.model.optimizer, "communication", None)
        if scheme is not None:
            scheme.synchronise(self.model.trainable_variables)


class CheckpointOnRankZero(keras.callbacks.Callback):
    """Saves the model on rank 0 at the end of each epoch.

    The model is written to another file, which is then renamed, so that at any time there is a complete file or none.

    Args:
        filepath: Ends in `.keras` (model and optimizer) or `.weights.h5`; may contain `{epoch:02d}` (from 1) and
            metrics such as `{val_loss:.3f}`. Its folder is created.

    Raises:
        ValueError: The file name has another ending.
    """

    def __init__(self, filepath: Union[str, os.PathLike[str]]) -> None:
        super().__init__()
        self.filepath = os.fspath(filepath)
        if not self.filepath.endswith((".keras", ".weights.h5")):
            raise ValueError(f"A checkpoint's name ends in .keras or .weights.h5, not like {self.filepath!r}.")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save on rank 0, do nothing on the others."""
        if horovod.rank() == 0:
            save_atomically(self.model, Path(self.filepath.format(epoch=epoch + 1, **(logs or {}))))


def save_atomically(model: keras.Model, path: Path) -> None:
    """Save a model, or only its weights if the name ends in `.weights.h5`; no reader ever sees an incomplete file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, model.save_weights if path.name.endswith(".weights.h5") else model.save)


class ReportProgress(keras.callbacks.Callback):
    """Reports every step, the bytes sent so far, and every epoch's metrics, to the Muster session.

    Args:
        batch_size: Examples in one step of this rank; without it, examples are not counted.
    """

    def __init__(self, batch_size: Optional[int] = None) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.steps_before = 0  # in the epochs before this one
        self.steps = 0  # in this epoch
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Start counting an epoch's steps."""
        self.epoch = epoch + 1
        length = self.params.get("steps")
        # A resumed training may begin with any epoch.
        self.steps_before = epoch * length if length else self.steps_before + self.steps
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Report the step with the metrics of this epoch so far, unless `SaveCheckpoints` skips the step."""
        self.steps = batch + 1
        if logs:
            self._report(logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Report the epoch's metrics, those of the validation among them."""
        self._report(logs)

    def _report(self, logs: Logs) -> None:
        scheme = getattr(self.model.optimizer, "communication", None)
        report(
            self.steps,
            epoch=self.epoch,
            steps=self.params.get("steps"),
            epochs=self.params.get("epochs"),
            examples=self.batch_size and self.batch_size * (self.steps_before + self.steps),
            bytes_sent=scheme and scheme.bytes_sent,
            **(logs or {}),
        )


class SaveCheckpoints(keras.callbacks.Callback):
    """Saves checkpoints in `model.fit`, after every epoch and in between, and resumes in the middle of an epoch.

    It also saves when the platform is about to end a worker of the run (`muster.training.preempted`).

    A resumed epoch takes the batches that it has been trained on already from the data, and skips them: the data must
    come in the same order again, as from `partition.epochs`, or from arrays with `shuffle=False`.

    Args:
        checkpoint: The checkpoint, already restored; call `model.fit` with
            `initial_epoch=checkpoint.position.epoch`.
        every: Number of steps between two checkpoints within an epoch; None for none.
    """

    def __init__(self, checkpoint: Checkpoint, every: Optional[int] = None) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.every = every
        self.position = checkpoint.position
        self._is_resumed = False
        self._looks_at = 0  # total number of steps at which the ranks next check for preemption together
        self._looked: Optional[tuple[int, float]] = None  # their last check: total number of steps, and time
        self._has_saved_at_notice = False

    def on_train_begin(self, logs: Logs = None) -> None:
        """Raise CheckpointError if the folder is of another training; prepare to skip batches already trained on."""
        self.checkpoint.refuse_another_training()
        self.position = self.checkpoint.position
        self._is_resumed = True
        if self.position.step:
            self._pass_over(self.position.step)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Raise ValueError unless this epoch is next; in the first one, restore what other callbacks have changed."""
        if epoch != self.position.epoch:
            raise ValueError(
                f"model.fit begins with epoch {epoch}, and the checkpoint with {self.position.epoch}: "
                "initial_epoch=checkpoint.position.epoch"
            )
        if self._is_resumed:
            self.checkpoint.take_up()
            self._is_resumed = False

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Save after `every` steps, and before a worker is preempted."""
        if batch >= self.position.step:  # not a skipped one
            self.position = self.position.after_step(batch + 1 - self.position.step)
            is_time = bool(self.every) and self.position.total - self.checkpoint.position.total >= (self.every or 0)
            if is_time or (self.position.total >= self._looks_at and self._all_are_told()):
                self.checkpoint.save(self.position)

    def _all_are_told(self) -> bool:
        """Return whether any rank has seen the first notice of a preemption; the result is the same on all ranks.

        The ranks check after the same steps, about once a second: they also agree on the number of steps in between.
        """
        total, now = self.position.total, time.monotonic()
        before, self._looked = self._looked, (total, now)
        pace = (total - before[0]) / max(now - before[1], 1e-3) if before else 0.0
        told, mean = horovod.allreduce(tf.constant([float(preempted()), pace], tf.float64), name="preempted").numpy()
        self._looks_at = total + max(1, int(mean * SECONDS_PER_LOOK))
        is_first = bool(told > 0) and not self._has_saved_at_notice
        self._has_saved_at_notice = self._has_saved_at_notice or is_first
        return is_first

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save, unless there is a checkpoint of the last step already."""
        self.position = self.position.after_epoch()
        self.checkpoint.save(self.position)

    def _pass_over(self, steps: int) -> None:
        """Make `model.fit` take `steps` batches without training on them."""
        train = self.model.train_function

        def take(iterator: Any) -> Dict[str, Any]:
            nonlocal steps
            for _ in range(self.model.steps_per_execution):
                batch = next(iterator)
                steps -= 1
            if steps > 0:
                return {}
            self.model.train_function = train
            # Keras creates the variables of metrics when they are computed for the first time.
            x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
            self.model.compute_metrics(x, y, self.model(x, training=False), weights)
            self.checkpoint.take_up_metrics()
            self.checkpoint.take_up()
            result: Dict[str, Any] = self.model.get_metrics_result()
            return result

        self.model.train_function = take


def callbacks(
    checkpoint: Union[str, os.PathLike[str], None] = None, *, batch_size: Optional[int] = None
) -> List[keras.callbacks.Callback]:
    """Return the callbacks that `model.fit` needs on every rank, in order; append others that use averaged metrics.

    Args:
        checkpoint: File that rank 0 saves the model to after each epoch (see `CheckpointOnRankZero`); None: not saved.
        batch_size: Examples in one step of this rank, to count them (see `ReportProgress`).
    """
    saving = [] if checkpoint is None else [CheckpointOnRankZero(checkpoint)]
    return [BroadcastVariables(), SynchroniseVariables(), AverageMetrics(), *saving, ReportProgress(batch_size)]
