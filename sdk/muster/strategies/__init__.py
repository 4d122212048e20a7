"""Strategies by name, each imported when it is first asked for."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from typing import Any

from muster.errors import JobError
from muster.strategies.base import Strategy

STRATEGIES = {
    "parameter_server": "muster.strategies.parameter_server:ParameterServer",
    "horovod": "muster.strategies.horovod:Horovod",
    "mpi": "muster.strategies.mpi:MPI",
    "processes": "muster.strategies.processes:Processes",
    "multi_worker": "muster.strategies.multi_worker:MultiWorker",
}


def get_strategy(strategy: str | Strategy, **options: Any) -> Strategy:
    """The strategy of that name, made with ``options``, or the given object itself.

    Raises:
        JobError: there is no strategy of that name, or it has no such option.
    """
    if not isinstance(strategy, str):
        if options:
            raise JobError(
                f"A strategy that is made already takes no options: {', '.join(options)}.",
                advice=f"give them to {type(strategy).__name__}(...); or is one of them a misspelt argument?",
            )
        return strategy
    if strategy not in STRATEGIES:
        raise JobError(f"There is no strategy {strategy!r}.", advice=f"strategy= one of {', '.join(STRATEGIES)}")
    module, _, attribute = STRATEGIES[strategy].partition(":")
    kind = getattr(import_module(module), attribute)
    known = [field.name for field in dataclasses.fields(kind)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise JobError(
            f"Strategy {strategy!r} has no such option: {', '.join(unknown)}.",
            advice=f"its options are {', '.join(known) or 'none'}; or is that a misspelt argument?",
        )
    made: Strategy = kind(**options)
    return made
