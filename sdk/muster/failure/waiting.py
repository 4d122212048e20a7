"""Search for the process that holds up a run, by the processes' stacks and the state of their connections."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from muster.agent import wire

Source = tuple[str, int | None]  # a process: its worker and its rank
MUTE = "Its agent does not answer: it or its container is suspended, or its machine hangs or is overloaded."
STACK_BEGINS = "(most recent call first)"  # begins each thread's stack


class Verdict(NamedTuple):
    """The process that holds up the others, and the reason to think so; with the other end if a link is cut."""

    source: Source
    why: str = ""
    other: Source | None = None


def find_blocker(
    silent: Sequence[Source], answers: Mapping[Source, wire.ProcessStacks], servers: Collection[Source] = ()
) -> Verdict:
    """Return the process that the others wait for.

    Args:
        silent: training processes without a sign of progress, the longest silent first.
        answers: stacks and connections of processes, from their agents.
        servers: processes that never report progress, and that others may wait for nevertheless.
    """
    known = [source for source in silent if source in answers]
    stopped = [source for source in (*known, *servers) if source in answers and answers[source].is_stopped]
    if stopped:
        return Verdict(stopped[0], "It has been stopped: by SIGSTOP, or by a debugger.")
    cut = _cut_link(answers)
    if cut:
        return cut
    awaited = _awaited([*silent, *servers], answers)
    if awaited:
        return Verdict(awaited, "It has not sent what the others wait for.")
    heard = {worker for worker, _ in answers}
    mute = [source for source in silent if heard and source[0] not in heard]
    if mute:
        return Verdict(mute[0], MUTE)
    unread = {source: sum(bool(c.unread) for c in answers[source].connections) for source in known}
    most = max(unread.values(), default=0)
    readers = [source for source in silent if unread.get(source) == most]
    stuck = [source for source in known if is_in_own_code(answers[source].text)]
    # If only other processes are in their own code, the unread data was just about to be read: frameworks exchange
    # messages all the time, on separate threads.
    if most and len(readers) == 1 and (not stuck or readers[0] in stuck):
        return Verdict(readers[0], "It does not read what the others have sent.")
    # Those that show no stacks may do anything; the others wait in a library, as they would for a peer.
    unseen = [source for source in known if STACK_BEGINS not in answers[source].text]
    return Verdict((stuck or unseen or list(silent))[0])


def _awaited(sources: Sequence[Source], answers: Mapping[Source, wire.ProcessStacks]) -> Source | None:
    """Return the process that others wait for and that waits for none of them; None unless there is exactly one."""
    owners = {(c.local, c.remote): source for source, answer in answers.items() for c in answer.connections}
    waits_for = {
        source: owners.get((connection.remote, connection.local))
        for source in sources
        if source in answers
        for connection in answers[source].connections
        if connection.is_awaited and not connection.unread
    }
    found = {other for other in waits_for.values() if other in sources and other not in waits_for}
    return found.pop() if len(found) == 1 else None


def _cut_link(answers: Mapping[Source, wire.ProcessStacks]) -> Verdict | None:
    """Return a verdict on the connection with the most unanswered attempts to send; None if there is none."""
    owners = {(c.local, c.remote): source for source, answer in answers.items() for c in answer.connections}
    attempts = [(c.unanswered, source, c) for source, answer in answers.items() for c in answer.connections]
    unanswered, source, connection = max(attempts, key=lambda item: item[0], default=(0, ("", None), None))
    if not unanswered or connection is None:
        return None
    why = f"Nothing that it sends to {connection.remote} gets an answer: the network between them is cut."
    return Verdict(source, why, owners.get((connection.remote, connection.local)))


def is_in_own_code(stack: str) -> bool:
    """Return whether the innermost frame of the main thread, whose stack is the first one, is in no installed package.

    Frames of code that has no file count as those that called them: TensorFlow makes such wrappers.

    >>> is_in_own_code('Current thread 0x1 (most recent call first):\\n  File "/home/me/train.py", line 7 in step')
    True
    >>> is_in_own_code("MainThread (most recent call first):\\n  Cell In[3], line 7 in step")
    True
    """
    _, _, main_thread = stack.partition(STACK_BEGINS)
    frame = re.search(r'^  (?!File "<(?:string|frozen )[^"]*")(.*), line \d+ in ', main_thread, re.MULTILINE)
    return frame is not None and not re.search(r"/(site|dist)-packages/", frame.group(1))
