"""Checks, made before a launch, for everything that would make it fail: each problem found comes with its fix.

A check is a function that takes a checked run and yields findings. The checks in :mod:`~muster.checkup.session` examine
the script and this machine; :mod:`~muster.checkup.workers` launches workers, examines them, and stops them again.
"""

from __future__ import annotations

from muster.checkup.horovod import try_allreduce
from muster.checkup.report import Finding, Report
from muster.checkup.session import CHECKS, imported_for_training
from muster.checkup.workers import probe_workers
from muster.errors import JobError, PlatformError
from muster.run.check import check
from muster.run.checked import CheckedRun
from muster.run.cluster import Cluster
from muster.run.request import RunRequest

__all__ = ["Finding", "Report", "examine"]


def examine(run: Cluster | RunRequest | CheckedRun, *, launch: bool = True) -> Report:
    """Check everything that the start of a cluster needs, and report all that would make the start or the run fail.

    Args:
        run: the run to check; it is not started.
        launch: whether to launch workers like those of the run for some seconds, for the checks that need them, and
            before that, for a Horovod run, to try Horovod with two ranks on this machine.
    """
    try:
        checked = run.check() if isinstance(run, Cluster) else check(run) if isinstance(run, RunRequest) else run
    except (JobError, PlatformError) as error:  # it cannot run as described, so there is nothing more to check
        return Report([Finding.of_error("job", error)])
    findings = [finding for check in CHECKS for finding in check(checked)]
    trains_here = checked.strategy.name == "horovod" and not checked.platform.python
    if launch and trains_here and all(finding.level != "error" for finding in findings):
        findings += try_allreduce(checked, imported_for_training(checked))
    return Report([*findings, *(probe_workers(checked) if launch else ())])
