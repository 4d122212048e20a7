"""``muster clean``: removes what runs have left on a platform for later runs."""

from __future__ import annotations

import sys
from typing import Any

import click

from muster.commands.options import NameIn, PlatformCommand
from muster.platforms import OTHER_NAMES, PLATFORMS, get_platform, platform_name
from muster.text.cleaning import clean


@click.command("clean", cls=PlatformCommand)
@click.option(
    "-p",
    "--platform",
    type=NameIn(PLATFORMS, OTHER_NAMES),
    help="Where to look.  [default: $MUSTER_PLATFORM, or the workbench in its sessions, or else local]",
)
def clean_up(platform: str | None, **options: Any) -> None:
    """Remove what runs have left on a platform for later ones.

    On hosts that is the cache of project files; on a container engine, that and the small images made of this Python.
    The next run makes them again. Nothing is removed that a living run needs, and no record: see `muster runs --prune`.

    \b
    Examples:
      muster clean -p hosts --hosts gpu1,gpu2
      muster clean -p containers
    """
    cleaning = get_platform(platform, **{name: value for name, value in options.items() if value is not None})
    try:
        cleaned = cleaning.clean()
    finally:
        cleaning.close()
    for words in cleaned.removed:
        click.echo(f"Removed: {clean(words)}")
    for words in cleaned.left:
        click.echo(clean(words), err=True)
    if not any(cleaned):
        click.echo(f"Nothing is kept for later runs on platform {platform_name(platform)}.")
    sys.exit(1 if cleaned.left else 0)
