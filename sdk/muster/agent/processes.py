"""The processes that an agent starts for its worker: their start, their end, and the end of their descendants."""

import errno
import os
import signal
import time

from . import linux
from .leftovers import SECONDS, Leftovers
from .loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    Become = Callable[[list[str], dict[str, str]], object]

SIGNALS_TO_RESTORE = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM", "SIGPIPE", "SIGXFSZ", "SIGCHLD")
MARK = "MUSTER_PROCESS"  # variable that says from which of the agent's processes a process descends


def spawn(
    argv: "list[str]",
    env: "dict[str, str]",
    cwd: str,
    output: int,
    errors: "int | None" = None,
    source: "int | None" = None,
    has_terminal: bool = False,
    become: "Become | None" = None,
) -> int:
    """Start a process that leads its own session and is killed when this one ends.

    Args:
        argv: its command line; the program is looked up in the PATH of ``env``.
        env: its whole environment.
        cwd: its working directory.
        output: descriptor of its standard output.
        errors: descriptor of its standard error; None for the same.
        source: descriptor of its standard input; None for the null device.
        has_terminal: whether ``source`` is a terminal, which becomes its controlling terminal.
        become: called in the fork with command line and environment in place of an exec, and does not return.

    Returns:
        Its process id.

    Raises:
        OSError: it cannot be started; ``filename`` says what is missing.
    """
    status_reader, status_writer = os.pipe()  # closed by a successful exec; otherwise it transmits the error
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(status_reader)
        os.close(status_writer)
        raise
    if pid == 0:
        culprit = argv[0] if argv else ""
        try:
            os.setsid()
            linux.signal_at_parent_death(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            _restore_signals()
            _redirect(source, output, output if errors is None else errors)
            if has_terminal:
                _take_terminal()
            culprit = cwd
            os.chdir(cwd)
            culprit = argv[0]
            if become is not None:
                become(argv, env)
            os.execvpe(argv[0], argv, env)
        except Exception as error:
            number = getattr(error, "errno", None) or errno.EINVAL
            os.write(status_writer, "{} {}".format(number, culprit).encode("utf-8", "replace"))
        finally:
            os._exit(127)
    os.close(status_writer)
    with open(status_reader, "rb") as status:
        failure = status.read()
    if failure:
        os.waitpid(pid, 0)
        number, _, name = failure.decode("utf-8").partition(" ")
        raise OSError(int(number), os.strerror(int(number)), name)
    return pid


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _restore_signals() -> None:
    signal.set_wakeup_fd(-1)
    for name in SIGNALS_TO_RESTORE:
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def _redirect(source: "int | None", output: int, errors: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    # Duplicated first, as one of the descriptors may be 0, 1 or 2 itself.
    ends = [os.dup(end) for end in (nothing if source is None else source, output, errors)]
    for target, end in enumerate(ends):
        os.dup2(end, target)


class Child:
    """One process that the agent has started.

    Attributes:
        pid: its process id, and that of its session and process group.
        key: value of the variable ``MARK`` in its environment and that of its descendants.
        rank: its rank; None where it has none.
        on_exit: called with this object once the process has ended.
        exit_code, signal: how it ended.
        is_asked: whether it has been asked to end.
        reason: ``memory`` or ``stopped`` where the agent ended it.
        memory: bytes of memory that it and its descendants used, if that was too much.
        ended_at: ``time.monotonic()`` when its end was noticed.
        late: seconds by which its end may have been noticed later than usual.
    """

    def __init__(self, pid: int, key: str, rank: "int | None", on_exit: "Callable[[Child], object]") -> None:
        self.pid = pid
        self.key = key
        self.rank = rank
        self.on_exit = on_exit
        self.exit_code: "int | None" = None
        self.signal: "int | None" = None
        self.is_asked = False
        self.reason: "str | None" = None
        self.memory: "int | None" = None
        self.ended_at = 0.0
        self.late = 0.0


class Children:
    """All processes of one worker.

    Args:
        loop: the agent's event loop.
        output: descriptor of the worker's log.

    Attributes:
        on_suspended: called with a process and True when it is suspended, as by SIGSTOP, and False when it goes on.
    """

    def __init__(self, loop: Loop, output: int) -> None:
        self._loop = loop
        self._output = output
        self._started = 0
        self._leftovers = Leftovers()
        self.services: "dict[int, Callable[[int], object]]" = {}
        self.running: "dict[int, Child]" = {}
        self.on_suspended: "Callable[[Child, bool], object]" = lambda child, is_suspended: None
        self.marks: "set[str]" = set()  # marks of services whose daemons are left alone as long as the services run

    def start(
        self,
        argv: "list[str]",
        env: "dict[str, str]",
        cwd: str,
        rank: "int | None",
        on_exit: "Callable[[Child], object]",
        output: "int | None" = None,
        source: "int | None" = None,
        become: "Become | None" = None,
    ) -> Child:
        """Start one process. ``on_exit`` is called with its ``Child`` when it has ended.

        Its output goes to the descriptor ``output``, or else to the worker's log; it reads from ``source``, if given;
        ``become`` is passed to ``spawn``.

        Raises:
            OSError: it cannot be started.
        """
        self._started += 1
        key = str(self._started)
        target = self._output if output is None else output
        pid = spawn(argv, dict(env, **{MARK: key}), cwd, target, source=source, become=become)
        self.running[pid] = child = Child(pid, key, rank, on_exit)
        return child

    def expect_end(self, pid: int, on_exit: "Callable[[int], object]") -> None:
        """Call ``on_exit(status)`` when the service ``pid``, which was not started by this class, has ended."""
        self.services[pid] = on_exit

    def reap(self) -> None:
        """Collect processes that have ended, and kill what they left behind. To be called on SIGCHLD."""
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if not (os.WIFEXITED(status) or os.WIFSIGNALED(status)):  # it is suspended or goes on
                if pid in self.running:
                    self.on_suspended(self.running[pid], os.WIFSTOPPED(status))
                continue
            if pid in self.running:
                ended.append(self._record_end(self.running.pop(pid), status))
            elif pid in self.services:
                self.services.pop(pid)(status)
        self.kill_leftovers()
        for child in ended:
            child.on_exit(child)

    def kill_leftovers(self) -> None:
        """Kill orphans of processes that have ended. Orphans of running ones are daemons, and left alone."""
        orphans = [pid for pid in linux.children() if pid not in self.running and pid not in self.services]
        if not orphans:
            return
        alive = {os.fsencode("{}={}".format(MARK, child.key)) for child in self.running.values()}
        alive |= {os.fsencode("{}={}".format(MARK, mark)) for mark in self.marks}
        prefix = os.fsencode(MARK + "=")
        for orphan in orphans:
            marks = {entry for entry in linux.environment_of(orphan) if entry.startswith(prefix)}
            if marks and marks.isdisjoint(alive) and self.kill_tree(orphan):
                self._loop.call_later(SECONDS, self.kill_leftovers)

    def signal(self, child: Child, signum: int) -> None:
        """Send a signal to a process and to the rest of its process group."""
        linux.kill_group(child.pid, signum)

    def end(self, child: Child, grace: float, reason: "str | None") -> None:
        """Ask a process to end, unless it was asked before, and kill it and its descendants after ``grace`` seconds."""
        child.reason = child.reason or reason
        if not child.is_asked:  # a second signal could interrupt a handler that saves something
            child.is_asked = True
            self.signal(child, signal.SIGTERM)
        self._loop.call_later(grace, lambda: self.kill(child))

    def kill(self, child: Child) -> None:
        """Kill a process and its descendants, if it still runs."""
        if self.running.get(child.pid) is child:
            self.kill_tree(child.pid)

    @staticmethod
    def hang_up(pid: int) -> None:
        """Send a process group the signals of a terminal that has hung up, and SIGTERM."""
        for signum in (signal.SIGHUP, signal.SIGCONT, signal.SIGTERM):
            linux.kill_group(pid, signum)

    def kill_tree(self, root: int) -> bool:
        """Kill a process and its descendants; return whether some were given time, as ``Leftovers.kill`` does."""
        return self._leftovers.kill([root] + linux.descendants(root, linux.snapshot()))

    @staticmethod
    def _record_end(child: "Child", status: int) -> "Child":
        child.ended_at = time.monotonic()
        child.late = linux.lateness()
        if os.WIFSIGNALED(status):
            child.signal = os.WTERMSIG(status)
        else:
            child.exit_code = os.WEXITSTATUS(status)
        return child


def cannot_start(argv: "list[str]", error: "OSError") -> str:
    """Return, in words, why a process could not be started."""
    missing = error.filename or (argv[0] if argv else "")
    why = "not found" if error.errno == errno.ENOENT else (error.strerror or str(error)).lower()
    return "cannot start {}: {}: {}".format(argv[0] if argv else "an empty command", missing, why)


def outcome_of(child: Child) -> "dict[str, object]":
    """Return a worker's outcome, given its ended process."""
    outcome: "dict[str, object]" = {"exit_code": child.exit_code, "signal": child.signal}
    if child.reason == "stopped":
        outcome["status"] = "stopped"
    elif child.exit_code == 0:
        outcome["status"] = "succeeded"
    else:
        outcome.update(status="failed", reason=describe_end(child))
    return outcome


def describe_end(child: Child) -> str:
    """Return, in words, why a process counts as failed."""
    if child.reason == "memory" and child.memory is not None:
        return "It used {:.2f} GB of memory, more than it was given, and was ended for it.".format(child.memory / 1e9)
    if child.signal is not None:
        return "Its process was ended by {}.".format(signal_name(child.signal))
    return "Its process exited with status {}.".format(child.exit_code)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "signal {}".format(number)
