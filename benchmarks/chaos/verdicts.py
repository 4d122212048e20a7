"""Judge whether a run has ended as its faults demand, by the fields of its error, not by its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.errors import MusterError
from muster.failure.failures import CRASHES

from benchmarks.chaos.faults import NOTHING, Case, Fault

Named = tuple[str | None, int | None]  # worker and rank of a process; None where it has none


def is_right(case: Case, error: MusterError | None) -> bool:
    """Return whether the run has ended as one of its faults demands.

    An error's class and the data of its failure must be those of the fault's verdict, and every process that it names
    must be at fault: a tie with a process that had no fault is wrong. The exception is a tie of one that crashed, or
    exited without a word, with peers that abort when they lose it: connections are closed before a process counts as
    ended, so that on a busy machine peers may end before it, and nothing tells who was first.
    """
    if error is None:
        return any(not fault.verdict.error or NOTHING in fault.verdict.error.split(" or ") for fault in case.faults)
    guilty = [fault for fault in case.faults if fault.verdict.error]
    named = names(error)
    if case.reaction == "abort" and any(map(_is_overtaken, guilty)):
        named = [one for one in named if any(_is_at_fault(one, fault, case) for fault in guilty)]
    return any(_fits(fault, case, error, named) for fault in guilty) and all(
        any(_is_at_fault(one, fault, case) for fault in guilty) for one in named
    )


def names(error: MusterError) -> list[Named]:
    """Return all processes that an error names: the failed one first, then others that may have failed first as well.

    Of a cut link, these are its two ends.
    """
    first: Named = (error.worker, getattr(error, "rank", None))
    return [first, *((other["worker"], other["rank"]) for other in error.failure.get("others", ()))]


def _fits(fault: Fault, case: Case, error: MusterError, named: list[Named]) -> bool:
    verdict = fault.verdict
    is_kind = type(error).__name__ in verdict.error.split(" or ") and _has(error.failure, verdict.facts)
    is_pair = _victim(fault)[0] == "link"
    return is_kind and bool(named) and _is_at_fault(named[0], fault, case) and (not is_pair or len({*named}) == 2)


def _is_overtaken(fault: Fault) -> bool:
    """Return whether peers that abort when they lose the fault's victim may seem to have ended before it.

    Not so if it was killed or raised an exception: that is no consequence of an end, whenever that was.
    """
    facts = fault.verdict.facts
    return facts.get("signal") in CRASHES or facts.get("kind") == "exit"


def _has(failure: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    return all(failure.get(name) == value for name, value in facts.items())


def _is_at_fault(named: Named, fault: Fault, case: Case) -> bool:
    """Return whether a process that an error names is one that the fault's verdict blames."""
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
    if what == "guard":  # the guard of all workers here: the error names one of these, and its message the guard
        return worker in shape.names and rank is None
    return which != "" or named == (None, None)  # the launcher, or perhaps a rank that it lets go


def _victim(fault: Fault) -> tuple[str, str]:
    what, _, which = (fault.verdict.victim or fault.victim).partition(" ")
    return what, which
