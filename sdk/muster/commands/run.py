"""``muster run``: from options to a request, and from a request to a cluster."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import shlex
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from muster import platforms, strategies
from muster.commands import as_json, completion
from muster.commands.options import (
    NEAR,
    AnyNumber,
    DeclaredOption,
    NameIn,
    Number,
    PlatformCommand,
    TimeSpan,
    WholeNumber,
    platform_options,
    strategy_options,
)
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
    from muster.run.request import CheckedRun, RunRequest

LONGEST_SCRIPT = 1_000_000  # characters of it in which its own options are looked for

NUMBER = re.compile(r"[\d.]+")
UNIT = re.compile(r"d(ays?)?|h(rs?|ours?)?|m(ins?|inutes?)?|s(ecs?|econds?)?", re.IGNORECASE)

Command = TypeVar("Command", bound=Callable[..., Any])


class ScriptCommand(PlatformCommand):
    """A command that takes its own options before SCRIPT and after it; any other after SCRIPT is the script's.

    Only whole names count after SCRIPT (``-bs`` is never ``-b -s``), and ``--`` ends the command's own options.
    """

    allow_interspersed_args = False

    def declared_options(self) -> Iterator[DeclaredOption]:
        """The options that strategies and platforms declare."""
        yield from strategy_options()
        yield from platform_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command's own options first, which is where click looks for them."""
        options = {
            name: parameter
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        takes_value = {name: not parameter.is_flag for name, parameter in options.items()}
        try:
            rest = super().parse_args(ctx, own_options_first(args, takes_value))
        except click.NoSuchOption as error:
            if difflib.get_close_matches(error.option_name, takes_value, cutoff=NEAR):
                raise
            missing = "" if names_script(args, takes_value) else ", and SCRIPT is missing"
            words = f"No such option {error.option_name!r}{missing}: options after SCRIPT are the script's own."
            raise click.UsageError(words, ctx) from None
        script = ctx.params.get("worker_script")
        times = {name for name, parameter in options.items() if isinstance(parameter.type, TimeSpan)}
        for unit, meant in times_in_two_words(args, times).items():
            if unit != script:
                click.echo(f"Warning: {unit} goes to the script. Try: {meant}", err=True)
            elif not ctx.params.get("module") and not os.path.exists(script):
                raise click.UsageError(f"{script!r} stands where SCRIPT does. Try: {meant}", ctx)
        for word, meant in misspelt(args, takes_value, _text_of(script)).items():
            click.echo(f"Warning: {word} is no option of muster and goes to the script. Try: {meant}", err=True)
        return rest


def own_options_first(args: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """The arguments with all known options in front of SCRIPT.

    Args:
        args: what stands on the command line.
        takes_value: for each known option, whether a value follows it.

    >>> own_options_first(["train.py", "--epochs", "3", "-n", "2", "--", "-n"], {"-n": True})
    ['-n', '2', 'train.py', '--epochs', '3', '-n']
    """
    own: list[str] = []
    rest: list[str] = []  # SCRIPT and what is the script's
    words = iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        if word == "--" and rest:
            rest += words
        elif name in takes_value and (name.startswith("--") or not equals):
            own += [word, *(itertools.islice(words, 1) if takes_value[name] and not equals else ())]
        elif rest or not word.startswith("-"):
            rest.append(word)
        else:
            own.append(word)  # click says what is wrong with it
    return own + rest


def names_script(args: Sequence[str], takes_value: Mapping[str, bool]) -> bool:
    """Return whether any of the words may name a script: those that follow unknown options may be their values.

    >>> names_script(["-n", "2", "--epochs", "3"], {"-n": True}), names_script(["--epochs", "3", "train.py"], {})
    (False, True)
    """
    words = iter(args)
    for word in words:
        if takes_value.get(word):
            next(words, None)
        elif not word.startswith("-") and not NUMBER.fullmatch(word):
            return True
    return False


def times_in_two_words(args: Sequence[str], times: Collection[str]) -> dict[str, str]:
    """Units that are words of their own, and so are none of a time, each with what may have been meant.

    >>> times_in_two_words(["--detach", "8", "hours", "train.py", "--stall=2", "min"], {"--detach", "--stall"})
    {'hours': '--detach 8h', 'min': '--stall 2m'}
    """
    own = itertools.takewhile(lambda word: word != "--", args)
    words = [part for word in own for part in word.split("=", 1)]
    return {
        unit: f"{option} {number}{unit[0].lower()}"
        for option, number, unit in zip(words, words[1:], words[2:], strict=False)
        if option in times and NUMBER.fullmatch(number) and UNIT.fullmatch(unit)
    }


def misspelt(args: Sequence[str], takes_value: Mapping[str, bool], script: str = "") -> dict[str, str]:
    """Words for the script that look like an option of the command, each with what may have been meant.

    Args:
        args: what stands on the command line. What is behind a ``--`` is the script's without doubt.
        takes_value: for each known option, whether a value follows it.
        script: the text of the script; an option that it names is its own.

    >>> misspelt(["train.py", "--strategi=mpi", "-n2", "--epochs", "3"], {"--strategy": True, "-n": True})
    {'--strategi': '--strategy', '-n2': '-n 2'}
    """
    found = {}
    known = [name for name in takes_value if name.startswith("--")]
    for word in itertools.takewhile(lambda word: word != "--", args):
        name = word.partition("=")[0]
        if name in takes_value and name.startswith("--"):
            continue
        if name.startswith("--"):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            own = {name[2:], name[2:].replace("-", "_")}
            if near and not any(re.search(rf"(?<!\w){re.escape(text)}(?!\w)", script) for text in own):
                found[name] = near[0]
        elif (short := re.fullmatch(r"(-\w)=?(\d+)", word)) and takes_value.get(short[1]) and short[1] not in script:
            found[word] = f"{short[1]} {short[2]}"
    return found


def _text_of(script: str | None) -> str:
    """Text of a script's file; empty where there is none that can be read."""
    try:
        with open(script or "", encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST_SCRIPT)
    except (OSError, ValueError):
        return ""


def _environment(ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` as it is, and ``NAME`` with its value in this environment."""
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
    """Refuse a name that is given and says nothing, as an empty variable of a shell does."""
    if not name.strip() and ctx.get_parameter_source("name") is click.core.ParameterSource.COMMANDLINE:
        raise click.BadParameter("it is empty.", ctx, parameter)
    return name


# Each has the name of the parameter of ``run_cluster`` that it stands for, by which ``_as_option`` finds it.
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
    click.option("--ps-memory", type=AnyNumber(), help="Memory of each parameter server.  [default: a worker's]"),
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


# How the run goes on, which a plan takes as well, so that `muster plan` may stand in place of `muster run`.
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
        help="How long workers may wait for a place to run.",
    ),
    click.option("--run-timeout", type=TimeSpan(min=0, min_open=True), help="How long the run may take."),
    click.option(
        "--stall",
        "stall_seconds",
        type=TimeSpan(min=0, min_open=True),
        help="End the run when nothing has moved for so long, and show where every process hangs.",
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
    """The request that the options describe; some are the strategy's or the platform's."""
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


@click.command(cls=ScriptCommand)
@job_options
@course_options
@click.option("--json", "json_wanted", is_flag=True, help="Print what came out as JSON, and nothing else but errors.")
@as_json.with_errors
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
    from muster.run.cluster import Cluster
    from muster.run.request import check

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
                as_json.echo(as_json.outcome(Run(cluster.run_dir)))


def _detach(checked: CheckedRun, *, quiet: bool, json_wanted: bool) -> None:
    """Start the run in a process of its own, and say how to reach it."""
    from muster.commands import as_json
    from muster.run import controller

    begun = controller.start(checked)
    if json_wanted:
        as_json.echo(as_json.summary(begun))
        return
    click.echo(begun.run_id)
    if not quiet:
        click.echo(f"To watch it: muster attach {begun.run_id}\nTo end it:   muster stop {begun.run_id}", err=True)


def _without_cause(dashboard: Dashboard) -> Observer:
    """The dashboard, but for why the run failed: this command's error says that, with more around it."""

    def show(event: Event) -> None:
        if isinstance(event.data, RunEnded):
            event = replace(event, data=RunEnded(event.data.status))
        dashboard(event)

    return show


def as_options(text: str) -> str:
    """Return ``text`` with the arguments of ``run_cluster`` that it names as the options of ``muster run``.

    >>> as_options(ArgumentText(Argument("memory", 4.0), ", or a longer ", Argument("timeout_seconds")))
    '--memory 4, or a longer --timeout'
    """
    return text.write(_as_option) if isinstance(text, ArgumentText) else text


def _as_option(argument: Argument) -> str:
    parameter = next((known for known in run.get_params(click.Context(run)) if known.name == argument.name), None)
    if parameter is None:  # nothing that the command line can say
        return argument.as_python()
    option = max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name
    value = f"{argument.value:g}" if isinstance(argument.value, float) else argument.value
    if isinstance(value, list):  # words of the script's own
        return shlex.join(map(str, value))
    return option if value is None or value is True or value == "" else f"{option} {shlex.quote(str(value))}"


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM, and the end of the terminal, end the run as Ctrl-C does: they would end this process at once."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else somebody, such as nohup, wants it to go on
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
