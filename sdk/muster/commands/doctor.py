"""``muster doctor``: checks, before a launch, for what would make it fail."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from typing import Any

import click

from muster.commands import completion
from muster.commands.meanwhile import saying
from muster.commands.options import TimeSpan
from muster.commands.run import OPTIONS, as_options, make_request
from muster.commands.script_command import ScriptCommand
from muster.commands.wrapping import columns, print_rich

ONE_LINE = 10_000  # columns in a pipe, so that no finding is wrapped


def _doctor_options(command: Any) -> Any:
    """Give a command the options that describe a job, with a script that may be missing."""
    *options, _, args = OPTIONS
    script = click.argument("worker_script", metavar="[SCRIPT]", required=False, shell_complete=completion.files)
    for option in reversed([*options, script, args]):
        command = option(command)
    return command


@click.command(cls=ScriptCommand)
@_doctor_options
@click.option(
    "--timeout",
    "timeout_seconds",
    type=TimeSpan(min=0, min_open=True),
    default=60,
    show_default=True,
    help="How long the workers may take to come up.",
)
@click.option(
    "--run-timeout",
    type=TimeSpan(min=0, min_open=True),
    help="How long the run may take: to be held against the session's idle limit.",
)
@click.option("--session-address", metavar="HOST:PORT", help="Where workers reach this machine.  [default: found out]")
@click.option(
    "--no-launch", is_flag=True, help="Launch no workers and try no allreduce: leave out what only they can tell."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(
    worker_script: str | None,
    no_launch: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Look for what would make `muster run` fail, and for its fix.

    Takes the options of `muster run` that say what to run. Looks at SCRIPT and at what it imports, in the interpreter
    that will run it, and at this machine. Then launches the workers for some seconds, looks at what they have, and
    stops them. SCRIPT is not run.

    \b
    Examples:
      muster doctor -s horovod -n 2 train.py
      muster doctor -n 2 --ps 1 --python /opt/tf1/bin/python train.py --no-launch
      muster doctor -s mpi -n 4                       the cluster alone

    The exit status is 1 if something was found that makes the run fail.
    """
    from muster.checkup import Finding, Report, examine

    has_script = worker_script is not None
    if worker_script is None and options["strategy"] != "parameter_server":
        worker_script = shutil.which("true")  # such strategies need a script; it is not run
    with saying("looking at this machine ..." if no_launch else "looking at this machine, then at workers ..."):
        report = examine(make_request(worker_script=worker_script, **options), launch=not no_launch)
    if not has_script:
        text = "none is given, so this is about workers alone: with the options given, and the defaults of all others"
        if options["strategy"] == "parameter_server":
            text += "; the default strategy is that of TensorFlow's parameter servers"
        fix = "the options and the script of your run, such as -s processes -n 2 train.py"
        report = Report([Finding("warning", "script", text, fix), *report.findings])
    report = Report(
        replace(finding, text=as_options(finding.text), fix=as_options(finding.fix)) for finding in report.findings
    )
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        print_rich(report, width=columns(otherwise=ONE_LINE))
    sys.exit(0 if report.is_fine else 1)
