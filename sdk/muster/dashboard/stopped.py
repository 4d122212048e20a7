"""Display of a stopped run in a notebook: one line in place of an error's red box."""

from __future__ import annotations

from asyncio import CancelledError
from types import TracebackType
from typing import Any

from muster.dashboard.frontend import is_attended
from muster.errors import RunInterrupted, RunStopped

REST = "Cells that were to run after this one do not."


def show_in(shell: Any) -> None:
    """Have IPython report a stopped run in one line: somebody asked for the stop, and there is nothing to debug.

    The cell ends as with any error, and so the cells after it do not run. IPython takes one handler of this kind; if
    the user has set one, it stays.
    """
    if not shell.custom_exceptions:
        shell.set_custom_exc((RunStopped, RunInterrupted, CancelledError), _tell)


def _tell(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> list[str]:
    """Print the line, and return an empty traceback, which the kernel's reply has, too.

    In a notebook that is run unattended, show an error instead, since its outputs are searched for errors afterwards.
    The cancellation of something else than a run is shown as any error.
    """
    if isinstance(error, CancelledError) and not hasattr(error, "_render_traceback_"):
        shell.showtraceback((kind, error, trace), tb_offset, running_compiled_code=True)
        return []
    where = f" Logs: {error.log}" if isinstance(error, RunStopped) and error.log else ""
    message = error.message if isinstance(error, RunStopped) else str(error)
    if not is_attended():
        shell._showtraceback(kind, error, [f"{kind.__name__}: {message}{where}"])
        return []
    print(f"{message}{where}\n{REST}")
    shell._last_traceback = []  # ipykernel sends it with its reply; otherwise it would be that of an earlier cell
    return []
