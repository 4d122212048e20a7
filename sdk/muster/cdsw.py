"""The worker functions under the workbench's own module name: ``import muster.cdsw as cdsw``."""

from muster.workbench.cdsw import await_workers, launch_workers, list_workers, stop_workers

__all__ = ["await_workers", "launch_workers", "list_workers", "stop_workers"]
