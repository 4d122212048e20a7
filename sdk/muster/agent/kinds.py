"""Kinds of messages: how one is declared, and how its fields are checked where it comes in.

Each kind is a named tuple; the decorator names its kind on the wire and how each field is checked. Fields that nobody
knows are ignored, so that a message may grow.
"""

from typing import Any, Callable, Dict, Tuple, Type, TypeVar

from .fields import number, optional, whole

Check = Callable[[Any], Any]
# What makes one, its fields with their defaults, and those of them of which one must be there, and no other.
Kind = Tuple[Callable[..., Any], Tuple[Tuple[str, Check, object], ...], Tuple[str, ...]]
Message = TypeVar("Message", bound="tuple[Any, ...]")

LONGEST_TEXT = 1 << 16  # characters of any text but output
LONGEST_OUTPUT = 1 << 17  # characters of output in one message
LONGEST_NAME = 200
MOST_METRICS = 200  # in one report

FROM_AGENT: Dict[str, Kind] = {}
FROM_SESSION: Dict[str, Kind] = {}
REPORTS: Dict[str, Kind] = {}
KINDS: Dict[type, str] = {}

rank = optional(whole(0, 1 << 24))
pid = whole(1, 1 << 31)
clock = number(0)
transfer = whole(0)
offset = whole(0)
MISSING = object()  # in place of a default
payload = lambda value: value  # noqa: E731  (the decoder has made sure that these are bytes, and not too many)


class Misfit(ValueError):
    """A message that makes no sense; says which field, and what it should be."""


class UnknownKind(Misfit):
    """A message of a kind that is not known, perhaps one of another version."""


def message(
    kind: str, *directions: Dict[str, Kind], either: Tuple[str, ...] = (), **checks: Check
) -> Callable[[Type[Message]], Type[Message]]:
    """Declare a kind of message, who may send it, how its fields are checked, and of which one must be there alone."""

    def declare(made: Type[Message]) -> Type[Message]:
        defaults = getattr(made, "_field_defaults", {})
        names = getattr(made, "_fields", ())
        fields = tuple((name, checks.pop(name), defaults.get(name, MISSING)) for name in names)
        assert not checks, checks
        for direction in directions:
            direction[kind] = (made, fields, either)
        KINDS[made] = kind
        return made

    return declare


def read(fields: "dict[str, Any]", kind: str, known: Dict[str, Kind]) -> Any:
    """Check the fields of a message of this kind, and return it. Raises Misfit, or UnknownKind if it is not known."""
    if kind not in known:
        raise UnknownKind("unknown kind {!r}".format(kind[:50]))
    make, checks, either = known[kind]
    values: "list[Any]" = []
    for field, check, default in checks:
        value = fields.get(field, default)
        if value is default and value is not MISSING:  # so it is in most fields of most messages
            values.append(value)
            continue
        try:
            values.append(check(None if value is MISSING else value))
        except (TypeError, ValueError, OverflowError) as error:  # its value is not told: it may be a secret, or long
            raise Misfit("{} of {} must be {}".format(field, kind, error)) from None
    made = make(*values)
    if either and [getattr(made, field) is None for field in either].count(False) != 1:
        raise Misfit("{} must have either {}".format(kind, " or ".join(either)))
    return made
