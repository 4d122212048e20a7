"""``muster exec`` and ``forward``: access to a worker of a run that is under way, whichever process has started it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import termios
import threading
import time
import tty
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from muster.commands import completion, naming
from muster.commands.streams import Pump
from muster.errors import JobError, MusterError, RunUnreachable
from muster.records.control import open_stream
from muster.records.runs import Run
from muster.text.cleaning import clean

OUTPUT, ERRORS = 1, 2
OF_SIGNALS = 128  # what shells add to the number of a signal for an exit status
SECONDS_TO_RECORD = 5.0  # until the end of a run is recorded, once its workers are gone
# Resets the modes in which a killed program may leave a terminal: the alternate screen, a hidden cursor, reports of the
# mouse and of pastes, other codes for keys, and colours.
LEFT_BY_PROGRAMS = b"\x1b[?47l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[m\r\n"
MOST_CONNECTIONS = 16  # to a forwarded port at once
LOOPBACK = "127.0.0.1"
LEFT_SECONDS = 5.0  # without a byte, after which a connection that its client has ended gives way to the next client
POLL_SECONDS = 0.5  # between two looks at whether the run has ended
LOOPS = 3  # connections at once that a worker has made to the very port that is forwarded to it


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-t", "--tty", "wants_terminal", is_flag=True, help="Give CMD a terminal of its own.")
@click.argument("run", shell_complete=completion.run_ids)
@click.argument("worker", shell_complete=completion.workers)
@click.argument("command", metavar="[CMD]...", nargs=-1, type=click.UNPROCESSED)
def execute(run: str, worker: str, command: tuple[str, ...], wants_terminal: bool) -> None:
    """Run CMD, or a shell, in a worker of RUN.

    It runs where the worker's script does: with its environment and in its working directory. RUN is
    an id, the beginning of one, or "last"; WORKER is a name such as worker-1, a rank such as rank-1, or the number of
    either. Input and output are passed on as they are, and the exit status is that of CMD. It ends with the run, and
    with Ctrl-C.

    \b
    Examples:
      muster exec last worker-0                        a shell
      muster exec last worker-0 -- nvidia-smi
      muster exec last rank-1 -- tar cz checkpoints > checkpoints.tar.gz
      muster exec -t last worker-0 -- top
    """
    opened = naming.under_way(run, "exec")
    words = list(command[1:] if command[:1] == ("--",) else command)
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty() and (wants_terminal or not words)
    details: dict[str, Any] = {"worker": _member(opened, worker), "argv": words}
    if has_terminal:
        details |= {"size": _size(), "terminal": os.environ.get("TERM", "")}
    connection, answer = open_stream(opened.run_dir, "exec", **details)
    if "closed" in answer:
        connection.close()
        click.echo(f"Error: {clean(str(answer['closed'].get('text')))}", err=True)
        sys.exit(answer["closed"].get("exit_code") or 1)
    pump = Pump(connection, sys.stdin.fileno(), {OUTPUT: sys.stdout.fileno(), ERRORS: sys.stderr.fileno()})
    try:
        with _raw_terminal(pump) if has_terminal else contextlib.nullcontext():
            closed = pump.run()
            if closed.exit_code is None and closed.signal is None:
                raise RunUnreachable(f"It was ended: {clean(closed.text)}.")
    except RunUnreachable as error:
        with contextlib.suppress(MusterError, TimeoutError):  # an error of the run says nothing about the command
            opened.wait(SECONDS_TO_RECORD)
        if opened.status == "running":
            raise
        raise RunUnreachable(f"It was ended with its run: {opened.run_id} has ended: {opened.status}.") from error
    sys.exit(closed.exit_code if closed.exit_code is not None else OF_SIGNALS + (closed.signal or 0))


@click.command()
@click.argument("run", shell_complete=completion.run_ids)
@click.argument("worker", shell_complete=completion.workers)
@click.argument("port", metavar="PORT[:LOCAL]")
def forward(run: str, worker: str, port: str) -> None:
    """Reach a port of a worker of RUN from here.

    PORT is a port of the worker, and LOCAL the port here: by default the same, 0 for any that is free. Only programs on
    this machine reach it, at 127.0.0.1. The program on the worker may listen at the worker's own address or at its
    loopback address; workers of the platform "local" are on this machine, and so are their ports. RUN is an id, the
    beginning of one, or "last"; WORKER is a name such as worker-1, a rank such as rank-1, or the number of either. It
    goes on until Ctrl-C, or until the run has ended.

    \b
    Examples:
      muster forward last worker-0 6006            TensorBoard, at http://127.0.0.1:6006
      muster forward last worker-0 5678:0          a debugger, at a free port
    """
    there, here = _ports(port)
    opened = naming.under_way(run, "forward")
    worker = opened.worker_of(worker) if opened.worker_names else worker
    try:
        listener = socket.create_server((LOOPBACK, here), backlog=MOST_CONNECTIONS)
    except OSError as error:
        raise JobError(
            f"Port {here} of this machine cannot be listened on: {error.strerror or error}.",
            advice=f"muster forward {run} {worker} {there}:0",
        ) from error
    with listener:
        local = listener.getsockname()[1]
        click.echo(f"{LOOPBACK}:{local} is port {there} of {worker}; Ctrl-C ends that.", err=True)
        forwarding = Forwarding(opened, worker, there)
        forwarding.serve(listener)
    if forwarding.is_loop:
        raise JobError(
            f"Only this command listens on port {there} of {worker}, which is on this machine, and has reached itself.",
            advice=f"start the program that is to listen there, then: muster forward {run} {worker} {there}:0",
        )
    click.echo(f"{opened.run_id} has ended: {opened.status}.", err=True)


def _member(run: Run, worker: str) -> str:
    """Return the name by which the run's session knows that worker or rank; unchanged while the run has no plan."""
    return run.member(worker) if run.worker_names else worker


def _ports(text: str) -> tuple[int, int]:
    there, colon, here = text.partition(":")
    try:
        found = int(there), int(here if colon else there)
    except ValueError:
        found = (0, 0)
    if not (0 < found[0] < 1 << 16 and 0 <= found[1] < 1 << 16):
        raise click.BadParameter(f"{text!r} is no PORT or PORT:LOCAL.", param_hint="PORT")
    return found


class Forwarding:
    """Connections to a port here that are passed on to a port of a worker, each on a thread of its own.

    Attributes:
        is_loop: whether they go round in a circle: the worker is on this machine, and what it reaches is the port here.
    """

    def __init__(self, run: Run, worker: str, port: int) -> None:
        self.is_loop = False
        self._run, self._worker, self._port = run, worker, port
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        self._pumps: dict[Pump, None] = {}  # oldest first
        self._counting = threading.Lock()  # held while one of the following is changed, or gone through
        self._came: Counter[int] = Counter()  # connections that last, by the port that they have come from
        self._went: Counter[int] = Counter()  # the same, by the port from which the worker has made its own

    def serve(self, listener: socket.socket) -> None:
        """Pass connections on until the run has ended, or they turn out to go round in a circle."""
        listener.settimeout(POLL_SECONDS)
        while not self.is_loop:
            connection = self._next(listener)
            if connection is not None:
                threading.Thread(target=self._pass_on, args=connection, daemon=True).start()
            elif self._run.status != "running":
                return

    def _next(self, listener: socket.socket) -> tuple[socket.socket, int] | None:
        """Return the next connection and the port that it comes from; None if there is none soon, or no room for it."""
        if not self._free.acquire(timeout=POLL_SECONDS):
            left = next((pump for pump in [*self._pumps] if pump.is_left(LEFT_SECONDS)), None)
            if left is not None:  # its client is gone, most likely, and the program on the worker does not care
                left.give_up()
            return None
        try:
            connection, (_, source) = listener.accept()
        except OSError as error:  # none has come, or it is gone already, or there are no descriptors left
            self._free.release()
            if not isinstance(error, TimeoutError):
                time.sleep(POLL_SECONDS)
            return None
        return connection, source

    def _pass_on(self, local: socket.socket, came: int) -> None:
        went = 0

        def end(channel: int) -> None:
            with contextlib.suppress(OSError):
                local.shutdown(socket.SHUT_WR)

        with self._counting:
            self._came[came] += 1
        try:
            with local:
                connection, answer = open_stream(self._run.run_dir, "forward", worker=self._worker, port=self._port)
                if "closed" in answer:
                    connection.close()
                    click.echo(f"{self._worker}: {clean(str(answer['closed'].get('text')))}", err=True)
                    return
                went = answer.get("source") or 0
                if went and self._goes_round(went):
                    connection.close()
                    return
                local.setblocking(False)
                pump = Pump(connection, local.fileno(), {OUTPUT: local.fileno()}, end)
                self._pumps[pump] = None
                try:
                    pump.run()
                finally:
                    del self._pumps[pump]
        except RunUnreachable as error:
            click.echo(clean(str(error.message)), err=True)
        except OSError:  # the local program has closed the connection
            pass
        finally:
            with self._counting:
                self._came[came] -= 1
                self._went[went] -= 1
            self._free.release()

    def _goes_round(self, went: int) -> bool:
        """Return whether this port is one from which the worker has reached this command.

        Of a worker on another machine one or two may be the same by chance.
        """
        with self._counting:
            self._went[went] += 1
            self.is_loop = self.is_loop or (self._came & self._went).total() >= LOOPS
        return self.is_loop


def _size() -> list[int]:
    size = os.get_terminal_size(sys.stdout.fileno())
    return [size.lines or 24, size.columns or 80]


@contextlib.contextmanager
def _raw_terminal(pump: Pump) -> Iterator[None]:
    """Send every key to the worker, and tell it when the terminal's size changes, until the block ends."""
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    handler = signal.signal(signal.SIGWINCH, lambda *_: pump.resize(*_size()))
    try:
        tty.setraw(number, termios.TCSADRAIN)  # keeps what has been typed ahead
        yield
    except RunUnreachable:
        os.write(sys.stdout.fileno(), LEFT_BY_PROGRAMS)
        raise
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
