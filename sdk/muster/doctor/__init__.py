"""What would make a launch fail, found before it: each finding comes with its mend.

A check is a function from what is to be launched to findings. Those in :mod:`~muster.doctor.session` look at the script
and at this machine; :mod:`~muster.doctor.workers` launches the workers, asks them, and stops them again.
"""

from __future__ import annotations

from muster.doctor.report import Checkup, Finding, Report
from muster.doctor.session import CHECKS
from muster.doctor.workers import visit

__all__ = ["Checkup", "Finding", "Report", "examine"]


def examine(checkup: Checkup, *, launch: bool = True) -> Report:
    """Look at everything that a launch would need.

    Args:
        checkup: what is to be launched.
        launch: whether to launch the workers for some seconds, which shows what only they can tell.
    """
    findings = [finding for check in CHECKS for finding in check(checkup)]
    return Report([*findings, *(visit(checkup) if launch else ())])
