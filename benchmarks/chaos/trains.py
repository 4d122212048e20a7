"""The script of restarts: ranks train a small network, with checkpoints from which it goes on bit for bit the same.

    trains.py ORDERS

ORDERS is JSON like that of ``ranks.py``, but ``faults`` are by attempt and rank ("1 0"), ``awaited`` are the attempts
with faults from outside, ``checkpoints`` is a folder, and in each attempt the ranks meet in a folder of their own; they
send each other gradients themselves, or by Horovod (``topology`` is ``all`` or ``allreduce``). Each rank leaves
``weights-RANK``, a hash of what it has learnt.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import ranks  # type: ignore[import-not-found]  # it is beside this script
from muster.training.progress import report

STEPS = 60
SAVES = 5  # steps between two checkpoints
INPUTS, HIDDEN, BATCH = 8, 16, 32


class Model:
    """A network with one hidden layer, its momentum, and the random state that draws its data and its dropout."""

    def __init__(self, rank: int) -> None:
        same = np.random.default_rng(7)
        self.weights = [same.normal(size=(INPUTS, HIDDEN)), same.normal(size=(HIDDEN, 1))]
        self.momentum = [np.zeros_like(weight) for weight in self.weights]
        self.own = np.random.default_rng(100 + rank)

    def gradient(self) -> list[Any]:
        """Return the gradient of one batch of this rank's."""
        inputs = self.own.normal(size=(BATCH, INPUTS))
        hidden = np.tanh(inputs @ self.weights[0]) * (self.own.random((BATCH, HIDDEN)) > 0.1)
        error = hidden @ self.weights[1] - np.sin(inputs.sum(axis=1, keepdims=True))
        back = (error @ self.weights[1].T) * (1 - hidden**2)
        return [inputs.T @ back / BATCH, hidden.T @ error / BATCH]

    def apply(self, gradients: list[Any]) -> None:
        """Take a step of gradient descent with momentum."""
        for weight, momentum, gradient in zip(self.weights, self.momentum, gradients, strict=True):
            momentum *= 0.9
            momentum += gradient
            weight -= 0.01 * momentum

    def hash(self) -> str:
        """Return a hash of all weights and momenta."""
        return hashlib.sha256(b"".join(part.tobytes() for part in [*self.weights, *self.momentum])).hexdigest()


def main(orders: dict[str, Any]) -> None:
    """Train from the newest checkpoint to the end, with this rank's fault in this attempt."""
    rank, size = ranks.rank_and_size()
    attempt = os.environ["MUSTER_ATTEMPT"]
    orders["folder"] = os.path.join(orders["folder"], attempt)
    os.makedirs(orders["folder"], exist_ok=True)
    fault = orders["faults"].get(f"{attempt} {rank}", {})
    ranks.strike_at(orders, rank, fault, "start")
    checkpoints = Path(orders["checkpoints"])
    model = Model(rank)
    first = restore(model, checkpoints, rank, size)
    peers: Peers = ByHorovod() if orders["topology"] == "allreduce" else BySockets(orders, rank, size)
    ranks.note(orders, "ready", rank)
    if attempt in orders["awaited"]:  # a fault from outside must end this attempt, which never ends by itself
        train(model, range(first, first + SAVES), orders, fault, peers)
        ranks.wait_for_strikes({**orders, "awaits": True})
        train(model, range(first + SAVES, first + 3 * SAVES), orders, fault, peers)
        time.sleep(ranks.PATIENCE)
    train(model, range(first, STEPS), orders, fault, peers)
    ranks.strike_at(orders, rank, fault, "end")
    peers.part()
    (checkpoints / f"weights-{rank}").write_text(model.hash())


def train(model: Model, steps: range, orders: dict[str, Any], fault: dict[str, Any], peers: Peers) -> None:
    """Take steps, and save a checkpoint every ``SAVES`` of them."""
    rank, _ = ranks.rank_and_size()
    for step in steps:
        ranks.strike_at(orders, rank, fault, step)
        model.apply(average(model.gradient(), peers))
        report(step=step + 1, steps=STEPS)
        if (step + 1) % SAVES == 0:
            save(model, Path(orders["checkpoints"]), rank, step + 1)


def average(gradients: list[Any], peers: Peers) -> list[Any]:
    """Return the mean over all ranks, added in the order of the ranks, so that it is the same to the last bit."""
    found = peers.gather(np.concatenate([gradient.ravel() for gradient in gradients]))
    parts = np.split(sum(found) / len(found), np.cumsum([gradient.size for gradient in gradients])[:-1])
    return [part.reshape(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]


class Peers(Protocol):
    """The connections of a rank to all others."""

    def gather(self, values: Any) -> list[Any]:
        """Return the values of all ranks, in their order; called by all of them at once."""

    def part(self) -> None:
        """End the connections, once all ranks have come so far."""


class BySockets:
    """Connections of their own, to whose loss ranks react as the orders say."""

    def __init__(self, orders: dict[str, Any], rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._reaction = orders["reaction"]
        self._outgoing, self._incoming = self._connections = ranks.meet(orders, rank, size)

    def gather(self, values: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        found = {self._rank: values}
        try:
            for connection in self._outgoing:
                connection.sendall(np.array([self._rank], dtype=float).tobytes() + values.tobytes())
            for connection in self._incoming:
                told = np.frombuffer(receive(connection, 8 * (1 + values.size)))
                found[int(told[0])] = told[1:]
        except ConnectionError as error:
            ranks.react(self._reaction, error)
        return [found[number] for number in range(self._size)]

    def part(self) -> None:
        """End the connections."""
        ranks.part(self._connections)


class ByHorovod:
    """Horovod's, whose collectives fail by themselves when a rank is gone."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd

    def gather(self, values: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        return [*self._hvd.allgather(values[np.newaxis]).numpy()]

    def part(self) -> None:
        """Wait for all ranks: Horovod ends when one of them does."""
        self.gather(np.zeros(1))


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes. Raises ConnectionError."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError(104, "Connection reset by peer")
        data += more
    return data


def save(model: Model, folder: Path, rank: int, step: int) -> None:
    """Write this rank's part of a checkpoint."""
    path = folder / f"step-{step:04}-{rank}.json"
    arrays = [part.tolist() for part in [*model.weights, *model.momentum]]  # JSON keeps floats to the last bit
    path.with_suffix(".part").write_text(json.dumps([arrays, model.own.bit_generator.state]))
    path.with_suffix(".part").rename(path)


def restore(model: Model, folder: Path, rank: int, size: int) -> int:
    """Go on from the newest checkpoint that all ranks have written, and return its step; 0 where there is none."""
    for step in range(STEPS, 0, -SAVES):
        paths = [folder / f"step-{step:04}-{number}.json" for number in range(size)]
        if all(path.exists() for path in paths):
            arrays, state = json.loads(paths[rank].read_text())
            for part, values in zip([*model.weights, *model.momentum], arrays, strict=True):
                part[:] = values
            model.own.bit_generator.state = state
            return step
    return 0


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
