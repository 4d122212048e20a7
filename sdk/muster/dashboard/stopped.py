"""A run that was stopped, as a notebook shows it: one line in place of an error's red box."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from muster.dashboard.frontend import is_attended
from muster.errors import RunStopped
from muster.runtime.interrupts import RunCancelled, RunInterrupted

REST = "Cells that were to run after this one do not."


def show_in(shell: Any) -> None:
    """Have IPython tell of a stopped run in a line: somebody has asked for it, and there is nothing to look into.

    The cell ends as with any error, and so the cells after it do not run. IPython has one place for such a handler,
    which is left to the user where it is taken.
    """
    if not shell.custom_exceptions:
        shell.set_custom_exc((RunStopped, RunInterrupted, RunCancelled), _tell)


def _tell(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> list[str]:
    """Print the line. What is returned, and the kernel's reply, have no traceback.

    Where a notebook is executed for nobody, it is an error for which it is looked through afterwards.
    """
    where = f" Logs: {error.log}" if isinstance(error, RunStopped) and error.log else ""
    message = error.message if isinstance(error, RunStopped) else str(error)
    if not is_attended():
        shell._showtraceback(kind, error, [f"{kind.__name__}: {message}{where}"])
        return []
    print(f"{message}{where}\n{REST}")
    shell._last_traceback = []  # which ipykernel sends with its reply, and which would be that of an earlier cell
    return []
