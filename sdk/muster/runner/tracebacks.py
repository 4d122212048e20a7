"""Tracebacks as the user is to see them: without the frames of the runner, and with the names of a notebook's cells."""

import contextlib
import importlib
import os
import re
import runpy
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType  # noqa: F401  (type comments)

PROGRAM = getattr(sys.modules["__main__"], "__file__", None)  # ``runner.py``, which imports this
PACKAGE = os.path.dirname(__file__) + os.sep
RUNPY = (runpy.__file__, "<frozen runpy>")
OF_PACKAGES = r'  File "(?:[^"\n]*/site-packages/|<frozen |{}|{}")[^\n]*\n\n'
LONGEST_NAME = 200  # characters of the name of an exception's class
CELLS = {}  # type: dict[str, str]  # names of the cells that the function comes from, by the names of their files


def is_ours(frame):
    # type: (FrameType) -> bool
    """Return whether a frame belongs to the runner."""
    file = frame.f_code.co_filename
    return file == PROGRAM or file.startswith(PACKAGE)


def is_of_script(frame):
    # type: (FrameType) -> bool
    """Return whether a frame belongs neither to the runner nor to runpy, through which it runs scripts."""
    return not is_ours(frame) and frame.f_code.co_filename not in RUNPY


def own_traceback(error):
    # type: (BaseException) -> TracebackType | None
    """Return the traceback without the frames of the runner and of runpy, which are not the user's."""
    trace = error.__traceback__
    while trace is not None and not is_of_script(trace.tb_frame):
        trace = trace.tb_next
    last = trace
    while last is not None and last.tb_next is not None:
        if is_ours(last.tb_next.tb_frame):  # in place of ``breakpoint()``
            last.tb_next = None
            break
        last = last.tb_next
    return trace


def leave_out_own_frames(error):
    # type: (BaseException) -> None
    """Have ``sys.excepthook``, the interpreter's or the script's, print an exception with the script's frames alone."""
    print_it, trace = sys.excepthook, own_traceback(error)

    def print_own(kind, raised, _):
        # type: (type[BaseException], BaseException, TracebackType | None) -> None
        print_it(kind, raised.with_traceback(trace), trace)

    sys.excepthook = print_own


def traceback_of(error):
    # type: (BaseException) -> str
    """Return the traceback as Python prints it, with the suggestions of names that Python adds from 3.12 on."""
    trace = own_traceback(error)
    try:
        lines = traceback.format_exception(type(error), error, trace)
    except Exception:  # of the class of the exception, which may be the script's
        lines = ["Traceback (most recent call last):\n", *traceback.format_tb(trace), name_of(type(error)) + "\n"]
    text = with_cells("".join(lines))
    near = ""
    if isinstance(error, (NameError, AttributeError, ImportError)):
        with contextlib.suppress(Exception):  # the script may have brought the interpreter into any state
            near = importlib.import_module("muster.training.suggestions").did_you_mean(error)
    return "{}. Did you mean: '{}'?\n".format(text.rstrip("\n"), near) if near and "Did you mean" not in text else text


def name_of(kind):
    # type: (type[BaseException]) -> str
    """Return the name of an exception's class, whatever its metaclass makes of it, and cut where it is very long."""
    name = type.__dict__["__name__"].__get__(kind)  # type: str
    return name[:LONGEST_NAME]


def with_cells(text):
    # type: (str) -> str
    """Return a traceback or stack with the notebook's names of cells in place of their file names."""
    for name, cell in CELLS.items():
        text = text.replace('  File "{}", line '.format(name), "  {}, line ".format(cell))
    return text


def print_exception(error):
    # type: (BaseException) -> None
    """Print an exception as the interpreter would, after what the script has printed before."""
    with contextlib.suppress(Exception):  # the script has closed it, has set it to None, or has made it itself
        sys.stdout.flush()
    complain(traceback_of(error))


def complain(text):
    # type: (str) -> None
    """Write to standard error, unless the script has closed it, or has put something else there that fails."""
    with contextlib.suppress(Exception):
        sys.stderr.write(text)


def of_scripts(trace):
    # type: (str) -> str
    """Return a traceback without the frames of packages, which the nodes of a graph bring into it."""
    return re.sub(OF_PACKAGES.format(re.escape(PACKAGE), re.escape(PROGRAM or PACKAGE)), "", trace)
