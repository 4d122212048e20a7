"""Checks for everything that would make a launch fail, made before it: each finding comes with its fix.

A check is a function from what is to be launched to findings. Those in :mod:`~muster.doctor.session` look at the script
and at this machine; :mod:`~muster.doctor.workers` launches the workers, asks them, and stops them again.
"""

from __future__ import annotations

from muster.doctor.horovod import try_allreduce
from muster.doctor.report import Finding, Report
from muster.doctor.session import CHECKS, imported_of_horovod
from muster.doctor.workers import visit
from muster.run.cluster import Cluster
from muster.run.request import CheckedRun

__all__ = ["Finding", "Report", "examine"]


def examine(run: Cluster | CheckedRun, *, launch: bool = True) -> Report:
    """Check everything that the start of a cluster needs, and report what would make it or its run fail.

    Args:
        run: what is to be launched; it is not started.
        launch: whether to launch workers like its own for some seconds, which shows what only they can tell, and
            before that to try Horovod on two ranks here, where it is to be used.

    Raises:
        JobError, PlatformUnsupported: the cluster cannot be run as described, and so there is nothing to examine.
    """
    checked = run.check() if isinstance(run, Cluster) else run
    findings = [finding for check in CHECKS for finding in check(checked)]
    trains_here = checked.strategy.name == "horovod" and not checked.platform.python
    if launch and trains_here and all(finding.level != "error" for finding in findings):
        findings += try_allreduce(checked, imported_of_horovod(checked))
    return Report([*findings, *(visit(checked) if launch else ())])
