"""The ways in which a script, a function or a server is run."""

import atexit
import contextlib
import importlib
import importlib.util
import linecache
import os
import runpy
import sys

from muster.training import large_imports, progress

from . import exceptions, hooks, stacks, tasks, tracebacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401  (type comments)


def main(argv):
    # type: (list[str]) -> None
    """Run the script, function or server that the command line names; see ``runner.py``."""
    mode, arguments = argv[0], argv[1:]
    progress.keep_variables()
    exceptions.reserve()
    atexit.register(hooks.write_what_is_buffered)  # first, and so called after all that the script registers
    hooks.load_what_threads_end_with()
    stacks.offer()
    sys.breakpointhook = hooks.refuse_debugger
    hooks.drop_blank_proxies()
    hooks.tell_of_exits()
    large_imports.install()
    progress.watch_stages()
    hooks.tell_of_threads()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # at 0, TensorFlow logs a line for every step of a TF1 session
    try:
        if mode == "serve":
            server = tasks.start_server()
            progress.serves()
            server.join()
        else:
            RUN[mode](arguments[0], arguments)
            if os.getpid() == exceptions.OWN:  # and no fork of the script's, which has come to the script's end, too
                progress.script_ended()
                if progress.variable("MUSTER_SERVES"):  # the script's server lives as long as the interpreter
                    tasks.wait_for_others()
    except SystemExit as error:
        if exceptions.has_failed(error):  # reported at once, as the interpreter may end much later
            exceptions.report(error)
        raise
    except BaseException as error:
        is_interrupt = type(error) is KeyboardInterrupt  # the interpreter prints it, and ends itself by the signal
        if not is_interrupt:
            exceptions.report(error)
        if is_interrupt or sys.excepthook is not sys.__excepthook__:  # which the script relies on, to save its state
            tracebacks.leave_out_own_frames(error)
            raise
        tracebacks.print_exception(error)
        hooks.flush_output()
        sys.exit(1)


def run_program(path, arguments):
    # type: (str, list[str]) -> None
    """Run the file as ``python FILE`` would."""
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    runpy.run_path(path, run_name="__main__")


def run_module(name, arguments):
    # type: (str, list[str]) -> None
    """Run the module as ``python -m NAME`` would."""
    sys.argv = arguments
    sys.path[0] = os.getcwd()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_task(target, arguments):
    # type: (str, list[str]) -> None
    """Run ``run(cluster, server, task_index)`` of the file or module."""
    sys.argv = arguments
    if target.endswith(".py"):
        sys.path[0] = os.path.dirname(os.path.abspath(target))
        name = os.path.splitext(os.path.basename(target))[0]
        spec = importlib.util.spec_from_file_location(name, target)
        if spec is None or spec.loader is None:
            raise ImportError("{} is no Python source file".format(target))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # so that objects of its classes and functions can be pickled
        spec.loader.exec_module(module)
    else:
        sys.path[0] = os.getcwd()
        module = importlib.import_module(target)
    tasks.call(module.run, lambda value: None)


def run_function(path, arguments):
    # type: (str, list[str]) -> None
    """Run the pickled function, and keep what it returns for the session."""
    import pickle  # only where needed; and before sys.path has a folder that may contain another pickle.py

    from . import values

    place = values.place()
    sys.argv = arguments
    sys.path[0] = os.getcwd()
    with open(path, "rb") as file:
        function = pickle.load(file)
        with contextlib.suppress(EOFError):  # the function does not come from cells of a notebook
            for name, (cell, text) in pickle.load(file).items():
                linecache.cache[name] = (len(text), None, text.splitlines(True), name)
                if cell:
                    tracebacks.CELLS[name] = cell
    if os.environ.get("MUSTER_TASK"):
        tasks.call(_returning(function), lambda value: values.save(value, place))
    else:
        values.save(_returning(function)(), place)


def _returning(function):
    # type: (Any) -> Any
    """Wrap a function to return None where it calls ``sys.exit(0)``, so that every rank has a value."""

    def call(*arguments):
        # type: (*Any) -> Any
        try:
            return function(*arguments)
        except SystemExit as ended:
            if exceptions.has_failed(ended):
                raise
            return None

    return call


RUN = {"program": run_program, "module": run_module, "task": run_task, "function": run_function}
