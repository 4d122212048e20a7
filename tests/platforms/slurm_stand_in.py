"""Commands that stand in for Slurm's own: they say what they are told to say, and note how they were called."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from muster.platforms.slurm import commands

COMMAND = """#!/bin/sh
folder={folder}
echo "${{0##*/}} $*" >> "$folder/asked"
case "${{0##*/}} $*" in
    squeue*--me*) cat "$folder/mine" ;;
    squeue*) cat "$folder/all" ;;
    *) cat "$folder/${{0##*/}}.says"; cat "$folder/${{0##*/}}.complains" >&2; exit $(cat "$folder/${{0##*/}}.status") ;;
esac
"""


@dataclass
class StandIn:
    """Commands in a folder that say what a test has written."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        for name in (*commands.PROGRAMS, "sacct"):
            path = self.folder / "bin" / name
            path.write_text(COMMAND.format(folder=self.folder))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
            self.says(name, "")
        self.queue()

    @property
    def path(self) -> str:
        """A search path on which they are Slurm's."""
        return f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}"

    def says(self, command: str, text: str, *, complains: str = "", status: int = 0) -> None:
        """Have a command print this, and end so."""
        for name, content in (("says", text), ("complains", complains), ("status", str(status))):
            (self.folder / f"{command}.{name}").write_text(content)

    def queue(self, *mine: str, everybody: str = "") -> None:
        """Have the queue be this."""
        (self.folder / "mine").write_text("".join(f"{line}\n" for line in mine))
        (self.folder / "all").write_text(everybody)

    def has_a_job(self) -> None:
        """Have there be a node that takes what fits, and a job that runs on it."""
        self.says("sinfo", "main*|infinite|NO|n1|127.0.0.1|4096|8000000|idle|(null)\n")
        self.says("sbatch", "Welcome to the cluster\n7;west\n")
        self.queue("7|RUNNING|None|N/A|main|none")

    def asked(self, command: str = "") -> list[str]:
        """Return the calls of a command, or of all."""
        path = self.folder / "asked"
        return [line for line in path.read_text().splitlines() if line.startswith(command)] if path.exists() else []
