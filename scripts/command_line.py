"""Write docs/command-line.md: the help of every command, as ``muster COMMAND --help`` prints it.

.venv/bin/python scripts/command_line.py [--print]
"""

import sys
from pathlib import Path

import click
from click.testing import CliRunner
from muster.commands.main import main

PAGE = Path(__file__).resolve().parents[1] / "docs" / "command-line.md"
WIDTH = 100
HEAD = """\
# The command line

What `muster --help` and `muster COMMAND --help` print. The same calls in Python are in
[ways to call it](usage.md); what `--json` prints is described [by itself](json.md).
"""


def page() -> str:
    """Return the text of docs/command-line.md."""
    parts = [HEAD, _help_of("muster")]
    return "\n".join([*parts, *(f"## muster {name}\n\n{_help_of('muster', name)}" for name in main.commands)])


def _help_of(*words: str) -> str:
    runner = CliRunner(env={"COLUMNS": str(WIDTH)})
    done = runner.invoke(main, [*words[1:], "--help"], prog_name="muster", terminal_width=WIDTH)
    assert done.exit_code == 0, done.output
    return f"```text\n{click.unstyle(done.output).strip()}\n```\n"


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(page(), end="")
    else:
        PAGE.write_text(page(), encoding="utf-8")
