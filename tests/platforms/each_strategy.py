"""A short training for each strategy, for ways to workers that the strategies' own tests do not take."""

from __future__ import annotations

import re
import shutil
from typing import Any, NamedTuple

import muster
import pytest

PROCESSES = "import os\nprint('trained', os.environ['RANK'])\n"
MPI = "import os\nprint('trained', os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK'])\n"
HOROVOD = """
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
assert float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum)) == 3.0
print("trained", hvd.rank())
"""
MULTI_WORKER = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
assert float(strategy.reduce("SUM", strategy.run(lambda: tf.ones(())), axis=None)) == 2.0
print("trained", strategy.cluster_resolver.task_id)
"""
SERVERS = """
import tensorflow as tf
def run(cluster, server, task_index):
    with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        variable = tf.compat.v1.get_variable("variable", initializer=2.0)
        with tf.compat.v1.Session(server.target) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            assert float(session.run(variable)) == 2.0
    print("trained", task_index)
"""
# Each worker adds one to a variable on each server, and then waits for the others.
ADDS_UP = """\
import os, time
import tensorflow as tf
tf1 = tf.compat.v1

def run(cluster, server, task_index):
    n, totals = cluster.num_tasks('worker'), []
    with tf.Graph().as_default():
        for index in range(cluster.num_tasks('ps')):
            with tf.device(f'/job:ps/task:{index}'):
                totals.append(tf1.get_variable(f'total-{index}', initializer=0.0, use_resource=True))
        add = [total.assign_add(1.0, use_locking=True) for total in totals]
        missing = tf1.report_uninitialized_variables()
        with tf1.Session(server.target) as session:
            if not task_index:
                session.run([total.initializer for total in totals])
            while session.run(missing).size:
                time.sleep(0.1)
            session.run(add)
            while session.run(totals) != [n] * len(totals):
                time.sleep(0.1)
            print('all have added', os.uname().nodename, len(totals), flush=True)
"""


class Training(NamedTuple):
    """A training: its script, the strategy with its options, and how many parameter servers it has."""

    script: str
    options: dict[str, Any]
    n_ps: int = 0

    def check(self, cluster: muster.Cluster) -> None:
        """Fail unless both of its workers have trained."""
        for rank in range(2):
            said = cluster.logs(f"worker-{rank}")
            assert re.search(rf"^trained {rank}$", said, re.MULTILINE), said


def _mpi(program: str) -> Any:
    found = shutil.which(f"mpiexec.{program}")
    missing = pytest.mark.skipif(found is None, reason=f"mpiexec.{program} is not installed here")
    return pytest.param(Training(MPI, {"strategy": "mpi", "mpiexec": found}), id=f"mpi by {program}", marks=missing)


each_strategy = pytest.mark.parametrize(
    "training",
    [
        pytest.param(Training(PROCESSES, {"strategy": "processes"}), id="processes"),
        pytest.param(Training(MULTI_WORKER, {"strategy": "multi_worker"}), id="multi_worker"),
        pytest.param(Training(HOROVOD, {"strategy": "horovod", "launcher": "horovodrun"}), id="horovod by horovodrun"),
        pytest.param(Training(HOROVOD, {"strategy": "horovod", "launcher": "agents"}), id="horovod by agents"),
        _mpi("openmpi"),
        _mpi("mpich"),
        pytest.param(Training(SERVERS, {"strategy": "parameter_server"}, 1), id="parameter_server"),
    ],
)
TENSORFLOW: dict[str, Any] = {"memory": 1.5, "timeout_seconds": 240, "run_timeout": 240}
