"""The worker calls of the workbench, for scripts that were written for it: ``import muster.cdsw as cdsw``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from muster.workbench import workers
from muster.workbench.workers import await_workers, list_workers, stop_workers

__all__ = ["await_workers", "launch_workers", "list_workers", "stop_workers"]


def launch_workers(
    n: int,
    cpu: float,
    memory: float,
    nvidia_gpu: int = 0,
    kernel: str = "python3",
    script: str = "",
    code: str = "",
    accelerator_label_id: int | Mapping[str, str] | None = None,
    resource_profile_id: int | None = None,
    resource_group_id: int | None = None,
    env: Mapping[str, str] | None = None,
    name: str | None = None,
) -> list[dict[str, Any]]:
    """Launch workers as :func:`muster.launch_workers` does, with the arguments of either version of the workbench.

    Args:
        accelerator_label_id, resource_profile_id, resource_group_id: these choose among the workbench's hardware, and
            are ignored with a warning. Older scripts have ``env`` at the position of the first.
    """
    if isinstance(accelerator_label_id, Mapping):
        accelerator_label_id, env = None, accelerator_label_id
    chosen = {
        "accelerator_label_id": accelerator_label_id,
        "resource_profile_id": resource_profile_id,
        "resource_group_id": resource_group_id,
    }
    ignored = [option for option, value in chosen.items() if value is not None]
    if ignored:
        warnings.warn(
            f"ignored, as Muster does not choose the workbench's hardware: {', '.join(ignored)}", stacklevel=2
        )
    return workers.launch_workers(n, cpu, memory, nvidia_gpu, kernel, script, code, env, name=name or "worker")
