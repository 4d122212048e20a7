"""The ``muster`` command: its subcommands, its errors and its exit statuses."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import click

from muster import __version__
from muster.commands import completion
from muster.commands.clean import clean_up
from muster.commands.control import stacks, stop
from muster.commands.doctor import doctor
from muster.commands.inside import execute, forward
from muster.commands.logs import logs
from muster.commands.options import NEAR
from muster.commands.plan import plan
from muster.commands.run import as_options, run
from muster.commands.runs import runs
from muster.commands.serve import serve
from muster.commands.show import attach, explain, show
from muster.commands.trust import trust
from muster.commands.wrapping import HelpContext, columns, wrapped
from muster.errors import (
    JobError,
    MusterError,
    PlatformError,
    PlatformUnsupported,
    RunNotFound,
    RunStalled,
    RunStopped,
    RunTimeout,
    StartTimeout,
)
from muster.runtime import outlet
from muster.text.cleaning import clean

FAILED, INTERRUPTED = 1, 130
ERROR = "Error: "
OTHER_NAMES = {  # other names that people use for a command
    "status": "show", "info": "show", "describe": "show", "ps": "runs", "list": "runs", "ls": "runs", "history": "runs",
    "kill": "stop", "cancel": "stop", "log": "logs", "tail": "logs", "ssh": "exec", "watch": "attach", "why": "explain",
    "start": "run", "submit": "run", "launch": "run", "check": "doctor", "prune": "runs --prune", "rm": "runs --prune",
    "port-forward": "forward",
}  # fmt: skip
SECONDS_TO_SAY = 3.0  # how long a message waits for a terminal that has stopped reading
EXIT_CODES: tuple[tuple[type[MusterError], int], ...] = (
    (JobError, 2),
    (RunNotFound, 2),
    (PlatformUnsupported, 2),
    (StartTimeout, 3),
    (PlatformError, 3),
    (RunTimeout, 124),
    (RunStalled, 124),
    (RunStopped, INTERRUPTED),
)


class ErrorsAsExitCodes(click.Group):
    """A group of commands that turns Muster's exceptions into a message and an exit status.

    Help is as wide as the terminal, or as ``COLUMNS`` says; in a pipe it has 100 columns, where click's own has 80.
    """

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Make the context, which the commands inherit from."""
        extra.setdefault("terminal_width", columns(otherwise=100))
        return super().make_context(*args, **extra)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the program: open missing standard streams, and do not fail where nobody reads standard output.

        ``invoke`` guards standard output as well, but click prints help before it calls that.
        """
        outlet.fill_standard_streams()
        if "_MUSTER_COMPLETE" in os.environ:
            completion.prepare()
        with _stdout_may_end():
            return super().main(*args, **extra)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command; refuse a misspelt name, or one used elsewhere, with the name that is likely meant."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name.lower(), self.commands, n=1, cutoff=NEAR)
            meant = OTHER_NAMES.get(name.lower()) or (near[0] if near else None)
            if meant:
                raise click.UsageError(f"No such command {name!r}. Did you mean {meant!r}?", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and turn its exceptions into messages and exit statuses."""
        try:
            with _stdout_may_end():
                return super().invoke(ctx)
        except MusterError as error:
            _say_error(wrapped(clean(_spelled(error)), sys.stderr, len(ERROR)))
            ctx.exit(exit_code(error))
        except click.UsageError as error:
            said = wrapped(self._in_words(ctx, error), sys.stderr, len(ERROR))
            raise click.UsageError(said, error.ctx) from None
        except KeyboardInterrupt:
            _say("Interrupted.")
            ctx.exit(INTERRUPTED)

    def _in_words(self, ctx: click.Context, error: click.UsageError) -> str:
        """Return what is wrong with a command line, and the option that is likely meant, or the value it lacks."""
        if isinstance(error, click.NoSuchOption):
            near = difflib.get_close_matches(error.option_name, error.possibilities or (), cutoff=NEAR)
            return click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx).format_message()
        if isinstance(error, click.BadOptionUsage) and error.message.endswith("requires an argument."):
            command = self.commands.get(ctx.invoked_subcommand or "", self)
            return f"{error.message[:-1]}: {_with_value(command, ctx, error.option_name)}"
        return error.format_message()


def _with_value(command: click.Command, ctx: click.Context, name: str) -> str:
    """Return an option of a command with the placeholder of its value, as in help."""
    options = [option for option in command.get_params(ctx) if name in option.opts]
    records = filter(None, (option.get_help_record(ctx) for option in options))
    return next((f"{name} {record[0].rpartition(' ')[2]}" for record in records), f"{name} VALUE")


@contextlib.contextmanager
def _stdout_may_end() -> Iterator[None]:
    """Ignore in the block that standard output is a pipe that nobody reads any more, as with ``| head``.

    If it cannot be written for another reason, such as a full disk, that is an error, unless the command failed before.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if not _is_of_output(error):
            raise
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # which takes what the interpreter still flushes at its end
        os.close(null)
        is_closed, before = isinstance(error, BrokenPipeError), error.__context__
        has_failed = isinstance(before, MusterError) or bool(getattr(before, "exit_code", getattr(before, "code", 0)))
        if isinstance(before, (click.exceptions.Exit, SystemExit, MusterError)) and (is_closed or has_failed):
            raise before from None
        if not is_closed:
            _say_error(f"The output cannot be written: {error.strerror}.")
            sys.exit(FAILED)


def _is_of_output(error: OSError) -> bool:
    """Return whether writing to standard output has raised this: by click, or by the flush above."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"] in ("click.utils", __name__)


def _say_error(text: str) -> None:
    """Write an error to standard error, with its first word in bold red, or only bold with NO_COLOR, if possible."""
    colour = None if os.environ.get("NO_COLOR") else "red"
    _say((click.style(ERROR, fg=colour, bold=True) if outlet.takes_escapes(sys.stderr) else ERROR) + text)


def _say(text: str) -> None:
    """Write to standard error, but give up on a terminal that has stopped reading."""
    outlet.write_within(sys.stderr, f"{text}\n", SECONDS_TO_SAY)


def _spelled(error: MusterError) -> MusterError:
    """Return the error, with the arguments in its message and advice written as options of the command line."""
    error.message = as_options(error.message)
    error.advice = as_options(error.advice or "")
    return error


def exit_code(error: MusterError) -> int:
    """Return the exit status that tells a calling script the kind of an error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), FAILED)


@click.group(cls=ErrorsAsExitCodes, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="muster %(version)s")
def main() -> None:
    """Distributed deep learning: run a training script on a cluster of workers.

    \b
    Examples:
      muster run -s parameter_server -n 2 --ps 1 worker_scripts/mnist_ps_tf1.py
      muster run -s horovod -n 4 --cpu 2 --memory 4 train.py --epochs 5
      muster plan -s horovod -n 4 train.py     what would be started
      muster explain last                      what went wrong
      muster stop last                         end a run, wherever it was started
      muster attach last                       watch a run, wherever it was started

    \b
    Exit status:
      0    success
      1    the run failed
      2    the job cannot be run as described, or not from here, or there is no such run
      3    the cluster did not come up
      124  the run took too long, or stalled
      130  interrupted or stopped

    Runs are recorded in ~/.muster/runs, or in $MUSTER_HOME/runs. MUSTER_DASHBOARD=rich, plain or off chooses how a run
    is shown. Completion for bash: eval "$(_MUSTER_COMPLETE=bash_source muster)"; zsh and fish likewise.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # logs may hold anything, also what this terminal cannot show


for command in (
    run, plan, attach, runs, show, logs, explain, stop, stacks, execute, forward, doctor, clean_up, serve, trust
):  # fmt: skip
    main.add_command(command)
for command in (main, *main.commands.values()):
    command.context_class = HelpContext
