"""The messages between session and agents, which are checked when they are received. ``frames.py`` has their format.

The types, ranges and sizes of a message that was read by ``from_agent`` or ``from_session`` can be relied on. The kinds
are declared by subject: ``worker_messages.py`` and ``reports.py`` (from agents), ``orders.py`` (from the session),
``stream_messages.py`` and ``file_messages.py`` (from both).
"""

from . import frames
from .file_messages import Chunk, Find, Found, Get, Have, Lacks, Missing, Put, Sync, Synced
from .kinds import (
    FROM_AGENT,
    FROM_SESSION,
    KINDS,
    LONGEST_NAME,
    LONGEST_OUTPUT,
    LONGEST_TEXT,
    MOST_METRICS,
    REPORTS,
    Misfit,
    UnknownKind,
    read,
)
from .orders import (
    Ack,
    AskStacks,
    End,
    Expect,
    Launch,
    Notice,
    Ping,
    Refused,
    Release,
    Start,
    Stop,
    StopLauncher,
    Watch,
    Welcome,
)
from .reports import Progress, Raised, Returned, Stage, Warned
from .stream_messages import OVERHEAD, WINDOW, Close, Closed, Credit, Data, Dial, Eof, Execute, Opened, Resize, cost
from .worker_messages import (
    Broken,
    Clock,
    Error,
    Exited,
    Hello,
    HungUp,
    LauncherExited,
    LauncherOutput,
    Leaving,
    Listening,
    Output,
    Preempted,
    ProcessStacks,
    Started,
    Suspended,
    TcpConnection,
    Usage,
    connection,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "Ack", "AskStacks", "Broken", "Chunk", "Clock", "Close", "Closed", "Credit", "Data", "Dial",
    "End", "Eof", "Error", "Execute", "Exited", "Expect", "FROM_AGENT", "FROM_SESSION", "Find", "Found", "Get",
    "Have", "Hello", "HungUp", "KINDS", "LASTING", "LONGEST_NAME", "LONGEST_OUTPUT", "LONGEST_TEXT", "Lacks", "Launch",
    "LauncherExited", "LauncherOutput", "Leaving", "Listening", "MOST_METRICS", "Misfit", "Missing", "Notice",
    "OF_STREAMS", "OVERHEAD", "Opened", "Output", "Ping", "Preempted", "ProcessStacks", "Progress", "Put", "REPORTS",
    "Raised", "Refused", "Release", "Resize", "Returned", "Stage", "Start", "Started", "Stop", "StopLauncher",
    "Suspended", "Sync", "Synced", "TcpConnection", "UnknownKind", "Usage", "VERSION", "WINDOW", "Warned", "Watch",
    "Welcome", "connection", "cost", "encode", "from_agent", "from_session", "read_report",
]  # fmt: skip

VERSION = 2
OF_STREAMS = (Opened, Data, Credit, Eof, Closed)  # from agents

# Messages that must not be lost with a connection: these are numbered where a worker has a lease
LASTING = frozenset(
    (Started, Exited, Suspended, Preempted, HungUp, Broken, Listening, Output, ProcessStacks, Error, Returned, Raised)
    + (Opened, Data, Credit, Eof, Closed, Execute, Dial, Resize, Close)
    + (
        LauncherOutput,
        LauncherExited,
        Start,
        Expect,
        Launch,
        StopLauncher,
        Watch,
        AskStacks,
        Release,
        Notice,
        Stop,
        End,
    )
)


def encode(message: "tuple[Any, ...]", number: int = 0) -> bytes:
    """Return a message as it is sent, perhaps with a number (see ``outbox.py``)."""
    fields = message._asdict()  # type: ignore[attr-defined]
    kind = KINDS[type(message)]
    if kind in REPORTS:
        said = {name: value for name, value in fields.items() if value is not None}
        kind, fields = "report", {"report": dict(said, kind=kind)}
    if number:
        fields["n"] = number
    return frames.encode(kind, **fields)


def from_agent(fields: "dict[str, Any]") -> "Any":
    """Check a message of an agent, and return it; for a report, the message within it.

    Raises:
        UnknownKind: agents send no message of its kind.
        Misfit: one of its fields is not valid.
    """
    if fields["type"] == "report":
        return read_report(fields.get("report"))
    return read(fields, fields["type"], FROM_AGENT)


def from_session(fields: "dict[str, Any]") -> "Any":
    """Check a message of the session, and return it. Raises as ``from_agent`` does."""
    return read(fields, fields["type"], FROM_SESSION)


def read_report(report: "Any") -> "Any":
    """Check a process's report, and return its message. Raises as ``from_agent`` does."""
    if type(report) is not dict or type(report.get("kind")) is not str:
        raise Misfit("a report must have a kind")
    return read(report, report["kind"], REPORTS)
