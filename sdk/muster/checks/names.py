"""Names of unknown arguments in a call, and the known ones that they stand for."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from muster.errors import CallError
from muster.text.arguments import Argument, ArgumentText

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Refuse = Callable[[Mapping[str, Any], list[str]], None]  # given arguments by their names; the names that there are

OTHER_NAMES = {
    "worker_script": "script file filename path function func fn target entrypoint entry_point program main train_fn",
    "nvidia_gpu": "gpu gpus n_gpus ngpus num_gpus gpu_count gpus_per_worker nvidia_gpus",
    "n_workers": "workers num_workers nworkers worker_count n num n_procs num_proc np hosts nodes n_nodes num_nodes",
    "n_ps": "ps num_ps nps n_servers parameter_servers ps_count",
    "cpu": "cpus cores n_cpus num_cpus n_cores num_cores",
    "memory": "mem ram memory_gb mem_gb memory_limit",
    "run_timeout": "timeout max_seconds run_seconds walltime time_limit run_timeout_seconds",
    "timeout_seconds": "timeout start_timeout",
    "args": "argv arguments script_args command_line",
    "kwargs": "params parameters fn_kwargs keyword_arguments hyperparameters",
    "env": "environ environment env_vars envs variables",
    "python": "interpreter python_path executable",
    "slots": "ranks processes processes_per_worker nproc_per_node slots_per_worker ranks_per_worker",
    "network_interface": "interface iface nic network_interfaces",
    "dashboard": "show progress verbose display quiet",
    "wait": "block blocking background",
    "name": "run_name title job_name",
    "strategy": "backend method framework launcher",
}  # names in other tools, by Muster's name
LIMITS_OF = {"run_timeout": "for the run", "timeout_seconds": "for its start"}  # for a name that may mean either
NEAR = 0.8  # below this similarity to any known name it is more likely an argument of the script's
NUMBERS = ("n_workers", "n_ps", "cpu", "memory", "nvidia_gpu")  # positions where a script may be given by mistake


def right_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that an unknown one most likely stands for; none if none is similar.

    >>> right_names("gpus", ["nvidia_gpu"]), right_names("nmae", ["name"]), right_names("rate", ["strategy"])
    (['nvidia_gpu'], ['name'], [])
    """
    known, plain = list(known), name.lower()
    meant = [right for right, others in OTHER_NAMES.items() if right in known and plain in others.split()]
    near = meant or difflib.get_close_matches(plain, known, n=1, cutoff=NEAR)
    return near or [right for right in known if sorted(right) == sorted(plain)]


def refuse_near(call: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise CallError for the first of these names that most likely stands for a known one.

    Raises:
        CallError: there is one; its advice is the known name.
    """
    for name in names:
        right = right_names(name, known)
        if right:
            told = (f"{other}= {LIMITS_OF[other]}" if len(right) > 1 else f"{other}=" for other in right)
            raise CallError(f"{call} has no argument {name!r}.", advice=", ".join(told))


def refuse_parameters(call: str, names: Iterable[str], script: object) -> None:
    """Raise CallError for names that are parameters of the given function, which ``kwargs`` should pass to it.

    Raises:
        CallError: there are such names.
    """
    own = [name for name in names if name in _parameters(script)]
    if own:
        told = ", ".join(f'"{name}": ...' for name in own)
        raise CallError(f"{call} has no argument {own[0]!r}, which the function has.", advice=f"kwargs={{{told}}}")


def refuse_unknown(call: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise CallError for unknown argument names: misspelt ones, and any others.

    Args:
        call: what was called.
        names: the unknown names.
        known: the known names.

    Raises:
        CallError: there are such names.
    """
    names, known = list(names), list(known)
    refuse_near(call, names, known)
    if names:
        raise CallError(
            f"{call} has no argument {names[0]!r}.",
            advice=f'args=["--{names[0]}", ...] for a script of yours, kwargs={{"{names[0]}": ...}} for a function of '
            f"yours; or one of {', '.join(known)}",
        )


def refuse_script_as_number(given: Mapping[str, Any]) -> None:
    """Raise CallError for a script in the place of a number, as in ``run_cluster(2, train)``.

    Raises:
        CallError: there is one.
    """
    for name in NUMBERS:
        value = given.get(name)
        is_path = isinstance(value, str) and value.endswith(".py")
        if is_path or callable(value):
            what = repr(value) if is_path else f"the function {getattr(value, '__name__', type(value).__name__)}"
            script = value if is_path else getattr(value, "__name__", "...")
            advice = Argument("worker_script", value).as_python() if is_path else f"worker_script={script}"
            raise CallError(f"{name} is {what}; it must be a number.", advice=ArgumentText(advice))


def bind(call: str, function: Callable[..., Any], refuse: Refuse, args: Any, kwargs: Any) -> inspect.BoundArguments:
    """Return the bound arguments of a call of ``function``, after ``refuse`` has checked those that were given.

    Python itself would only say what is missing, and not what was given in its place.

    Raises:
        CallError: an argument is missing, or is given twice, or there are too many; or what ``refuse`` raises.
    """
    signature = inspect.signature(function)
    try:
        own = [p.name for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD]
        refuse(signature.bind_partial(*args, **kwargs).arguments, own)
        return signature.bind(*args, **kwargs)
    except CallError:
        raise
    except TypeError as error:
        raise CallError(f"{call}: {error}.") from None


def with_names_checked(refuse: Refuse) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Return a decorator that lets ``refuse`` check the arguments of each call, even if some are missing."""

    def decorate(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
            bind(f"{function.__name__}()", function, refuse, args, kwargs)
            return function(*args, **kwargs)

        return call

    return decorate


def _parameters(script: object) -> list[str]:
    """Return the names of a function's parameters that can be given by keyword; none for other objects."""
    try:
        parameters = inspect.signature(script).parameters.values() if callable(script) else ()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
