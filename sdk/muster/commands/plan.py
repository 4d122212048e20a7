"""``muster plan``: what `muster run` would start."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from muster.commands.launch import ScriptCommand, job_options, make_request
from muster.security.ssh import SSH_PORT


@click.command(cls=ScriptCommand)
@job_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def plan(as_json: bool, **options: Any) -> None:
    """Show what `muster run` would start, and start nothing.

    Addresses are placeholders: real ones are known once the workers have started.

    \b
    Example:
      muster plan -s horovod -n 2 --slots 2 train.py --epochs 5
    """
    from muster.checks.planning import describe, preview
    from muster.run.request import check, describe_place

    checked = check(make_request(**options))
    where = {"platform": checked.platform.name, "session_address": list(checked.session_address)}
    data = where | describe(preview(checked.job, checked.strategy, checked.probed), checked.job)
    data["warnings"] = checked.shortages()
    click.echo(json.dumps(data, indent=2) if as_json else f"{describe_place(checked)}\n\n{as_text(data)}")


def as_text(data: dict[str, Any]) -> str:
    """A plan as people read it."""
    lines = [f"{role:<10} {', '.join(addresses)}" for role, addresses in data["cluster_spec"].items()]
    for name, process in data["processes"].items():
        ranks = [rank for rank, worker in data["ranks"].items() if worker == name]
        lines += ["", name + (f" (rank {', '.join(ranks)})" if ranks else "") + f": {_equipment(data)}"]
        lines += _environment_lines(process)
        for rank in ranks if data["rank_env"] else ():
            settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in data["rank_env"][rank].items())
            lines += [f"  rank {rank}: {settings}"]
        lines += [f"  $ {shlex.join(process['argv'])}"]
    if data["driver"]:
        lines += ["", "session: starts every rank over ssh", *_environment_lines(data["driver"])]
        lines += [f"  $ {shlex.join(data['driver']['argv'])}"]
    for name, text in data["files"].items():
        if text is not None:
            lines += ["", name, *(f"  {line}" for line in text.splitlines())]
    lines += ["", *(f"Warning: {warning}" for warning in data["warnings"])]
    return "\n".join(lines).strip("\n")


def _equipment(data: dict[str, Any]) -> str:
    """Return the resources of each worker of a plan, in words."""
    resources = data["resources"]
    parts = [f"cpu {resources['cpu']:g}", f"memory {resources['memory']:g} GB", f"gpu {resources['gpu']}"]
    return ", ".join([*parts, *([f"sshd on port {SSH_PORT}"] if data["driver"] else [])])


def _environment_lines(process: dict[str, Any]) -> list[str]:
    return [f"  {variable}={shlex.quote(value)}" for variable, value in sorted(process["env"].items())]
