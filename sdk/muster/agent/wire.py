"""The messages between session and agents, checked where they come in. How they travel is said in ``frames.py``.

Each kind is a named tuple; the decorator names its kind on the wire and how each field is checked. Whoever has read one
by ``from_agent`` or ``from_session`` can rely on its types, its ranges and its sizes. Fields that nobody knows are
ignored, so that a message may grow.
"""

from typing import Any, Callable, Dict, NamedTuple, Tuple, Type, TypeVar

from . import frames
from .fields import (
    clean,
    device,
    digest,
    host,
    host_key,
    interface,
    items,
    name,
    number,
    one_of,
    optional,
    output,
    port,
    relative_path,
    string,
    strings,
    text,
    version,
    whole,
    yes_or_no,
)

Check = Callable[[Any], Any]
Kind = Tuple[Callable[..., Any], Tuple[Tuple[str, Check, object], ...]]  # what makes one, and its fields
Message = TypeVar("Message", bound="tuple[Any, ...]")

VERSION = 2
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
payload = lambda value: value  # noqa: E731  (the decoder has made sure that these are bytes, and not too many)


class Misfit(ValueError):
    """A message that makes no sense; says which field, and what it should be."""


class UnknownKind(Misfit):
    """A message of a kind that is not known, perhaps one of another version."""


def _message(kind: str, *directions: Dict[str, Kind], **checks: Check) -> Callable[[Type[Message]], Type[Message]]:
    """Declare a kind of message, who may send it, and how its fields are checked."""

    def declare(made: Type[Message]) -> Type[Message]:
        defaults = getattr(made, "_field_defaults", {})
        fields = tuple((name, checks.pop(name), defaults.get(name)) for name in getattr(made, "_fields", ()))
        assert not checks, checks
        for direction in directions:
            direction[kind] = (made, fields)
        KINDS[made] = kind
        return made

    return declare


# From agents


@_message(
    "hello", FROM_AGENT, version=whole(0), token=text(200), worker=text(LONGEST_NAME), generation=whole(0), pid=pid,
    received=whole(0), host=host, ports=items(port, 64), ssh_port=optional(port), host_key=optional(host_key),
    interfaces=items(interface, 64), cores=whole(1, 1 << 16), gpus=items(device, 64), python=version,
)  # fmt: skip
class Hello(NamedTuple):
    """The first message of a connection: who it is, what the others must know, and which orders have come so far."""

    version: int
    token: str
    worker: str
    pid: int
    host: str
    generation: int = 0
    ports: "tuple[int, ...]" = ()
    ssh_port: "int | None" = None
    host_key: "str | None" = None
    interfaces: "tuple[str, ...]" = ()
    cores: int = 1
    gpus: "tuple[str, ...]" = ()
    python: str = "3.6"
    received: int = 0


@_message("clock", FROM_AGENT, number=whole(0), monotonic=clock, time=clock)
class Clock(NamedTuple):
    """The answer to a ping: what the clocks of the worker's machine show, in seconds."""

    number: int
    monotonic: float
    time: float


@_message("started", FROM_AGENT, pid=pid, rank=rank)
class Started(NamedTuple):
    """A process has been started."""

    pid: int
    rank: "int | None" = None


@_message(
    "exited", FROM_AGENT, pid=pid, rank=rank, exit_code=optional(whole(0, 255)), signal=optional(whole(1, 127)),
    reason=optional(one_of("memory", "stopped")), memory=optional(whole(0)), time=optional(clock),
    monotonic=optional(clock),
)  # fmt: skip
class Exited(NamedTuple):
    """A process has ended: when, by the clocks of its machine; and with how much memory, where that was too much."""

    pid: int
    rank: "int | None" = None
    exit_code: "int | None" = None
    signal: "int | None" = None
    reason: "str | None" = None
    memory: "int | None" = None
    time: "float | None" = None
    monotonic: "float | None" = None


@_message("hung_up", FROM_AGENT, rank=rank)
class HungUp(NamedTuple):
    """The program that the launcher had started for this rank is gone, and the rank will be ended."""

    rank: "int | None" = None


@_message("broken", FROM_AGENT, code=whole(0, 255))
class Broken(NamedTuple):
    """A launcher's program, run by ssh and not as a rank, was not there (127, 126) or ended by a signal (128 + it)."""

    code: int


@_message("listening", FROM_AGENT, port=port)
class Listening(NamedTuple):
    """A process of the worker listens on the port."""

    port: int


@_message("output", FROM_AGENT, text=output(LONGEST_OUTPUT))
class Output(NamedTuple):
    """Output of the worker's processes; bytes that are not UTF-8 come as lone surrogates."""

    text: str


@_message(
    "usage", FROM_AGENT, cpu=number(0, 1e6), memory=whole(0), gpu=optional(number(0, 1e6)),
    gpu_memory=optional(whole(0)),
)  # fmt: skip
class Usage(NamedTuple):
    """The worker's use of resources; once a second, and the heartbeat as well."""

    cpu: float
    memory: int
    gpu: "float | None" = None
    gpu_memory: "int | None" = None


class Connection(NamedTuple):
    """A TCP connection: its ends, bytes that wait to be read, and attempts to send that got no answer."""

    local: str
    remote: str
    unread: int = 0
    unanswered: int = 0


def connection(value: "Any") -> Connection:
    """A connection, from a list."""
    if type(value) not in (list, tuple) or len(value) != 4:
        raise ValueError("two ends and two numbers")
    local, remote, unread, unanswered = value
    return Connection(text(100)(local), text(100)(remote), whole(0)(unread), whole(0)(unanswered))


@_message(
    "stacks", FROM_AGENT, rank=rank, text=text(LONGEST_TEXT), is_stopped=yes_or_no, connections=items(connection, 64)
)
class Stacks(NamedTuple):
    """State of one process: its Python stacks, whether it was told to stop, and how its connections do."""

    text: str
    rank: "int | None" = None
    is_stopped: bool = False
    connections: "tuple[Connection, ...]" = ()


@_message("error", FROM_AGENT, text=text(LONGEST_TEXT))
class Error(NamedTuple):
    """The agent could not do what it was told."""

    text: str


@_message("leaving", FROM_AGENT)
class Leaving(NamedTuple):
    """The agent ends, and nothing of its worker is left."""


# Reports of processes: one datagram each, which their agent passes on as ``{"type": "report", "report": ...}``


def _metrics(value: Any) -> Dict[str, float]:
    """Numbers by name; those that JSON has no word for come as text, such as "NaN"."""
    if type(value) is not dict or len(value) > MOST_METRICS:
        raise ValueError("at most {} numbers by name".format(MOST_METRICS))
    found = {}
    for metric, amount in value.items():
        if type(amount) not in (int, float, str, bool):
            raise ValueError("numbers by name")
        found[clean(metric[:LONGEST_NAME])] = float(amount)
    return found


_count = optional(whole(-(1 << 63)))


@_message(
    "progress", REPORTS, rank=rank, step=_count, steps=_count, epoch=_count, epochs=_count, examples=_count,
    bytes_sent=_count, metrics=optional(_metrics),
)  # fmt: skip
class Progress(NamedTuple):
    """Progress of a process."""

    rank: "int | None" = None
    step: "int | None" = None
    steps: "int | None" = None
    epoch: "int | None" = None
    epochs: "int | None" = None
    examples: "int | None" = None
    bytes_sent: "int | None" = None
    metrics: "dict[str, float] | None" = None


@_message("stage", REPORTS, rank=rank, stage=text(100), seconds=number(0, 1e9))
class Stage(NamedTuple):
    """A stage before a process's first step, and how many seconds it was at what came before."""

    stage: str
    seconds: float = 0.0
    rank: "int | None" = None


@_message("warning", REPORTS, rank=rank, text=text(1000))
class Warned(NamedTuple):
    """A warning about a process, for the user."""

    text: str
    rank: "int | None" = None


@_message("returned", REPORTS)
class Returned(NamedTuple):
    """The script of the worker's task has returned; its server still serves the others."""


@_message(
    "exception", REPORTS, rank=rank, pid=optional(pid), time=optional(clock), monotonic=optional(clock),
    type=text(LONGEST_NAME), message=text(4000), traceback=text(LONGEST_TEXT), peer_was_gone=optional(yes_or_no),
    status=optional(whole(0, 255)),
)  # fmt: skip
class Raised(NamedTuple):
    """A process raised an exception: when, by the clocks of its machine; and whether a connection had been closed."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    rank: "int | None" = None
    pid: "int | None" = None
    time: "float | None" = None
    monotonic: "float | None" = None
    peer_was_gone: "bool | None" = None
    status: "int | None" = None  # where it called ``sys.exit`` with a number


# From the session


@_message("ack", FROM_AGENT, FROM_SESSION, number=whole(0))
class Ack(NamedTuple):
    """All numbered messages up to this one have come."""

    number: int


@_message("welcome", FROM_SESSION, received=whole(0))
class Welcome(NamedTuple):
    """The hello was accepted, and so many of the agent's numbered messages have come so far."""

    received: int = 0


@_message("refused", FROM_SESSION, text=text(LONGEST_TEXT))
class Refused(NamedTuple):
    """The hello was not accepted; the connection ends."""

    text: str


@_message("ping", FROM_SESSION, number=whole(0))
class Ping(NamedTuple):
    """A request for the time that the worker's clocks show."""

    number: int


_command = items(string, 1 << 20)


@_message("start", FROM_SESSION, argv=_command, env=strings, cwd=optional(string), rank=rank, split=yes_or_no)
class Start(NamedTuple):
    """Order to start this process now; ``split``: with a log of its own beside its worker's."""

    argv: "tuple[str, ...]"
    env: "dict[str, str]"
    cwd: "str | None" = None
    rank: "int | None" = None
    split: bool = False


@_message("expect", FROM_SESSION, argv=_command, env=strings, cwd=optional(string), split=yes_or_no)
class Expect(NamedTuple):
    """Notice that ranks will be asked for by ssh, and are to get this environment."""

    argv: "tuple[str, ...]"
    env: "dict[str, str]"
    cwd: "str | None" = None
    split: bool = False


@_message("watch", FROM_SESSION, port=port)
class Watch(NamedTuple):
    """Order to tell once a process of this worker listens on the port."""

    port: int


@_message("stacks", FROM_SESSION)
class AskStacks(NamedTuple):
    """Order to send the Python stacks of all processes."""


@_message("release", FROM_SESSION)
class Release(NamedTuple):
    """Order to let a task end that has returned and only serves the others."""


@_message("stop", FROM_SESSION, grace=number(0, 1e6))
class Stop(NamedTuple):
    """Order to end all processes: SIGTERM, and SIGKILL after so many seconds."""

    grace: float = 1.0


@_message("end", FROM_SESSION)
class End(NamedTuple):
    """Order to end all processes at once, clean up and leave."""


# Messages that must not be lost with a connection: these are numbered where a worker has a lease
LASTING = frozenset(
    (Started, Exited, HungUp, Broken, Listening, Output, Stacks, Error, Returned, Raised)
    + (Start, Expect, Watch, AskStacks, Release, Stop, End)
)


# Files, in both directions: whoever gets one says how much of it is there already, and what comes after that is sent.
# At most a few chunks are under way at a time, each answered by a ``Have``.


@_message(
    "put", FROM_SESSION, transfer=transfer, place=name, path=relative_path, size=whole(0), sha256=digest,
    mode=whole(0, 0o777),
)  # fmt: skip
class Put(NamedTuple):
    """A file is to be written; answered by ``Have``, or by ``Missing`` where it cannot be."""

    transfer: int
    place: str
    path: str
    size: int
    sha256: str
    mode: int = 0o600


@_message("get", FROM_SESSION, transfer=transfer, place=name, path=relative_path)
class Get(NamedTuple):
    """A file is asked for; answered by ``Found`` or ``Missing``."""

    transfer: int
    place: str
    path: str


@_message("found", FROM_AGENT, transfer=transfer, size=whole(0), sha256=digest)
class Found(NamedTuple):
    """The file that was asked for; its chunks come once it is known where to begin (``Have``)."""

    transfer: int
    size: int
    sha256: str


@_message("have", FROM_AGENT, FROM_SESSION, transfer=transfer, offset=offset)
class Have(NamedTuple):
    """The first ``offset`` bytes are there; all of them, and as they should be, where it is the file's size."""

    transfer: int
    offset: int


@_message("missing", FROM_AGENT, FROM_SESSION, transfer=transfer, text=text(4000), is_absent=yes_or_no)
class Missing(NamedTuple):
    """The transfer cannot be made, or not go on; why, and whether that is because there is no such file or folder."""

    transfer: int
    text: str
    is_absent: bool = False


@_message("chunk", FROM_AGENT, FROM_SESSION, transfer=transfer, offset=offset, payload=payload)
class Chunk(NamedTuple):
    """A piece of a file that begins at ``offset``."""

    transfer: int
    offset: int
    payload: bytes = b""


def encode(message: "tuple[Any, ...]", number: int = 0) -> bytes:
    """A message as it goes over the wire, perhaps with a number, for which see ``outbox.py``."""
    fields = message._asdict()  # type: ignore[attr-defined]
    kind = KINDS[type(message)]
    if kind in REPORTS:
        said = {name: value for name, value in fields.items() if value is not None}
        kind, fields = "report", {"report": dict(said, kind=kind)}
    if number:
        fields["n"] = number
    return frames.encode(kind, **fields)


def from_agent(fields: "dict[str, Any]") -> Any:
    """Check a message of an agent's, and return it; for a report, the message within it.

    Raises:
        UnknownKind: it is of no kind that agents send.
        Misfit: one of its fields makes no sense.
    """
    if fields["type"] == "report":
        return read_report(fields.get("report"))
    return _read(fields, fields["type"], FROM_AGENT)


def from_session(fields: "dict[str, Any]") -> Any:
    """Check a message of the session's, and return it. Raises as ``from_agent`` does."""
    return _read(fields, fields["type"], FROM_SESSION)


def read_report(report: Any) -> Any:
    """Check a process's report, and return its message. Raises as ``from_agent`` does."""
    if type(report) is not dict or type(report.get("kind")) is not str:
        raise Misfit("a report must have a kind")
    return _read(report, report["kind"], REPORTS)


def _read(fields: "dict[str, Any]", kind: str, known: Dict[str, Kind]) -> Any:
    if kind not in known:
        raise UnknownKind("unknown kind {!r}".format(kind[:50]))
    make, checks = known[kind]
    values = []
    for field, check, default in checks:
        try:
            values.append(check(fields.get(field, default)))
        except (TypeError, ValueError, OverflowError) as error:  # its value is not told: it may be a secret, or long
            raise Misfit("{} of {} must be {}".format(field, kind, error)) from None
    return make(*values)
