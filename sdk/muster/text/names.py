"""Names of workers, processes and signals, as they appear in messages."""

from __future__ import annotations

import signal
from collections.abc import Sequence


def process_label(worker: str, rank: int | None) -> str:
    """Return the name of a process in messages."""
    return worker if rank is None else f"rank {rank} ({worker})"


def join_names(names: Sequence[str], most: int = 5) -> str:
    """Return a list of names in words, shortened to the first ``most`` of them.

    >>> join_names(["worker-0", "worker-1"]), join_names(["worker-0", "worker-1", "worker-2"], most=1)
    ('worker-0 and worker-1', 'worker-0 and 2 more')
    """
    shown = list(names[:most])
    last = f"{len(names) - most} more" if len(names) > most else shown.pop()
    return f"{', '.join(shown)} and {last}" if shown else last


def signal_name(number: int | None) -> str:
    """Return the name of a signal in messages: ``signal 9 (SIGKILL)`` for 9."""
    try:
        return f"signal {number} ({signal.Signals(number or 0).name})"
    except ValueError:
        return f"signal {number}"
