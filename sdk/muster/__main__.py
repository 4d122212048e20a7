"""The ``muster`` command from its first moment on, as ``python -m muster`` or by its name."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130  # as commands.main says of later interrupts


def main() -> None:
    """Run the command. Its imports take a while, in which Ctrl-C means what it means later."""
    try:
        from muster.commands.main import main as command

        command(prog_name="muster")
    except KeyboardInterrupt:
        if "_MUSTER_COMPLETE" not in os.environ:  # else it would stand in the line that is being typed
            os.write(2, b"Interrupted.\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
