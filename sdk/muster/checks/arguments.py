"""Arguments as users give them: the plain data that they stand for, and what is wrong with them, in their own words.

Values of environment variables are never repeated: they may be secret.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Set
from enum import Enum
from numbers import Number
from typing import Any

from muster.errors import JobError
from muster.options.values import LONGEST_SPAN, whole_number
from muster.text.arguments import Argument, ArgumentText
from muster.text.spans import seconds_of


def patterns(name: str, value: Any) -> tuple[str, ...]:
    """Return one or several file patterns, relative to a worker's working directory, as a tuple.

    Raises:
        JobError: a pattern is invalid, or leads out of that directory.
    """
    found = (value,) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(item, (str, os.PathLike)) for item in found):
        raise JobError(
            f"{name} is {value!r}; it must be a pattern or a list of some.",
            advice=ArgumentText(Argument(name, "checkpoints/**")),
        )
    plain = tuple(os.path.normpath(os.fspath(item)) for item in found)
    for pattern in plain:
        if os.path.isabs(pattern) or pattern == "." or pattern.split("/")[0] == ".." or "\0" in pattern:
            raise JobError(
                ArgumentText(Argument(name, pattern), " does not lie in the working directory of a worker."),
                advice=ArgumentText(Argument(name, "checkpoints/**"), ", and have the script write there"),
            )
    return plain


def plain_args(args: Any, *, of_function: bool = False) -> tuple[str, ...]:
    """Return command-line arguments as strings.

    Args:
        of_function: whether the script is a function.

    Raises:
        JobError: they are not a list, or one of them makes no sense as a string.
    """
    if of_function and isinstance(args, Mapping):
        raise JobError(
            "args is a dict; it must be a list, which becomes sys.argv.",
            advice="kwargs= for the arguments of a function, in place of args=",  # their values may be secret
        )
    if isinstance(args, str):
        raise JobError(f"args is a string, {args!r}; it must be a list.", advice=f"args={args.split()}")
    if isinstance(args, Mapping):
        raise JobError("args is a dict; it must be a list, as on a command line.", advice=f"args={_as_options(args)}")
    if not isinstance(args, Iterable) or isinstance(args, (bytes, Set)):
        raise JobError(f"args is of type {_type(args)}; it must be a list.", advice='args=["--epochs", "3"]')
    return tuple(_word(f"args[{index}]", argument) for index, argument in enumerate(args))


def plain_env(env: Any) -> dict[str, str]:
    """Return environment variables as strings.

    Raises:
        JobError: they are not a dict of names and values.
    """
    if not isinstance(env, Mapping):
        raise JobError(f"env is of type {_type(env)}; it must be a dict.", advice='env={"NAME": "value"}')
    for name in env:
        if not isinstance(name, str):
            raise JobError(f"env has a name of type {_type(name)}; names must be strings.")
    return {name: _word(f"env[{name!r}]", value) for name, value in env.items()}


def plain_path(name: str, path: Any) -> str:
    """Return a path as a string, empty for None; raise JobError for anything else."""
    if path is None:
        return ""
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise JobError(f"{name} is of type {_type(path)}; it must be a path.")
    return os.fspath(path)


def plain_bool(name: str, value: Any) -> bool:
    """Return a bool of Python's or NumPy's as Python's; raise JobError for anything else: ``"no"`` would be true."""
    if type(value).__name__ not in ("bool", "bool_"):
        is_no = not value or str(value).strip().lower() in NO
        raise JobError(
            ArgumentText(Argument(name), f" is {value!r}; it must be True or False."),
            advice=ArgumentText(Argument(name, not is_no)),
        )
    return bool(value)


def port_range(ports: Any) -> tuple[int, int] | None:
    """Return the first and last port, None for any; raise JobError for anything else."""
    if ports is None:
        return None
    try:
        first, last = (whole_number("worker_ports", port) for port in ports)
    except (TypeError, ValueError):  # JobError is one, too
        first, last = 0, 0
    if not 1 <= first <= last <= 65535:
        raise JobError(
            f"worker_ports is {ports!r}; it must be the first and the last port that servers may use.",
            advice="worker_ports=(42000, 42100)",
        )
    return first, last


NO = ("no", "off", "false", "0", "none", "never", "n", "f")  # texts that stand for False


def duration(name: str, length: Any) -> float | None:
    """Return a time span in seconds, given a number of seconds or a text; None for None.

    >>> duration("detach", "1h30m"), duration("detach", "600")
    (5400.0, 600.0)

    Raises:
        JobError: it is neither, or not positive, or longer than ten years.
    """
    if length is None:
        return None
    seconds: float | None = None
    if isinstance(length, str):
        seconds = seconds_of(length)
    elif isinstance(length, Number) and not isinstance(length, bool):
        seconds = float(length)  # type: ignore[arg-type]
    if seconds is None or not 0 < seconds <= LONGEST_SPAN:
        must = "be a time span" if seconds is None else "be longer than 0 s, and ten years at most"
        raise JobError(
            ArgumentText(Argument(name), f" is {length!r}; it must {must}."),
            advice=ArgumentText(Argument(name, "8h"), " or 90m or 1d, or a number of seconds"),
        )
    return seconds


def plain_observers(observers: Any) -> tuple[Callable[..., Any], ...]:
    """Return observers, functions that are called with every event; raise JobError for anything else."""
    if callable(observers):
        raise JobError("observers is a function; it must be a list of them.", advice="observers=[...]")
    if not isinstance(observers, Iterable):
        raise JobError(f"observers is of type {_type(observers)}; it must be a list of functions.")
    found = tuple(observers)
    for index, observer in enumerate(found):
        if not callable(observer):
            raise JobError(f"observers[{index}] is of type {_type(observer)}; it must be a function.")
    return found


def _as_options(args: Mapping[Any, Any]) -> list[str]:
    """Return the command line that a dict most likely stands for.

    >>> _as_options({"epochs": 3, "--lr": 0.1, "v": True, "resume": False, "sizes": [1, 2]})
    ['--epochs', '3', '--lr', '0.1', '-v', '--sizes', '1', '2']
    """
    words: list[str] = []
    for name, value in args.items():
        if value is None or value is False:
            continue
        text = str(name)
        words.append(text if text.startswith("-") else f"-{text}" if len(text) == 1 else f"--{text}")
        if value is not True:
            words += map(str, value if isinstance(value, (list, tuple)) else [value])
    return words


def _word(name: str, value: Any) -> str:
    """Return a value as the word that it stands for on a command line."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, os.PathLike) and not isinstance(os.fspath(value), bytes):
        return str(os.fspath(value))
    if isinstance(value, (Number, bool)) and not isinstance(value, Enum):
        return str(value)
    raise JobError(
        f"{name} is {'None' if value is None else 'of type ' + _type(value)}; it must be a string or a number.",
        advice="leave it out" if value is None else "str(...), or json.dumps(...) of structures",
    )


def _type(value: Any) -> str:
    return type(value).__name__


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[::1]:port``; raise JobError for anything else."""
    host, _, port = text.rpartition(":")
    is_bare_ipv6 = ":" in host and not host.startswith("[")
    if not host or is_bare_ipv6 or not port.isdecimal() or int(port) > 65535:
        raise JobError(
            ArgumentText(Argument("session_address"), f" is {text!r}; it must be host:port, or [host]:port for IPv6.")
        )
    return host.strip("[]"), int(port)
