"""``muster run``: from options to a request, and from a request to a cluster."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from muster import platforms, strategies
from muster.commands import as_json, completion
from muster.commands.meanwhile import CHECKING, saying
from muster.commands.options import (
    AnyNumber,
    NameIn,
    Number,
    TimeSpan,
    WholeNumber,
)
from muster.commands.script_command import ScriptCommand
from muster.events import Event, Observer
from muster.events.data import RunEnded
from muster.job import Resources
from muster.platforms import PLATFORMS
from muster.run.attempts import BY_ITSELF, CAUSES
from muster.runtime.echo import without_echo
from muster.strategies import STRATEGIES
from muster.text.arguments import Argument, ArgumentText

if TYPE_CHECKING:
    from muster.dashboard import Dashboard
    from muster.run.checked import CheckedRun
    from muster.run.request import RunRequest


Command = TypeVar("Command", bound=Callable[..., Any])


def _environment(ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Return variables given as ``NAME=VALUE``, or as ``NAME`` with its value in this environment."""
    environment = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not name:
            raise click.BadParameter(f"{text!r} has no name.", ctx, parameter)
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise click.BadParameter(f"{name} can be no name of a variable.", ctx, parameter)
        if not equals and name not in os.environ:
            raise click.BadParameter(f"{name} is not set here; give {name}=VALUE.", ctx, parameter)
        environment[name] = value if equals else os.environ[name]
    return environment


def _name(ctx: click.Context, parameter: click.Parameter, name: str) -> str:
    """Refuse an empty name that was given, as an empty variable of a shell gives it."""
    if not name.strip() and ctx.get_parameter_source("name") is click.core.ParameterSource.COMMANDLINE:
        raise click.BadParameter("it is empty.", ctx, parameter)
    return name


# Each option has the name of the parameter of ``run_cluster`` that it sets, by which ``_as_option`` finds it.
OPTIONS: Sequence[Callable[[Command], Command]] = (
    click.option(
        "-s", "--strategy", type=NameIn(STRATEGIES, strategies.OTHER_NAMES), default="parameter_server",
        show_default=True, help="How the workers become a cluster.",
    ),
    click.option(
        "-p", "--platform", type=NameIn(PLATFORMS, platforms.OTHER_NAMES),
        help="Where workers run.  [default: $MUSTER_PLATFORM, or the workbench in its sessions, or else local]",
    ),
    click.option(
        "-n", "--workers", "n_workers", type=WholeNumber(min=1), default=1, show_default=True,
        help="Workers that train.",
    ),
    click.option("--ps", "n_ps", type=WholeNumber(min=0), default=0, show_default=True, help="Parameter servers."),
    click.option("--cpu", type=AnyNumber(), default=1, show_default=True, help="Cores of each worker."),
    click.option("--memory", type=AnyNumber(), default=2, show_default=True, help="Memory of each worker, in GB."),
    click.option(
        "--gpus", "nvidia_gpu", type=WholeNumber(min=0), default=0, show_default=True, help="GPUs of each worker."
    ),
    click.option("--ps-cpu", type=AnyNumber(), help="Cores of each parameter server.  [default: a worker's]"),
    click.option(
        "--ps-memory", type=AnyNumber(), help="Memory of each parameter server, in GB.  [default: a worker's]"
    ),
    click.option(
        "--ps-gpus", "ps_nvidia_gpu", type=WholeNumber(min=0),
        help="GPUs of each parameter server.  [default: a worker's]",
    ),
    click.option(
        "--python", default="", metavar="PATH", shell_complete=completion.files,
        help="Interpreter that runs the script.  [default: this one]",
    ),
    click.option(
        "--env", multiple=True, metavar="NAME[=VALUE]", callback=_environment,
        help="Environment variable of the script; repeatable. NAME alone takes the value from this environment, which "
        "keeps secrets off the command line. Values are never recorded.",
    ),
    click.option(
        "--project", multiple=True, metavar="PATH", shell_complete=completion.files,
        callback=lambda ctx, parameter, values: values or None,
        help="Folder whose files go to workers that share none with this machine, or files and folders in the working "
        "directory; repeatable; none for none.  [default: what git would track]",
    ),
    click.option(
        "--project-limit", type=Number(min=0, min_open=True), default=100, show_default=True, metavar="MB",
        help="How much that may be.",
    ),
    click.option(
        "--collect", multiple=True, metavar="PATTERN",
        help="Files in the working directories of such workers that are brought back at the end, such as "
        "'checkpoints/**'; repeatable.",
    ),
    click.option("--name", default="", callback=_name, help="What to call the run.  [default: the script's name]"),
    click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module, as with python -m."),
    click.argument("worker_script", metavar="SCRIPT", shell_complete=completion.files),
    click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=completion.files),
)  # fmt: skip


# How the run goes on. `muster plan` takes these options, too, so that it accepts every command line of `muster run`.
COURSE: Sequence[Callable[[Command], Command]] = (
    click.option(
        "--timeout",
        "timeout_seconds",
        type=TimeSpan(min=0),
        default=60,
        show_default=True,
        help="How long workers that have a place to run may take to come up, such as 90, which is seconds, or 15m; "
        "0 for as long as it takes.",
    ),
    click.option(
        "--queue-timeout",
        type=TimeSpan(min=0, min_open=True),
        help="How long workers may wait for a place to run.  [default: no limit]",
    ),
    click.option(
        "--run-timeout",
        type=TimeSpan(min=0, min_open=True),
        help="How long the run may take.  [default: no limit]",
    ),
    click.option(
        "--stall",
        "stall_seconds",
        type=TimeSpan(min=0, min_open=True),
        help="End the run when nothing has moved for so long, and show where every process hangs.  [default: never]",
    ),
    click.option(
        "--session-address", metavar="HOST:PORT", help="Where workers reach this machine.  [default: found out]"
    ),
    click.option(
        "--restarts",
        type=WholeNumber(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="Start all ranks again up to N times after a failure, to go on from the script's checkpoint.",
    ),
    click.option(
        "--restart-on",
        type=click.Choice(CAUSES),
        multiple=True,
        default=BY_ITSELF,
        show_default=True,
        help="After which failures; repeatable.",
    ),
    click.option(
        "--min-workers",
        type=WholeNumber(min=1),
        metavar="N",
        help="Start and go on with N workers at least, where others cannot be had.  [default: all]",
    ),
    click.option("--from-scratch", is_flag=True, help="A script without a checkpoint may begin again from nothing."),
    click.option(
        "--detach",
        type=TimeSpan(min=0, min_open=True),
        help="Return once the run has begun; it lives on by itself for so long at most, such as 8h, 90m or 600, "
        "which is seconds.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Show errors only."),
)


def course_options(command: Command) -> Command:
    """Give a command the options that say how a run is to go on."""
    for option in reversed(COURSE):
        command = option(command)
    return command


def job_options(command: Command) -> Command:
    """Give a command the options and arguments that describe a job."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def make_request(
    *,
    worker_script: str | None,
    cpu: float,
    memory: float,
    nvidia_gpu: int,
    ps_cpu: float | None,
    ps_memory: float | None,
    ps_nvidia_gpu: int | None,
    module: bool,
    **options: Any,
) -> RunRequest:
    """Return the request that the options describe; those without a field there are the strategy's or platform's."""
    from muster.run.request import RunRequest

    names = {field.name for field in fields(RunRequest)}
    resources = Resources(cpu=cpu, memory=memory, gpu=nvidia_gpu)
    return RunRequest(
        script=worker_script,
        resources=resources,
        ps_resources=resources.but(ps_cpu, ps_memory, ps_nvidia_gpu),
        is_module=module,
        options={name: value for name, value in options.items() if name not in names and value is not None},
        **{name: value for name, value in options.items() if name in names},
    )


def as_options(text: str) -> str:
    """Return ``text`` with the arguments of ``run_cluster`` that it names as the options of ``muster run``.

    >>> as_options(ArgumentText(Argument("memory", 4.0), ", or a longer ", Argument("timeout_seconds")))
    '--memory 4, or a longer --timeout'
    """
    return text.write(_as_option) if isinstance(text, ArgumentText) else text


def _as_option(argument: Argument) -> str:
    parameter = next((known for known in run.get_params(click.Context(run)) if known.name == argument.name), None)
    if parameter is None:  # the command line has no such option
        return argument.as_python()
    option = max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name
    value = f"{argument.value:g}" if isinstance(argument.value, float) else argument.value
    if isinstance(value, (list, tuple)):
        value = shlex.join(map(str, value))
        if not isinstance(parameter, click.Option):  # the script's own arguments
            return value
    return option if value is None or value is True or value == "" else f"{option} {shlex.quote(str(value))}"


@click.command(cls=ScriptCommand)
@job_options
@course_options
@click.option("--json", "json_wanted", is_flag=True, help="Print what came out as JSON, and nothing else but errors.")
@as_json.with_errors(as_options)
def run(quiet: bool, json_wanted: bool, **options: Any) -> None:
    """Run SCRIPT on a cluster of workers and wait until it has ended.

    SCRIPT is a file, or with -m a module. Options may stand before and after it; those that are none of muster's, and
    everything after a --, are the script's own.

    Horovod, MPI and plain processes run the script as every rank, MultiWorkerMirroredStrategy on every worker. Among
    parameter servers, a top-level run(cluster, server, task_index) is called on every worker; a script without one is
    run once, as the chief that coordinates the workers.

    \b
    Examples:
      muster run -n 2 --ps 1 worker_scripts/mnist_ps_tf1.py --sync
      muster run train.py --strategy horovod --workers 4 --epochs 5
      muster run -s horovod -n 4 train.py -- --name "the script's own"
      muster run -s horovod -n 2 --slots 2 -m my_package.train
      muster run -s mpi -n 2 --slots 4 --mpi-args "--mca btl_tcp_links 2" ./allreduce
      muster run -s horovod -n 2 --env API_KEY --stall 120 train.py
      muster run -s horovod -n 2 --detach 8h train.py

    In a terminal the run is shown live; elsewhere, as in a file, each change of its state is a line. What the scripts
    print is in the run's logs: `muster logs last` prints it, and `muster logs -f last` while it comes.

    The exit status is that of `muster --help`. Ctrl-C stops the run and everything it started: scripts get SIGTERM and
    1.5 s for ending by themselves, and a second Ctrl-C leaves them none.
    """
    from muster.dashboard import NoDashboard, choose
    from muster.records.runs import Run
    from muster.run.check import check
    from muster.run.cluster import Cluster

    with saying(CHECKING):
        checked = check(make_request(**options))
    if checked.limits.detached is not None:
        _detach(checked, quiet=quiet, json_wanted=json_wanted)
        return
    dashboard = NoDashboard() if quiet or json_wanted else choose()
    cluster = Cluster.of(checked)
    cluster.subscribe(_without_cause(dashboard), at_once=True)  # so that a second Ctrl-C lets it see the end
    with _terminated_like_interrupted(), without_echo():
        try:
            with cluster:
                cluster.wait()
        finally:
            dashboard.close()
            if json_wanted and cluster.run_id:
                as_json.echo(as_json.outcome(Run(cluster.run_dir), as_options))


def _detach(checked: CheckedRun, *, quiet: bool, json_wanted: bool) -> None:
    """Start the run in a process of its own, and say how to reach it."""
    from muster.commands import as_json
    from muster.run import controller

    checked.shortages()
    begun = controller.start(checked)
    if json_wanted:
        as_json.echo(as_json.summary(begun))
        return
    click.echo(begun.run_id)
    if not quiet:
        click.echo(f"To watch it: muster attach {begun.run_id}\nTo end it:   muster stop {begun.run_id}", err=True)


def _without_cause(dashboard: Dashboard) -> Observer:
    """Return an observer that shows events on the dashboard without the cause of a failure.

    This command's error tells the cause, in more detail.
    """

    def show(event: Event) -> None:
        if isinstance(event.data, RunEnded):
            event = replace(event, data=RunEnded(event.data.status))
        dashboard(event)

    return show


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the run as Ctrl-C does, as by default they would end this process at once."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(f"by {signal.Signals(number).name}")

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not ignored, as it is under nohup
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
