"""Kinds of messages: how a kind is declared, and how the fields of a received message are checked.

Each kind is a named tuple; the decorator ``message`` says its name on the wire and how each field is checked. Unknown
fields are ignored, so that later versions may add fields.
"""

from .fields import number, optional, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Tuple, TypeVar

    Check = Callable[[Any], Any]
    # The class; name, check and default of each field; and the fields of which exactly one must be given.
    Kind = Tuple[type, Tuple[Tuple[str, Check, object], ...], Tuple[str, ...]]
    Message = TypeVar("Message", bound="tuple[Any, ...]")

LONGEST_TEXT = 1 << 16  # characters of any text except output
LONGEST_OUTPUT = 1 << 17  # characters of output in one message
LONGEST_NAME = 200
MOST_METRICS = 200  # in one report

FROM_AGENT: "dict[str, Kind]" = {}
FROM_SESSION: "dict[str, Kind]" = {}
REPORTS: "dict[str, Kind]" = {}
KINDS: "dict[type, str]" = {}

rank = optional(whole(0, 1 << 24))
pid = whole(1, 1 << 31)
clock = number(0)
transfer = whole(0)
offset = whole(0)
MISSING = object()  # stands for the default of a field that has none
payload = lambda value: value  # noqa: E731  (the decoder has checked that these are bytes, and how many)


class Misfit(ValueError):
    """A message with a field that is not valid; says which field, and what it must be."""


class UnknownKind(Misfit):
    """A message of an unknown kind, perhaps of another version."""


def message(
    kind: str, *directions: "dict[str, Kind]", either: "tuple[str, ...]" = (), **checks: "Check"
) -> "Callable[[type[Message]], type[Message]]":
    """Declare a named tuple as a kind of message.

    Args:
        kind: its name on the wire.
        directions: the tables of kinds to add it to, such as ``FROM_AGENT``.
        either: names of fields of which exactly one must be given.
        checks: the check of each field, by the field's name.
    """

    def declare(made: "type[Message]") -> "type[Message]":
        defaults = getattr(made, "_field_defaults", {})
        names = getattr(made, "_fields", ())
        fields = tuple(_field(checks.pop(name), name, defaults.get(name, MISSING)) for name in names)
        assert not checks, checks
        for direction in directions:
            direction[kind] = (made, fields, either)
        KINDS[made] = kind
        return made

    return declare


def _field(check: "Check", name: str, default: object) -> "Tuple[str, Check, object]":
    """Return a field; its check does not look for None where that is the default, which is not checked."""
    return name, getattr(check, "unless_none", check) if default is None else check, default


def read(fields: "dict[str, Any]", kind: str, known: "dict[str, Kind]") -> "Any":
    """Check the fields of a message of this kind, and return it. Raises Misfit, or UnknownKind if not in ``known``."""
    if kind not in known:
        raise UnknownKind("unknown kind {!r}".format(kind[:50]))
    make, checks, either = known[kind]
    values: "list[Any]" = []
    for field, check, default in checks:
        value = fields.get(field, default)
        if value is default and value is not MISSING:  # as in most fields of most messages
            values.append(value)
            continue
        try:
            values.append(check(None if value is MISSING else value))
        except (TypeError, ValueError, OverflowError) as error:  # the value is left out: it may be secret, or long
            raise Misfit("{} of {} must be {}".format(field, kind, error)) from None
    made: "Any" = tuple.__new__(make, values)  # which are complete
    if either and [getattr(made, field) is None for field in either].count(False) != 1:
        raise Misfit("{} must have either {}".format(kind, " or ".join(either)))
    return made
