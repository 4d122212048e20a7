"""Checks of single values from other processes. Each takes a value and returns it, or raises ValueError."""

import re
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Check = Callable[[Any], Any]

# Patterns. They are compiled, and cached by ``re``, when first used, as most agents need none of them.
HOST_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})\Z"
HOST_KEY = (
    r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]{40,2000}={0,3}\Z"  # no options, no comment
)
INTERFACE = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,14}\Z"
DEVICE = r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}\Z"
VERSION = r"[0-9]{1,3}(?:\.[0-9]{1,5}){1,3}[A-Za-z0-9.+-]{0,20}\Z"
DIGEST = r"[0-9a-f]{64}\Z"
ACCOUNT = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,99}\Z"
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z"
BIGGEST = 1 << 63


def whole(low: int, high: int = BIGGEST) -> "Check":
    """Return a check for whole numbers from ``low`` to ``high``, which refuses True and False."""

    def check(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError("a whole number from {} to {}".format(low, high))
        return value

    return check


def number(low: float = -1e300, high: float = 1e300) -> "Check":
    """Return a check for finite numbers from ``low`` to ``high``, which returns them as floats."""

    def check(value: object) -> float:
        if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
            raise ValueError("a number from {:g} to {:g}".format(low, high))
        return float(value)  # type: ignore[arg-type]

    return check


def yes_or_no(value: object) -> bool:
    """Check a boolean."""
    if type(value) is not bool:
        raise ValueError("true or false")
    return value


def optional(check: "Check") -> "Check":
    """Return a check that accepts None and whatever ``check`` accepts, which is its ``unless_none``."""

    def check_unless_none(value: object) -> "Any":
        return None if value is None else check(value)

    check_unless_none.unless_none = check  # type: ignore[attr-defined]
    return check_unless_none


def one_of(*known: str) -> "Check":
    """Return a check that accepts only these texts."""

    def check(value: object) -> str:
        if type(value) is not str or value not in known:
            raise ValueError("one of " + ", ".join(known))
        return value

    return check


def like(pattern: "str | re.Pattern[str]", what: str) -> "Check":
    """Return a check for text that a pattern matches; ``what`` describes such text in the error."""

    def check(value: object) -> str:
        if type(value) is not str or not re.match(pattern, value):
            raise ValueError(what)
        return value

    return check


def text(longest: int) -> "Check":
    """Return a check for text, which cuts it to ``longest`` characters and replaces lone surrogates (``clean``)."""

    def check(value: object) -> str:
        if type(value) is not str:
            raise ValueError("text")
        return clean(value[:longest])

    return check


def output(longest: int) -> "Check":
    """Return a check for output of a process: text in which lone surrogates stand for bytes that are not UTF-8."""

    def check(value: object) -> str:
        if type(value) is not str or len(value) > longest:
            raise ValueError("text of at most {} characters".format(longest))
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return clean(value)
        return value

    return check


def items(check: "Check", most: int) -> "Check":
    """Return a check for lists of at most ``most`` items, which checks each item and returns a tuple."""

    def check_all(value: object) -> "tuple[Any, ...]":
        if type(value) not in (list, tuple) or len(value) > most:  # type: ignore[arg-type]
            raise ValueError("a list of at most {} items".format(most))
        return tuple([check(item) for item in value])  # type: ignore[attr-defined]

    return check_all


def string(value: object) -> str:
    """Check text of any kind."""
    if type(value) is not str:
        raise ValueError("text")
    return value


def strings(value: object) -> "dict[str, str]":
    """Check a mapping from text to text, such as an environment."""
    if type(value) is not dict or not all(type(item) is str for pair in value.items() for item in pair):
        raise ValueError("names with texts")
    return value


def host(value: object) -> str:
    """Check an IP address or a host name, which has no special meaning in a file of ssh or on a command line."""
    if type(value) is str and re.match(HOST_NAME, value):
        return value
    if type(value) is str and ":" in value and len(value) < 50:
        try:
            socket.inet_pton(socket.AF_INET6, value)
        except (OSError, ValueError):
            pass
        else:
            return value
    raise ValueError("an IP address or a host name")


def relative_path(value: object) -> str:
    """Check a path that stays in its folder, with ``/`` between its parts."""
    if type(value) is not str or not 0 < len(value) <= 4096 or "\0" in value or clean(value) != value:
        raise ValueError("a path")
    if any(part in ("", ".", "..") for part in value.split("/")):
        raise ValueError("a path without . and .. that starts in its folder")
    return value


def clean(value: str) -> str:
    """Return the text with lone surrogates replaced, as they cannot be written to files."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


port = whole(1, 65535)
host_key = like(HOST_KEY, "a public host key of ssh")
interface = like(INTERFACE, "a network interface's name")
device = like(DEVICE, "a device's name")
version = like(VERSION, "a version")
digest = like(DIGEST, "a SHA-256 in hexadecimal")
account = like(ACCOUNT, "an account's name")
name = like(NAME, "a name")
