"""``python -m muster``: the same as ``muster``."""

from muster.cli import main

main(prog_name="muster")
