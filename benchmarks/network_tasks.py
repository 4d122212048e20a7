"""The tasks of ``network_servers``: asynchronous training with parameter servers, in TensorFlow 1's style.

    python network_tasks.py CLUSTER JOB INDEX FILE LAYERS STEPS

The model is that of ``network_ranks`` without biases. Each worker pulls the parameters, computes, and pushes its
gradients without waiting for the others. It measures only while all of them train, and writes the seconds of each step
to FILE-INDEX.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.network_schemes import BATCH_SIZE, WIDTH

WARM_UP = 2  # steps


def work(
    server: tf.distribute.Server, cluster: tf.train.ClusterSpec, index: int, layers: int, steps: int
) -> list[float]:
    """Train as one worker, and return the seconds of each step."""
    v1 = tf.compat.v1
    workers = cluster.num_tasks("worker")
    with tf.Graph().as_default():
        with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")):
            kernels = [v1.get_variable(f"kernel_{layer}", [WIDTH, WIDTH]) for layer in range(layers)]
            arrived, done = (v1.get_variable(name, initializer=0, trainable=False) for name in ("arrived", "done"))
            arrive, finish = arrived.assign_add(1, use_locking=True), done.assign_add(1, use_locking=True)
            random = np.random.RandomState(index)
            x = tf.constant(random.normal(size=(BATCH_SIZE, WIDTH)), tf.float32)
            labels = tf.constant(random.randint(0, WIDTH, BATCH_SIZE))
            for kernel in kernels[:-1]:
                x = tf.nn.relu(x @ kernel)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x @ kernels[-1]))
            train = v1.train.GradientDescentOptimizer(0.001).minimize(loss)
        config = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
        with v1.train.MonitoredTrainingSession(server.target, is_chief=index == 0, config=config) as session:
            session.run(arrive)
            while session.run(arrived) < workers:
                time.sleep(0.05)
            for _ in range(WARM_UP):
                session.run(train)
            taken = []
            for _ in range(steps):
                started = time.perf_counter()
                session.run(train)
                taken.append(time.perf_counter() - started)
            session.run(finish)
            while session.run(done) < workers:  # keep training while others still measure
                session.run(train)
    return taken


def main() -> None:
    spec, job, index, out, layers, steps = sys.argv[1:]
    cluster = tf.train.ClusterSpec(json.loads(spec))
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=4)
    server = tf.distribute.Server(cluster, job_name=job, task_index=int(index), protocol="grpc", config=config)
    if job == "ps":
        server.join()
    taken = work(server, cluster, int(index), int(layers), int(steps))
    Path(f"{out}-{index}.json").write_text(json.dumps(taken))


if __name__ == "__main__":
    main()
