"""Messages of the session to agents: orders about processes, and messages that maintain a connection."""

from .fields import items, number, optional, port, string, strings, text, whole, yes_or_no
from .kinds import FROM_AGENT, FROM_SESSION, LONGEST_TEXT, message, rank
from .tuples import NamedTuple


@message("ack", FROM_AGENT, FROM_SESSION, number=whole(0))
class Ack(NamedTuple):
    """All numbered messages up to this number have arrived."""

    number: int


@message("welcome", FROM_SESSION, received=whole(0), interval=number(0, 1e6))
class Welcome(NamedTuple):
    """The hello was accepted, and the agent's numbered messages up to ``received`` have arrived.

    Periodic reports are to be sent every ``interval`` seconds, and only if they have changed.
    """

    received: int = 0
    interval: float = 1.0


@message("refused", FROM_SESSION, text=text(LONGEST_TEXT))
class Refused(NamedTuple):
    """The hello was not accepted; the connection ends."""

    text: str


@message("ping", FROM_SESSION, number=whole(0))
class Ping(NamedTuple):
    """A request for the time that the worker's clocks show."""

    number: int


_command = items(string, 1 << 20)


@message("start", FROM_SESSION, argv=_command, env=strings, cwd=optional(string), rank=rank, split=yes_or_no)
class Start(NamedTuple):
    """Order to start this process now; ``split``: with its own log in addition to its worker's."""

    argv: "tuple[str, ...]"
    env: "dict[str, str]"
    cwd: "str | None" = None
    rank: "int | None" = None
    split: bool = False


@message("expect", FROM_SESSION, argv=_command, env=strings, cwd=optional(string), split=yes_or_no)
class Expect(NamedTuple):
    """Notice that ranks will be requested over ssh, and are to get this environment."""

    argv: "tuple[str, ...]"
    env: "dict[str, str]"
    cwd: "str | None" = None
    split: bool = False


@message(
    "launch", FROM_SESSION, argv=_command, env=strings, cwd=string, line=items(string, 1 << 20), files=strings,
)  # fmt: skip
class Launch(NamedTuple):
    """Order to run the launcher here: ``line`` is what it reads as its command line, ``env`` its whole environment.

    The files, by their path in ``cwd``, are written first, for their owner only.
    """

    argv: "tuple[str, ...]"
    env: "dict[str, str]"
    cwd: str
    line: "tuple[str, ...]"
    files: "dict[str, str]"


@message("stop_launcher", FROM_SESSION, grace=number(0, 1e6))
class StopLauncher(NamedTuple):
    """Order to end the launcher: by SIGTERM, and by SIGKILL after ``grace`` seconds."""

    grace: float = 1.0


@message("watch", FROM_SESSION, port=port)
class Watch(NamedTuple):
    """Order to report when a process of this worker listens on the port."""

    port: int


@message("stacks", FROM_SESSION)
class AskStacks(NamedTuple):
    """Order to send the Python stacks of all processes."""


@message("release", FROM_SESSION)
class Release(NamedTuple):
    """Order to let a process end that has returned and only serves others."""


@message("notice", FROM_SESSION)
class Notice(NamedTuple):
    """Notice that a worker of the run is about to be taken away, so that scripts can save a checkpoint."""


@message("stop", FROM_SESSION, grace=number(0, 1e6))
class Stop(NamedTuple):
    """Order to end all processes: by SIGTERM, and by SIGKILL after ``grace`` seconds."""

    grace: float = 1.0


@message("end", FROM_SESSION, after_output=yes_or_no)
class End(NamedTuple):
    """Order to end all processes at once, clean up and leave; ``after_output``: once all output has been sent."""

    after_output: bool = False
