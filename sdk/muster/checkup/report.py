"""The findings of ``muster doctor``, and their display."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from muster.errors import MusterError
from muster.text.cleaning import clean

if TYPE_CHECKING:
    from rich.table import Table

MARKS = {"ok": ("✓", "green", "green"), "warning": ("!", "yellow", "darkorange"), "error": ("✗", "red", "red")}


@dataclass(frozen=True)
class Finding:
    """One finding of a check.

    Attributes:
        level: ``ok``; ``warning``, if a run may still work; ``error``, if it will fail.
        check: name of the check, one word.
        text: what was found.
        fix: how to fix it.
        worker: name of the worker that it is about; None for all workers, or for the session.
        details: longer text, such as the end of a log.
    """

    level: str
    check: str
    text: str
    fix: str = ""
    worker: str | None = None
    details: str = ""

    @classmethod
    def of_error(cls, check: str, error: MusterError, fix: str = "") -> Finding:
        """Return the finding for an error that a launch would raise; ``fix`` is used if the error has no advice."""
        return cls("error", check, error.message, error.advice or fix, error.worker, error.details or "")


class Report:
    """All findings. They are displayed as a table, in a terminal by ``rich.print``, and in notebooks."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)

    @property
    def is_fine(self) -> bool:
        """True if nothing was found that makes the run fail."""
        return all(finding.level != "error" for finding in self.findings)

    def of(self, check: str) -> list[Finding]:
        """Return the findings of one check."""
        return [finding for finding in self.findings if finding.check == check]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {"is_fine": self.is_fine, "findings": [asdict(finding) for finding in self.findings]}

    def __rich__(self) -> Table:
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column()
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")  # a path that is longer than the column is shown whole
        for finding in self.findings:
            where = (
                f"[bold]{escape(finding.worker)}[/]: " if finding.worker and finding.worker not in finding.text else ""
            )
            lines = [where + escape(clean(finding.text))]
            lines += [f"[dim]{escape(clean(finding.details).rstrip())}[/]"] if finding.details else []
            lines += [f"Try: {escape(clean(finding.fix))}"] if finding.fix else []
            glyph, colour, _ = MARKS[finding.level]
            table.add_row(f"[{colour}]{glyph}[/]", finding.check, "\n".join(lines))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, color_system=None, force_jupyter=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **_: Any) -> Mapping[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}

    def _html(self) -> str:
        """Return the report as an HTML table, whose lines wrap at the width of the notebook's cell."""
        rows = []
        for finding in self.findings:
            where = f"{finding.worker}: " if finding.worker and finding.worker not in finding.text else ""
            parts = [html.escape(clean(where + finding.text))]
            parts += [f"<pre style='margin: 0'>{html.escape(clean(finding.details).rstrip())}</pre>"] * bool(
                finding.details
            )
            parts += [f"Try: {html.escape(clean(finding.fix))}"] * bool(finding.fix)
            glyph, _, colour = MARKS[finding.level]
            cells = (f"<span style='color: {colour}'>{glyph}</span>", html.escape(finding.check), "<br>".join(parts))
            rows.append("".join(f"<td style='text-align: left; vertical-align: top'>{cell}</td>" for cell in cells))
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def __repr__(self) -> str:
        counts = [f"{sum(finding.level == level for finding in self.findings)} {level}" for level in MARKS]
        return f"<Report: {', '.join(counts)}>"


def count_of(workers: int) -> str:
    """Return a number of workers in words: ``1 worker``, ``2 workers``."""
    return f"{workers} worker{'' if workers == 1 else 's'}"
