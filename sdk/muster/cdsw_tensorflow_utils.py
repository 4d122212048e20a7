"""The workbench's helpers for TensorFlow, for scripts that were written for them.

from muster.cdsw_tensorflow_utils import run_cluster, tensorboard
"""

from __future__ import annotations

from muster import api
from muster.board.tensorboard import tensorboard
from muster.workbench.workers import session_platform

__all__ = ["run_cluster", "tensorboard"]


def run_cluster(
    n_workers: int,
    n_ps: int,
    cpu: float,
    memory: float,
    nvidia_gpu: int = 0,
    worker_script: str | None = None,
    timeout_seconds: float = 60,
) -> tuple[dict[str, list[str]] | None, str | None]:
    """Train on parameter servers, or start servers for this session to train through; see :func:`muster.run_cluster`.

    Args:
        worker_script: a module's name or a file, with a ``run(cluster, server, task_index)``. None: servers only.
        timeout_seconds: how long the start may take. Training may take any time.

    Returns:
        ``(None, None)`` once the script has run on every worker, else ``(cluster_spec, "grpc://...")``. The servers are
        among ``list_workers()`` of :mod:`muster.cdsw`, whose ``stop_workers()`` ends them.
    """
    spec, session_address = api.run_cluster(
        n_workers, n_ps, cpu, memory, nvidia_gpu, worker_script, timeout_seconds, platform=session_platform()
    )
    return spec, session_address
