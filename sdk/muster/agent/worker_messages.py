"""Messages of agents about their worker and its processes."""

from .fields import (
    account,
    device,
    host,
    host_key,
    interface,
    items,
    number,
    one_of,
    optional,
    output,
    port,
    text,
    version,
    whole,
    yes_or_no,
)
from .kinds import FROM_AGENT, LONGEST_NAME, LONGEST_OUTPUT, LONGEST_TEXT, clock, message, pid, rank
from .tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@message(
    "hello", FROM_AGENT, version=whole(0), token=text(200), worker=text(LONGEST_NAME), generation=whole(0), pid=pid,
    received=whole(0), host=host, ports=items(port, 64), ssh_port=optional(port), host_key=optional(host_key),
    account=optional(account), no_ssh=text(1000), interfaces=items(interface, 64), cores=whole(1, 1 << 16),
    gpus=items(device, 64), python=version,
)  # fmt: skip
class Hello(NamedTuple):
    """The first message of a connection: the worker's identity, its facts for the plan, and the orders received."""

    version: int
    token: str
    worker: str
    pid: int
    host: str
    generation: int = 0
    ports: "tuple[int, ...]" = ()
    ssh_port: "int | None" = None
    host_key: "str | None" = None
    account: "str | None" = None
    no_ssh: str = ""
    interfaces: "tuple[str, ...]" = ()
    cores: int = 1
    gpus: "tuple[str, ...]" = ()
    python: str = "3.6"
    received: int = 0


@message("clock", FROM_AGENT, number=whole(0), monotonic=clock, time=clock)
class Clock(NamedTuple):
    """The answer to a ping: the time by the clocks of the worker's machine, in seconds."""

    number: int
    monotonic: float
    time: float


@message("preempted", FROM_AGENT, seconds=number(0, 1e6))
class Preempted(NamedTuple):
    """The worker is about to be taken away; its agent ends it after ``seconds`` if that has not happened by then."""

    seconds: float = 0.0


@message("started", FROM_AGENT, pid=pid, rank=rank)
class Started(NamedTuple):
    """A process has been started."""

    pid: int
    rank: "int | None" = None


@message(
    "exited", FROM_AGENT, pid=pid, rank=rank, exit_code=optional(whole(0, 255)), signal=optional(whole(1, 127)),
    reason=optional(one_of("memory", "stopped")), memory=optional(whole(0)),
    monotonic=optional(clock), late=optional(clock), either=("exit_code", "signal"),
)  # fmt: skip
class Exited(NamedTuple):
    """A process has ended: when, by its machine's clock; and with how much memory, if that was too much.

    ``late`` says by how many seconds its end may have been noticed later than usual, on a busy machine.
    """

    pid: int
    rank: "int | None" = None
    exit_code: "int | None" = None
    signal: "int | None" = None
    reason: "str | None" = None
    memory: "int | None" = None
    monotonic: "float | None" = None
    late: "float | None" = None


@message("hung_up", FROM_AGENT, rank=rank, monotonic=optional(clock))
class HungUp(NamedTuple):
    """The program that the launcher had started for this rank is gone, and the rank will be ended."""

    rank: "int | None" = None
    monotonic: "float | None" = None


@message("broken", FROM_AGENT, code=whole(0, 255))
class Broken(NamedTuple):
    """A launcher's program, run by ssh and not as a rank, could not run (127, 126) or a signal ended it (128 + N)."""

    code: int


@message("launcher_output", FROM_AGENT, text=output(LONGEST_OUTPUT))
class LauncherOutput(NamedTuple):
    """Output of the launcher that runs on this worker; bytes that are not UTF-8 become lone surrogates."""

    text: str


@message(
    "launcher_exited", FROM_AGENT, exit_code=optional(whole(0, 255)), signal=optional(whole(1, 127)),
    either=("exit_code", "signal"),
)  # fmt: skip
class LauncherExited(NamedTuple):
    """The launcher that ran on this worker has ended, or could not be started (127)."""

    exit_code: "int | None" = None
    signal: "int | None" = None


@message("suspended", FROM_AGENT, rank=rank, is_suspended=yes_or_no)
class Suspended(NamedTuple):
    """A process has been suspended, by SIGSTOP or a debugger; or it goes on, if not ``is_suspended``."""

    rank: "int | None" = None
    is_suspended: bool = True


@message("listening", FROM_AGENT, port=port)
class Listening(NamedTuple):
    """A process of the worker listens on the port."""

    port: int


@message("output", FROM_AGENT, text=output(LONGEST_OUTPUT))
class Output(NamedTuple):
    """Output of the worker's processes; bytes that are not UTF-8 become lone surrogates."""

    text: str


@message(
    "usage", FROM_AGENT, cpu=number(0, 1e6), memory=whole(0), gpu=optional(number(0, 1e6)),
    gpu_memory=optional(whole(0)),
)  # fmt: skip
class Usage(NamedTuple):
    """The worker's use of resources, sent at most once a second."""

    cpu: float
    memory: int
    gpu: "float | None" = None
    gpu_memory: "int | None" = None


class TcpConnection(NamedTuple):
    """A TCP connection: its ends, bytes that wait to be read, and attempts to send that got no answer.

    ``is_awaited``: whether the main thread is blocked reading from it.
    """

    local: str
    remote: str
    unread: int = 0
    unanswered: int = 0
    is_awaited: bool = False


def connection(value: "Any") -> TcpConnection:
    """Check a connection given as a list, and return it."""
    if type(value) not in (list, tuple) or len(value) != 5:
        raise ValueError("two ends, two numbers, and yes or no")
    local, remote, unread, unanswered, is_awaited = value
    ends = text(100)(local), text(100)(remote)
    return TcpConnection(ends[0], ends[1], whole(0)(unread), whole(0)(unanswered), yes_or_no(is_awaited))


@message(
    "stacks", FROM_AGENT, rank=rank, text=text(LONGEST_TEXT), is_stopped=yes_or_no, connections=items(connection, 64)
)
class ProcessStacks(NamedTuple):
    """The state of one process: its Python stacks, whether it is suspended, and its connections."""

    text: str
    rank: "int | None" = None
    is_stopped: bool = False
    connections: "tuple[TcpConnection, ...]" = ()


@message("error", FROM_AGENT, text=text(LONGEST_TEXT))
class Error(NamedTuple):
    """The agent could not carry out an order."""

    text: str


@message("leaving", FROM_AGENT)
class Leaving(NamedTuple):
    """The agent ends, and nothing of its worker is left."""
