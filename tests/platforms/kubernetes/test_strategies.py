"""Strategies whose launchers run on a worker, as the session does not reach the pods. On a real Kubernetes."""

from __future__ import annotations

import pytest

from tests.platforms.kubernetes.space import Space

TENSORFLOW = {"memory": 2, "cpu": 0.8, "timeout_seconds": 200}
HOROVOD = (
    "import horovod.tensorflow as hvd, tensorflow as tf\n"
    "hvd.init()\n"
    "print(hvd.rank(), float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum)))\n"
)
MPI = "import os\nprint('rank', os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK'])\n"


@pytest.mark.slow
def test_horovodrun_logs_in_to_pods_from_a_worker(space: Space) -> None:
    found = space.run(HOROVOD, 2, strategy="horovod", launcher="horovodrun", tunnel=True, **TENSORFLOW)
    assert found.logs("worker-1").splitlines()[-1] == "1 3.0"


def test_mpiexec_logs_in_to_pods_from_a_worker(space: Space) -> None:
    found = space.run(MPI, 2, strategy="mpi", tunnel=True)
    assert found.logs("worker-1").splitlines()[-1] == "rank 1"
