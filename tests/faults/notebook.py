"""A notebook as a process: runs one cell, and writes down what came out.

Arguments: the cell's text, and the file for its outcome.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell started in the background
outcome: dict[str, str | float | None] = {"raised": None, "text": "", "repr": ""}
try:
    try:
        exec(compile(sys.argv[1], "<cell>", "exec"))
    except BaseException as error:
        outcome = {"raised": type(error).__name__, "text": str(error), "repr": repr(error)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
except KeyboardInterrupt:  # one more, which came when the cell had ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
outcome["at"] = time.time()
Path(sys.argv[2]).write_text(json.dumps(outcome))
