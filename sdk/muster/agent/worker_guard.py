"""The guard in a worker of a pool: it forks the agents of one run after another on the worker that the pool keeps.

The pool's own agent starts it as a command of its worker, and the session communicates with it over that command's
input and output. It ends when either of them ends, with everything that it has forked.
"""

import os

from . import linux
from .channels import PipeChannel
from .claims import Claim
from .guard import Guard
from .needs import what_lacks
from .places import settle
from .project import CACHE_BYTES
from .ssh_server import sshd_or_none

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 78  # characters of a folder with the scratch folders of runs, in which sockets need paths of less than 108


class WorkerGuard(Guard):
    """The guard of one worker of a pool.

    Args:
        channel: the channel to the session.
        address: the worker's own address, at which others reach it.
    """

    def __init__(self, channel: PipeChannel, address: str) -> None:
        super().__init__(channel)
        self._address = address
        self._environ = dict(os.environ)
        # The pool's agent removes this folder in the end. Files of projects are kept there between runs.
        scratch = os.environ["MUSTER_SCRATCH"]
        self._runs = os.path.join(scratch, "runs")
        self._cache = {"folder": os.path.join(scratch, "cache"), "most": CACHE_BYTES}
        self._satisfied: "set[str]" = set()  # needs that the worker was found to meet

    def _do_launch(  # type: ignore[override]
        self, run_key: str, workers: "list[dict[str, Any]]"
    ) -> "dict[str, Any]":
        os.makedirs(self._runs, 0o700, exist_ok=True)
        settled = []
        for config in workers:
            lack = self._lack_of(config["needs"])
            if lack:
                return {"refused": config["name"], "why": lack.rstrip(".")}
            around = self._runs if len(self._runs) <= LONGEST else ""
            settled.append(dict(settle(config, around), address=self._address, cache=self._cache))
        return super()._do_launch(
            run_key=run_key,
            workers=settled,
            session=None,
            environ=self._environ,
            claims={"cores": [], "gpus": _devices(self._environ)},
            sshd=sshd_or_none() if any(config["ssh"] for config in workers) else None,
        )

    def _do_warmth(self) -> "dict[str, Any]":
        pid = self._templates.pid
        memory = (linux.proportional_memory(pid) or linux.resident_memory(pid)) if pid else 0
        return dict(super()._do_warmth(), memory=memory)

    def _lack_of(self, needs: "dict[str, Any] | None") -> str:
        """Return, in words, which needs of a script the worker does not meet; met needs are not checked again."""
        if not needs:
            return ""
        key = repr(sorted(needs.items()))
        if key not in self._satisfied:
            lack = what_lacks(needs, self._environ)
            if lack:
                return lack
            self._satisfied.add(key)
        return ""

    def _claim_gpus(self, claims: "dict[str, Any]", count: int) -> "Claim | None":
        """Return a claim on the first ``count`` GPUs of this worker, all of them the pool's; None if it has fewer."""
        own = Claim()
        own.devices = claims["gpus"][:count]
        return own if len(own.devices) == count else None

    def _close_inherited(self) -> None:
        super()._close_inherited()
        linux.redirect_to_null(0, 1, 2)  # an agent that held them would keep the command's output open


def _devices(environ: "dict[str, str]") -> "list[str]":
    """Return the GPUs that the worker was given."""
    return [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name not in ("", "-1")]


def main(address: str) -> None:
    """Run the guard that answers on standard input and output, in the worker that others reach at this address."""
    reader, writer = os.dup(0), os.dup(1)
    linux.redirect_to_null(0, 1)
    WorkerGuard(PipeChannel(reader, writer), address).run()
