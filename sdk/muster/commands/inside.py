"""``muster exec`` and ``forward``: access to a worker of a run that is under way, whichever process has started it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import termios
import threading
import tty
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
    loopback address. RUN is an id, the beginning of one, or "last"; WORKER is a name such as worker-1, or its number.
    It goes on until Ctrl-C, or until the run has ended.

    \b
    Examples:
      muster forward last worker-0 6006            TensorBoard, at http://127.0.0.1:6006
      muster forward last worker-0 5678:0          a debugger, at a free port
    """
    there, here = _ports(port)
    opened = naming.under_way(run, "forward")
    worker = _member(opened, worker)
    try:
        listener = socket.create_server((LOOPBACK, here), backlog=MOST_CONNECTIONS)
    except OSError as error:
        raise JobError(
            f"Port {here} of this machine cannot be listened on: {error.strerror or error}.",
            advice=f"muster forward {run} {worker} {there}:0",
        ) from error
    with listener:
        click.echo(f"{LOOPBACK}:{listener.getsockname()[1]} is port {there} of {worker}; Ctrl-C ends that.", err=True)
        _serve(listener, opened, worker, there)


def _member(run: Run, worker: str) -> str:
    """Return the name by which the run's session knows that worker or rank; unchanged while the run has no plan."""
    return run.member(worker) if run.workers else worker


def _ports(text: str) -> tuple[int, int]:
    there, colon, here = text.partition(":")
    try:
        found = int(there), int(here if colon else there)
    except ValueError:
        found = (0, 0)
    if not (0 < found[0] < 1 << 16 and 0 <= found[1] < 1 << 16):
        raise click.BadParameter(f"{text!r} is no PORT or PORT:LOCAL.", param_hint="PORT")
    return found


def _serve(listener: socket.socket, run: Run, worker: str, port: int) -> None:
    """Forward connections until the run has ended: each on a thread, at most ``MOST_CONNECTIONS`` at once."""
    free = threading.Semaphore(MOST_CONNECTIONS)
    listener.settimeout(0.5)
    while True:
        free.acquire()
        connection = None
        while connection is None:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if run.status != "running":
                    click.echo(f"{run.run_id} has ended: {run.status}.", err=True)
                    return
        threading.Thread(target=_pass_on, args=(connection, run, worker, port, free), daemon=True).start()


def _pass_on(local: socket.socket, run: Run, worker: str, port: int, free: threading.Semaphore) -> None:
    def end(channel: int) -> None:
        with contextlib.suppress(OSError):
            local.shutdown(socket.SHUT_WR)

    try:
        with local:
            connection, answer = open_stream(run.run_dir, "forward", worker=worker, port=port)
            if "closed" in answer:
                connection.close()
                click.echo(f"{worker}: {clean(str(answer['closed'].get('text')))}", err=True)
                return
            local.setblocking(False)
            Pump(connection, local.fileno(), {OUTPUT: local.fileno()}, end).run()
    except RunUnreachable as error:
        click.echo(clean(str(error.message)), err=True)
    except OSError:  # the local program has closed the connection
        pass
    finally:
        free.release()


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
