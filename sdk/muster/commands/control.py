"""``muster stop`` and ``stacks``: requests to a run that is under way, whichever process has started it."""

from __future__ import annotations

import click

from muster.commands import completion, naming
from muster.commands.wrapping import say
from muster.errors import RunUnreachable
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
        say(f"{opened.run_id} has ended already: {opened.status}.")
        return
    try:
        opened.stop(SECONDS_TO_END, now=now)
    except TimeoutError:
        raise RunUnreachable(
            f"Run {opened.run_id} has been asked to stop, and has not ended after {SECONDS_TO_END:g} s.",
            advice=f"muster stop --now {opened.run_id}",
        ) from None
    say(f"{opened.run_id} has ended: {opened.status}.")


@click.command()
@click.argument("run", default="last", shell_complete=completion.living_run_ids)
@click.argument("worker", required=False, shell_complete=completion.workers)
def stacks(run: str, worker: str | None) -> None:
    """Print where every rank of RUN, or one of them, is right now.

    These are the Python stacks of all its threads, which show where a run hangs. RUN is an id, the beginning of one, or
    "last", which is the default. WORKER is a name such as worker-1, a rank such as rank-1, or the number of either.
    """
    opened = naming.under_way(run, "stacks")
    wanted = opened.member(worker) if worker and opened.worker_names else worker
    found = {name: text for name, text in opened.stacks().items() if wanted is None or _is_of(wanted, name)}
    for name, text in found.items():
        click.echo(f"{clean(name)}:\n{clean(text).rstrip()}\n")
    if not found:
        say(f"{f'Nothing of {wanted}' if wanted else 'No rank'} runs now.", err=True)


def _is_of(member: str, process: str) -> bool:
    """Return whether a process, by its name in messages, is the rank or belongs to the worker ``member``."""
    rank, _, worker = process.rpartition(" (")  # "rank 1 (worker-1)", or "worker-1" alone
    return member in (rank.replace(" ", "-"), worker.rstrip(")"))
