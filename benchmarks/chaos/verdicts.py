"""Whether a run has ended as its faults demand: judged by what the error has as data, not by its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.errors import MusterError

from benchmarks.chaos.faults import Case, Fault

Named = tuple[str | None, int | None]  # worker and rank of a process; no worker for what is none


def is_right(case: Case, error: MusterError | None) -> bool:
    """Return whether the run has ended as one of its faults demands.

    Of an error, its class and what it has as data of the failure must be those of the fault's verdict, and everything
    that it names must be at fault: a tie with a process to which nothing was done is wrong.
    """
    if error is None:
        return any(not fault.verdict.error for fault in case.faults)
    guilty = [fault for fault in case.faults if fault.verdict.error]
    named = names(error)
    return any(_fits(fault, case, error, named) for fault in guilty) and all(
        any(_is_at_fault(one, fault, case) for fault in guilty) for one in named
    )


def names(error: MusterError) -> list[Named]:
    """All that an error names: first what has failed, then what may as well have, or is the other end of a link."""
    first: Named = (error.worker, getattr(error, "rank", None))
    return [first, *((other["worker"], other["rank"]) for other in error.failure.get("others", ()))]


def _fits(fault: Fault, case: Case, error: MusterError, named: list[Named]) -> bool:
    verdict = fault.verdict
    is_kind = type(error).__name__ in verdict.error.split(" or ") and _has(error.failure, verdict.facts)
    is_pair = _victim(fault)[0] == "link"
    return is_kind and _is_at_fault(named[0], fault, case) and (not is_pair or len({*named}) == 2)


def _has(failure: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    return all(failure.get(name) == value for name, value in facts.items())


def _is_at_fault(named: Named, fault: Fault, case: Case) -> bool:
    """Return whether what an error names is what a fault was put into."""
    what, which = _victim(fault)
    worker, rank = named
    worker, shape = worker or "", case.shape
    if what == "rank":
        return named == shape.source(int(which))
    if what == "link":
        return named in [shape.source(int(rank)) for rank in which.split()]
    if what == "worker":
        return worker == which
    if what == "beside":
        return worker in shape.names and shape.host_of(worker) == shape.host_of(which)
    if what == "guard":  # of all workers here: the error names one of them, and its message the guard
        return worker in shape.names and rank is None
    return which != "" or named == (None, None)  # the launcher, and perhaps a rank that it lets go


def _victim(fault: Fault) -> tuple[str, str]:
    what, _, which = (fault.verdict.victim or fault.victim).partition(" ")
    return what, which
