"""Real Horovod ranks that cost tenths of a second: forked by one process that has imported TensorFlow already.

For programs that start many short trainings. They must not run anything of TensorFlow before they fork.
"""

import functools
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import horovod.tensorflow  # noqa: F401  so that ranks need not import it
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer
from muster.training import horovod as ranks


@functools.cache
def rendezvous() -> tuple[RendezvousServer, int]:
    """Rendezvous of ranks, and its port. For one group of ranks after the other: it takes 0.5 s to stop."""
    server = RendezvousServer()
    return server, server.start()


class Ranks:
    """So many ranks on this machine, each of which joins the others and calls `work`; as a context they end with it."""

    def __init__(self, size: int, work: Callable[[], None]) -> None:
        server, port = rendezvous()
        gc.freeze()  # else each rank's first full collection writes to, and so copies, all that it has from here
        slots = get_host_assignments(parse_hosts(f"localhost:{size}"), size)
        server.init(slots)
        self._pids = [self._fork(slot, port, work) for slot in slots]

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *exception: object) -> None:
        for rank in range(len(self._pids)):
            self.kill(rank)

    def kill(self, rank: int) -> None:
        """End a rank with SIGKILL, if it has not ended."""
        if self._pids[rank]:
            os.kill(self._pids[rank], signal.SIGKILL)
            os.waitpid(self._pids[rank], 0)
            self._pids[rank] = 0

    def kill_while(self, rank: int, holds: Callable[[], object], seconds: float = 60) -> None:
        """End a rank with SIGKILL while something holds that it alone changes; AssertionError if it never does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            os.kill(self._pids[rank], signal.SIGSTOP)
            os.waitpid(self._pids[rank], os.WUNTRACED)
            if holds():
                return self.kill(rank)
            os.kill(self._pids[rank], signal.SIGCONT)
            time.sleep(0.001)
        raise AssertionError(f"it never held within {seconds} s")

    def wait(self) -> list[int]:
        """The exit codes of those that have not been killed, once all have ended."""
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self._pids if pid]
        self._pids = [0] * len(self._pids)
        return codes

    @staticmethod
    def _fork(slot: object, port: int, work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            names = ("hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
            os.environ.update({f"HOROVOD_{name.upper()}": str(getattr(slot, name)) for name in names})
            os.environ.update(
                HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
                HOROVOD_GLOO_RENDEZVOUS_PORT=str(port),
                HOROVOD_CONTROLLER="gloo",
                HOROVOD_CPU_OPERATIONS="gloo",
                HOROVOD_GLOO_IFACE="lo",
                HOROVOD_CYCLE_TIME="5",  # milliseconds, in place of 1, in which they ask each other what to send
                TF_NUM_INTRAOP_THREADS="1",  # they share the cores
            )
            ranks.init()
            work()
            ranks._library().shutdown()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
