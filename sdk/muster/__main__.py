"""Entry point of the ``muster`` command, also as ``python -m muster``."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130  # the same exit status as that of later interrupts, in commands.main


def main() -> None:
    """Run the command, and handle Ctrl-C during its imports, which take a while, as commands.main does later."""
    try:
        from muster.commands.main import main as command

        command(prog_name="muster")
    except KeyboardInterrupt:
        if "_MUSTER_COMPLETE" not in os.environ:  # a shell's completion would insert it into the line being typed
            os.write(2, b"Interrupted.\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
