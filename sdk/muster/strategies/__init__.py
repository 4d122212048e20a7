"""Lookup of strategies by name; the module of each is imported when it is first needed."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

from muster.errors import JobError
from muster.options.fields import options_of
from muster.strategies.base import Strategy
from muster.text.arguments import Argument, ArgumentText, listed

STRATEGIES = {
    "parameter_server": "muster.strategies.parameter_server:ParameterServer",
    "horovod": "muster.strategies.horovod:Horovod",
    "mpi": "muster.strategies.mpi:MPI",
    "processes": "muster.strategies.processes:Processes",
    "multi_worker": "muster.strategies.multi_worker:MultiWorker",
}


OTHER_NAMES = {
    "ps": "parameter_server",
    "hvd": "horovod",
    "gloo": "horovod",
    "openmpi": "mpi",
    "mpirun": "mpi",
    "mpiexec": "mpi",
    "mw": "multi_worker",
    "mwms": "multi_worker",
    "multiworkermirroredstrategy": "multi_worker",
    "mirrored": "multi_worker",
    "process": "processes",
    "torch": "processes",
    "pytorch": "processes",
    "torchrun": "processes",
    "ddp": "processes",
}  # other common names


def get_strategy(strategy: str | Strategy, **options: Any) -> Strategy:
    """Return the strategy of that name, made with ``options``, or the given strategy object itself.

    Raises:
        JobError: there is no strategy of that name, or it has no such option.
    """
    if not isinstance(strategy, str):
        if isinstance(strategy, type) or not hasattr(strategy, "plan"):
            raise JobError(
                f"strategy is of type {type(strategy).__name__}; it must be a name or a strategy.",
                advice=f"strategy={strategy.__name__}(), an object of that class"
                if isinstance(strategy, type)
                else ArgumentText(Argument("strategy", ""), f" one of {', '.join(STRATEGIES)}"),
            )
        if options:
            raise JobError(
                f"A strategy that is made already takes no options: {', '.join(options)}.",
                advice=f"give them to {type(strategy).__name__}(...); or is one of them a misspelt argument?",
            )
        return strategy
    if strategy not in STRATEGIES:
        raise JobError(f"There is no strategy {strategy!r}.", advice=_likely_name(strategy))
    known = option_names(strategy)
    unknown = [name for name in options if name not in known]
    if unknown:
        having = [other for other in STRATEGIES if unknown[0] in option_names(other)]
        raise JobError(
            ArgumentText(f"Strategy {strategy!r} has no such option: ", listed(unknown), "."),
            advice=ArgumentText(Argument(unknown[0]), f" is an option of {', '.join(having)}")
            if having
            else ArgumentText("its options are ", listed(known) or "none", "; or is that a misspelt argument?"),
        )
    made: Strategy = strategy_class(strategy)(**options)
    return made


def option_names(strategy: str) -> list[str]:
    """Return the names of a strategy's options, given the strategy's name; none if there is no such strategy."""
    return [option.name for option in options_of(strategy_class(strategy))] if strategy in STRATEGIES else []


def strategy_class(strategy: str) -> Any:
    """Return the class of the strategy of that name, which must be one of ``STRATEGIES``."""
    module, _, attribute = STRATEGIES[strategy].partition(":")
    return getattr(import_module(module), attribute)


def _likely_name(strategy: str) -> ArgumentText:
    plain = strategy.lower().replace("-", "_").replace(" ", "_")
    near = [OTHER_NAMES[plain]] if plain in OTHER_NAMES else difflib.get_close_matches(plain, STRATEGIES, n=1)
    if near:
        return ArgumentText(Argument("strategy", near[0]))
    return ArgumentText(Argument("strategy", ""), f" one of {', '.join(STRATEGIES)}")
