"""Checks for everything that would make a launch fail, made before it: each finding comes with its fix.

A check is a function from what is to be launched to findings. Those in :mod:`~muster.checkup.session` look at the
script and at this machine; :mod:`~muster.checkup.workers` launches the workers, asks them, and stops them again.
"""

from __future__ import annotations

from muster.checkup.horovod import try_allreduce
from muster.checkup.report import Finding, Report
from muster.checkup.session import CHECKS, imported_of_horovod
from muster.checkup.workers import probe_workers
from muster.errors import JobError, PlatformError
from muster.run.cluster import Cluster
from muster.run.request import CheckedRun, RunRequest, check

__all__ = ["Finding", "Report", "examine"]


def examine(run: Cluster | RunRequest | CheckedRun, *, launch: bool = True) -> Report:
    """Check everything that the start of a cluster needs, and report what would make it or its run fail.

    Args:
        run: what is to be launched; it is not started.
        launch: whether to launch workers like its own for some seconds, which shows what only they can tell, and
            before that to try Horovod on two ranks here, where it is to be used.
    """
    try:
        checked = run.check() if isinstance(run, Cluster) else check(run) if isinstance(run, RunRequest) else run
    except (JobError, PlatformError) as error:  # it cannot be run as described, and so there is nothing to look at
        return Report([Finding.of_error("job", error)])
    findings = [finding for check in CHECKS for finding in check(checked)]
    trains_here = checked.strategy.name == "horovod" and not checked.platform.python
    if launch and trains_here and all(finding.level != "error" for finding in findings):
        findings += try_allreduce(checked, imported_of_horovod(checked))
    return Report([*findings, *(probe_workers(checked) if launch else ())])
