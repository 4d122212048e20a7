"""``python -m muster``: the same as ``muster``."""

from muster.commands.main import main

main(prog_name="muster")
