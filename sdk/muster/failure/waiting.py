"""Search for the processes that hold up a run: told from where each stands and how its connections do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.agent import wire

Source = tuple[str, int | None]  # a process: its worker and its rank


class Verdict(NamedTuple):
    """The process that holds up the others, and why that is thought; with the other end where a link is cut."""

    source: Source
    why: str = ""
    other: Source | None = None


def who_holds_up(silent: Sequence[Source], answers: Mapping[Source, wire.Stacks]) -> Verdict:
    """The process that the others wait for.

    Args:
        silent: the processes of which nothing has been heard, longest ago first.
        answers: what their agents say of them.
    """
    known = [source for source in silent if source in answers]
    stopped = [source for source in known if answers[source].is_stopped]
    if stopped:
        return Verdict(stopped[0], "It has been stopped: by SIGSTOP, or by a debugger.")
    cut = _cut_link(answers)
    if cut:
        return cut
    unread = {source: sum(bool(c.unread) for c in answers[source].connections) for source in known}
    most = max(unread.values(), default=0)
    readers = [source for source in silent if unread.get(source) == most]
    if most and len(readers) == 1:
        return Verdict(readers[0], "It does not read what the others have sent.")
    stuck = [source for source in known if is_in_own_code(answers[source].text)]
    return Verdict((stuck or list(silent))[0])


def _cut_link(answers: Mapping[Source, wire.Stacks]) -> Verdict | None:
    """The two ends of the connection on which most attempts have got no answer."""
    owners = {(c.local, c.remote): source for source, answer in answers.items() for c in answer.connections}
    attempts = [(c.unanswered, source, c) for source, answer in answers.items() for c in answer.connections]
    unanswered, source, connection = max(attempts, key=lambda item: item[0], default=(0, ("", None), None))
    if not unanswered or connection is None:
        return None
    why = f"Nothing that it sends to {connection.remote} gets an answer: the network between them is cut."
    return Verdict(source, why, owners.get((connection.remote, connection.local)))


def is_in_own_code(stack: str) -> bool:
    """Return whether the innermost frame of the main thread, whose stack is the last one, is in no installed package.

    >>> is_in_own_code('Current thread 0x1 (most recent call first):\\n  File "/home/me/train.py", line 7 in step')
    True
    """
    _, _, main_thread = stack.rpartition("(most recent call first)")
    frame = re.search(r'File "(.*?)"', main_thread)
    return frame is not None and not re.search(r"/(site|dist)-packages/", frame.group(1))
