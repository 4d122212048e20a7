"""An MPI program in plain Python: every rank adds its number, and all of them get the sum.

    run_cluster(n_workers=2, strategy="mpi", worker_script="worker_scripts/mpi_allreduce.py", python="/path/to/python")
    mpiexec -n 2 python mpi_allreduce.py

Needs no package, so that it shows on any interpreter from Python 3.6 on whether MPI works there; a program that does
more would use mpi4py. MPI's C functions are called as they are. Only the handles differ: Open MPI's are addresses,
MPICH's are numbers.
"""

import ctypes
import os
import platform
from typing import Union

from muster.training import report


class OpenMPI:
    """Handles of Open MPI, which are the addresses of objects in its library."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
        self.world, self.double, self.sum = map(self._address, ("comm_world", "double", "op_sum"))

    def _address(self, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.library, "ompi_mpi_" + name)))


class MPICH:
    """Handles of MPICH, and of all MPIs with the same binary interface."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libmpich.so.12", mode=ctypes.RTLD_GLOBAL)
        self.world, self.double, self.sum = map(ctypes.c_int, (0x44000000, 0x4C00080B, 0x58000003))


def main() -> None:
    mpi: Union[OpenMPI, MPICH] = OpenMPI() if "OMPI_COMM_WORLD_RANK" in os.environ else MPICH()
    rank, size = ctypes.c_int(), ctypes.c_int()
    mine, total = ctypes.c_double(), ctypes.c_double()
    mpi.library.MPI_Init(None, None)
    mpi.library.MPI_Comm_rank(mpi.world, ctypes.byref(rank))
    mpi.library.MPI_Comm_size(mpi.world, ctypes.byref(size))
    mine.value = rank.value + 1
    mpi.library.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, mpi.double, mpi.sum, mpi.world)
    print("rank {} of {} on Python {}: {:g}".format(rank.value, size.value, platform.python_version(), total.value))
    report(total=total.value)
    mpi.library.MPI_Finalize()


if __name__ == "__main__":
    main()
