"""Use of a worker's GPUs, read from an ``nvidia-smi`` that runs beside the agent and prints every few seconds."""

import contextlib
import os

from .loop import Loop
from .processes import Children, spawn

INTERVAL = 2  # seconds between two measurements
MIB = 1 << 20


class GpuMeter:
    """Measures GPUs by ``nvidia-smi``, which reports nothing for parts of a GPU (MIG).

    Args:
        loop: the agent's event loop.
        processes: the agent's processes.
        devices: UUIDs of the worker's GPUs.
        environ: environment of ``nvidia-smi``, with the ``PATH`` in which it is looked up.

    Attributes:
        busy: how many GPUs are busy, as the sum of their utilizations (0 to 1); None where it is not known.
        memory: bytes of their memory that are in use, by any process; None where it is not known.
    """

    def __init__(self, loop: Loop, processes: Children, devices: "list[str]", environ: "dict[str, str]") -> None:
        self.busy: "float | None" = None
        self.memory: "int | None" = None
        self._loop = loop
        self._devices: "dict[str, tuple[float, int]]" = {}
        self._unread = b""
        self._output, writer = os.pipe()
        argv = ["nvidia-smi", "--query-gpu=uuid,utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
        try:
            pid = spawn(argv + ["-l", str(INTERVAL), "-i", ",".join(devices)], environ, "/", writer)
        except OSError:  # it is not installed here
            os.close(self._output)
            return
        finally:
            os.close(writer)
        processes.expect_end(pid, lambda status: None)
        loop.on_readable(self._output, self._read_output)

    def _read_output(self) -> None:
        data = os.read(self._output, 1 << 12)
        if not data:
            self._loop.forget(self._output)
            os.close(self._output)
            self.busy = self.memory = None
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(line.decode("ascii", "replace"))

    def _take(self, line: str) -> None:
        device, *values = line.split(",")
        self._devices.pop(device, None)  # its last value would count for ever if it is no longer measured
        with contextlib.suppress(ValueError):  # "[N/A]" for a device that is not measured, or an error message
            percent, mebibytes = values
            self._devices[device] = float(percent) / 100, int(mebibytes) * MIB
        measured = self._devices.values()
        self.busy = sum(busy for busy, _ in measured) if measured else None
        self.memory = sum(memory for _, memory in measured) if measured else None
