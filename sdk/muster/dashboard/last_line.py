"""The last line of a worker's output that says something."""

from __future__ import annotations

import re
from dataclasses import dataclass

from muster.failure.logs import CRASH, THREAD_THAT_CRASHED, is_of_script
from muster.text.cleaning import clean

MAX_LINE = 500  # characters
MARK = re.compile(r"--- attempt \d+ ---")  # a line that Muster writes into the log
OF_REPORT = re.compile(r"  |(?:Current thread|Thread|Extension modules|Python runtime state)\b|\Z")


@dataclass
class LastLine:
    """Finds the last line with a letter or a digit; of a crash's report, the innermost call of the script.

    A report ends with the outermost calls, which are Muster's. Where the script's are unknown, its heading is shown.
    """

    shown: str = ""
    _unfinished: str = ""
    _is_in_report: bool = False
    _looks_for_call: bool = False  # in the stack of the thread that crashed

    def read(self, text: str) -> str:
        """Take some of the output, and return the last line so far."""
        text = self._unfinished + text
        if not self._is_in_report and CRASH not in text:
            text = text[-4 * MAX_LINE :]  # as lines before that are not needed
        *lines, rest = re.split(r"[\r\n]+", text)
        found = [line for line in lines if self._is_news(line)]
        if not self._is_in_report and _says_something(rest):
            found.append(rest)
        self._unfinished = rest[-MAX_LINE:]
        if found:
            self.shown = clean(found[-1]).expandtabs(4).strip()[:MAX_LINE]
        return self.shown

    def _is_news(self, line: str) -> bool:
        """Return whether a line may be shown."""
        if CRASH in line:
            self._is_in_report, self._looks_for_call = True, False
            return True
        self._is_in_report = self._is_in_report and OF_REPORT.match(line) is not None
        if not self._is_in_report:
            return _says_something(line)
        if not line.startswith("  "):
            self._looks_for_call = line.startswith(THREAD_THAT_CRASHED)
        elif self._looks_for_call and is_of_script(line):
            self._looks_for_call = False
            return True
        return False


def _says_something(line: str) -> bool:
    return any(map(str.isalnum, line)) and not MARK.match(line)
