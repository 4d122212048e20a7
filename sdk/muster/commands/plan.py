"""``muster plan``: what `muster run` would start."""

from __future__ import annotations

import shlex
from typing import Any

import click

from muster.commands import as_json
from muster.commands.meanwhile import CHECKING, saying
from muster.commands.run import as_options, course_options, job_options, make_request
from muster.commands.script_command import ScriptCommand
from muster.job import SERVER
from muster.security.ssh import SSH_PORT


@click.command(cls=ScriptCommand)
@job_options
@course_options
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option(
    "--submission", "submission_wanted", is_flag=True, help="Only what the platform's backend would be given, as it is."
)
@as_json.with_errors(as_options)
def plan(json_wanted: bool, submission_wanted: bool, quiet: bool, **options: Any) -> None:
    """Show what `muster run` would start, and start nothing.

    It takes all options of `muster run`, and refuses what that would refuse before a launch. Limits of time, restarts
    and -q make no difference to a plan.
    Addresses are placeholders: real ones are known once the workers have started.

    \b
    Examples:
      muster plan -s horovod -n 2 --slots 2 train.py --epochs 5
      muster plan -p slurm -s processes -n 4 --submission train.py > job.sh
      muster plan -p kubernetes --image my/image -s processes -n 2 --submission train.py > pods.yaml
      kubectl create --dry-run=server -f pods.yaml
    """
    from muster.checks.planning import describe
    from muster.run.check import check
    from muster.run.checked import describe_place

    with saying(CHECKING):
        checked = check(make_request(**options))
    if submission_wanted:
        click.echo(checked.submission_text(), nl=False)
        return
    where = {"platform": checked.platform.name, "session_address": list(checked.session_address)}
    data = where | describe(checked.preview(), checked.job)
    data["project"] = str(checked.project) if checked.project else None
    data["submission"] = checked.submission_text() or None
    data["warnings"] = checked.remarks()
    if json_wanted:
        as_json.echo(data)
    else:
        click.echo(f"{describe_place(checked)}\n\n{as_text(data)}")


def as_text(data: dict[str, Any]) -> str:
    """Return a plan as text for people."""
    lines = [f"{'project':<10} {data['project']}"] if data["project"] else []
    lines += [f"{role:<10} {', '.join(addresses)}" for role, addresses in data["cluster_spec"].items()]
    if data["environment"]:
        lines += ["", "every process:", *_environment_lines(data["environment"])]
    ranks_of: dict[str, list[str]] = {}
    for rank, worker in data["ranks"].items():
        ranks_of.setdefault(worker, []).append(rank)
    for name, process in data["processes"].items():
        ranks = ranks_of.get(name, [])
        lines += ["", name + (f" (rank {', '.join(ranks)})" if ranks else "") + f": {_equipment(data, name)}"]
        lines += _environment_lines(process["env"])
        for rank in ranks if data["rank_env"] else ():
            settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in data["rank_env"][rank].items())
            lines += [f"  rank {rank}: {settings}"]
        lines += [f"  $ {shlex.join(process['argv'])}"]
    if data["launcher"]:
        what = "starts every rank over ssh" if data["launcher"]["starts_ranks"] else "serves the ranks"
        lines += ["", f"{data['launcher']['where']}: {what}", *_environment_lines(data["launcher"]["env"])]
        lines += [f"  $ {shlex.join(data['launcher']['argv'])}"]
    for name, text in data["files"].items():
        if text is not None:
            lines += ["", name, *(f"  {line}" for line in text.splitlines())]
    if data["submission"]:
        lines += ["", data["submission"].rstrip()]
    lines += ["", *data["notes"], *(f"Warning: {warning}" for warning in data["warnings"])]
    return "\n".join(lines).strip("\n")


def _equipment(data: dict[str, Any], worker: str) -> str:
    """Return the resources of a worker of a plan, in words."""
    resources = data["ps_resources" if worker.rpartition("-")[0] == SERVER else "resources"]
    parts = [f"cpu {resources['cpu']:g}", f"memory {resources['memory']:g} GB", f"gpu {resources['gpu']}"]
    logs_in = data["launcher"] and data["launcher"]["starts_ranks"]
    return ", ".join([*parts, *([f"sshd on port {SSH_PORT}"] if logs_in else [])])


def _environment_lines(env: dict[str, str]) -> list[str]:
    return [f"  {variable}={shlex.quote(value)}" for variable, value in sorted(env.items())]
