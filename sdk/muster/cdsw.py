"""The workbench's own name for its worker calls: ``import muster.cdsw as cdsw``."""

from muster.workbench.cdsw import await_workers, launch_workers, list_workers, stop_workers

__all__ = ["await_workers", "launch_workers", "list_workers", "stop_workers"]
