"""``muster stop`` and ``stacks``: requests to a run that is under way, whichever process it belongs to."""

from __future__ import annotations

import click

from muster.commands import completion
from muster.errors import JobError, RunUnreachable
from muster.records import lookup
from muster.text.cleaning import clean

SECONDS_TO_END = 60.0


@click.command()
@click.argument("run", shell_complete=completion.living_run_ids)
@click.option("--now", is_flag=True, help="Leave its processes no time to end by themselves.")
def stop(run: str, now: bool) -> None:
    """End RUN, wherever it was started.

    Its scripts get SIGTERM, and 1.5 s for ending by themselves. Returns once nothing of it is left. RUN is an id, the
    beginning of one, or "last".
    """
    opened = lookup.open_run(run)
    if opened.status != "running":
        click.echo(f"{opened.run_id} has ended already: {opened.status}.")
        return
    try:
        opened.stop(SECONDS_TO_END, now=now)
    except TimeoutError:
        raise RunUnreachable(
            f"Run {opened.run_id} has been asked to stop, and has not ended after {SECONDS_TO_END:g} s.",
            advice=f"muster stop --now {opened.run_id}",
        ) from None
    click.echo(f"{opened.run_id} has ended: {opened.status}.")


@click.command()
@click.argument("run", default="last", shell_complete=completion.living_run_ids)
def stacks(run: str) -> None:
    """Print where every rank of RUN is right now.

    These are the Python stacks of all its threads, which show where a run hangs. RUN is an id, the beginning of one, or
    "last", which is the default.
    """
    opened = lookup.open_run(run)
    if opened.status != "running":
        raise JobError(f"{opened.run_id} has ended: {opened.status}.", advice="its processes have ended with it")
    found = opened.stacks()
    for name, text in found.items():
        click.echo(f"{clean(name)}:\n{clean(text).rstrip()}\n")
    if not found:
        click.echo("No rank runs now.", err=True)
