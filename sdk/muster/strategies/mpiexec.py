"""Detection of the MPI implementation that this machine's ``mpiexec`` belongs to, by ``mpiexec --version``."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from typing import NamedTuple

from muster.errors import JobError, PlatformUnsupported
from muster.text.arguments import Argument, ArgumentText

MPIEXEC = "mpiexec"  # name of the launcher in every MPI
FLAVOURS = {"Open MPI": r"OpenRTE|Open MPI|PRRTE", "MPICH": r"HYDRA"}
MENDED = (4, 2)  # version of MPICH


class Mpiexec(NamedTuple):
    """The launcher of an MPI.

    Attributes:
        path: the launcher's path.
        flavour: the implementation, ``Open MPI`` or ``MPICH``.
        may_hang: True if ranks of it on several machines may hang in ``MPI_Finalize``, as those of MPICH do that was
            built for UCX before 4.2. There, https://github.com/pmodels/mpich/pull/6596 took out a barrier, at which the
            first ranks to end no longer answered the others.
    """

    path: str
    flavour: str
    may_hang: bool = False


@functools.lru_cache
def find_mpiexec(program: str) -> Mpiexec:
    """Return the launcher of that name or path.

    Raises:
        PlatformUnsupported: no MPI is installed here.
        JobError: there is no such program, or it is not the launcher of an MPI that Muster knows.
    """
    path = shutil.which(os.path.expanduser(program))
    if path is None:
        raise (PlatformUnsupported if program == MPIEXEC else JobError)(
            f"There is no {program!r} here, which starts the ranks of an MPI program.",
            advice=ArgumentText(
                "install openmpi-bin or mpich, on the workers too; or ", Argument("mpiexec", ""), " the path of one"
            ),
        )
    path = os.path.abspath(path)
    try:
        said = subprocess.run([path, "--version"], capture_output=True, timeout=30, text=True, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobError(f"{path} cannot be asked which MPI it belongs to: {error}.") from error
    for flavour, words in FLAVOURS.items():
        if re.search(words, said.stdout):
            return Mpiexec(path, flavour, flavour == "MPICH" and _is_before_mended(said.stdout))
    raise JobError(
        f"{path} is the launcher of neither Open MPI nor MPICH.",
        details=(said.stdout + said.stderr)[-2000:],
        advice=ArgumentText(Argument("mpiexec", ""), " the path of one that is"),
    )


def _is_before_mended(said: str) -> bool:
    version = re.search(r"Version:\s+(\d+)\.(\d+)", said)
    return version is not None and (int(version[1]), int(version[2])) < MENDED and "ch4:ucx" in said
