"""CNTK 2.7 under MPI: a small classifier, data-parallel, with 1-bit gradients, or with block momentum.

    run_cluster(n_workers=2, strategy="mpi", python="/path/to/python3.6", args=["--method", "1-bit"],
                worker_script="worker_scripts/cntk_distributed.py")

Every rank makes its own share of the examples, points in one of three clouds, so nothing has to be read or downloaded.
docs/other-frameworks.md says how CNTK is installed.
"""

import argparse
import os
from typing import Any, Tuple

import cntk
import numpy as np
from muster.training import report

CLASSES, FEATURES = 3, 20


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=["data-parallel", "1-bit", "block-momentum"], default="data-parallel")
    parser.add_argument("--steps", type=int, default=100, help="minibatches of each rank (default: 100)")
    parser.add_argument("--batch-size", type=int, default=32, help="examples in one of them (default: 32)")
    return parser.parse_args()


def distributed(learner: Any, method: str, batch_size: int) -> Any:
    """Return a learner that averages over all ranks by the given method."""
    if method == "block-momentum":
        block = 10 * batch_size * cntk.Communicator.num_workers()
        return cntk.block_momentum_distributed_learner(learner, block_size=block)
    bits = 1 if method == "1-bit" else 32
    return cntk.data_parallel_distributed_learner(learner, num_quantization_bits=bits)


def examples(random: np.random.RandomState, centres: np.ndarray, count: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return points around the centres, and the classes that they belong to, one-hot."""
    classes = random.randint(CLASSES, size=count)
    points = centres[classes] + random.normal(size=(count, FEATURES))
    return points.astype(np.float32), np.eye(CLASSES, dtype=np.float32)[classes]


def main() -> None:
    arguments = parse_arguments()
    cntk.try_set_default_device(cntk.cpu() if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1" else cntk.gpu(0))
    rank = cntk.Communicator.rank()
    centres = np.random.RandomState(0).normal(size=(CLASSES, FEATURES))
    random = np.random.RandomState(1 + rank)

    x, y = cntk.input_variable(FEATURES), cntk.input_variable(CLASSES)
    model = cntk.layers.Sequential([cntk.layers.Dense(32, cntk.relu), cntk.layers.Dense(CLASSES)])(x)
    loss, error = cntk.cross_entropy_with_softmax(model, y), cntk.classification_error(model, y)
    learner = cntk.sgd(model.parameters, cntk.learning_parameter_schedule_per_sample(0.01))
    learner = distributed(learner, arguments.method, arguments.batch_size)
    trainer = cntk.Trainer(model, (loss, error), [learner])

    for step in range(1, arguments.steps + 1):
        points, classes = examples(random, centres, arguments.batch_size)
        trainer.train_minibatch({x: points, y: classes})
        report(step, steps=arguments.steps, loss=trainer.previous_minibatch_loss_average)

    points, classes = examples(np.random.RandomState(0), centres, 1000)
    accuracy = 1 - trainer.test_minibatch({x: points, y: classes})
    report(accuracy=accuracy)
    print("rank {}: accuracy {:.3f}".format(rank, accuracy), flush=True)
    cntk.Communicator.finalize()  # without it, ranks that are done would leave the others waiting


if __name__ == "__main__":
    main()
