"""Checks of the answers of guards on hosts and in pools: any process of the same user there could forge them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from muster.agent.fields import items, like, number, one_of, optional, string, text, whole
from muster.errors import HostUnreachable
from muster.job import Status, Worker

Check = Callable[[Any], Any]

MOST_GPUS = 1024
MOST_WORKERS = 1 << 16
ADDRESS = re.compile(r"[0-9A-Za-z.:%_-]{0,100}\Z")  # an interface may follow it, and it may be empty

_address = like(ADDRESS, "an address")
_time = optional(number(0))
HELLO: dict[str, Check] = {
    "folder": string,
    "guard": items(whole(1), 2),
    "python": string,
    "cores": whole(1),
    "memory": whole(0),
    "gpus": items(string, MOST_GPUS),
    "time": number(0),
    "session": _address,
    "address": _address,
    "route": _address,
}
WORKER: dict[str, Check] = {
    "id": string,
    "name": string,
    "status": one_of(*(status.value for status in Status)),
    "address": optional(_address),
    "created_at": _time,
    "placed_at": _time,
    "running_at": _time,
    "finished_at": _time,
    "exit_code": optional(whole(0, 255)),
    "signal": optional(whole(1, 127)),
    "reason": optional(text(4000)),
}


def checked(answer: Mapping[str, Any], checks: Mapping[str, Check], host: str) -> dict[str, Any]:
    """Return the known fields of an answer. Raises HostUnreachable where one is invalid."""
    found = {}
    for name, check in checks.items():
        try:
            found[name] = check(answer.get(name))
        except (ValueError, TypeError, AttributeError) as error:
            raise HostUnreachable(
                f"The workers' guard on {host} talks nonsense: {name} must be {error}.",
                advice=f"see who else runs programs as your user on {host}",
            ) from None
    return found


def workers_of(answer: Mapping[str, Any], handles: Collection[str], host: str, offset: float) -> dict[str, Worker]:
    """Return the workers that a guard reports, by handle, with times by this machine's clock.

    Args:
        answer: the guard's answer.
        handles: handles of the guard's workers; others that it reports are ignored.
        host: the guard's host.
        offset: seconds by which the host's clock is ahead.

    Raises:
        HostUnreachable: a worker's facts are invalid.
    """
    told = checked(answer, {"workers": items(dict, MOST_WORKERS)}, host)["workers"]
    found = {}
    for facts in told:
        fields = checked(facts, WORKER, host)
        times = {name: fields[name] - offset for name in fields if name.endswith("_at") and fields[name] is not None}
        worker = Worker(**{**fields, **times, "status": Status(fields["status"])})
        if worker.id in handles:
            found[worker.id] = worker
    return found
