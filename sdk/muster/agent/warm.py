"""Ranks that are forked from a process with the imports of their script: when that is possible, and how it is done.

The process is a *template* (``template.py``). A fork of it becomes the same process that the command line would have
started: with the same environment, files, signals and paths, and the runner and the script are read anew. Only modules
of installed packages are imported already. If anything could make a difference to that, the rank starts cold.
"""

import atexit
import ctypes
import gc
import importlib
import importlib.machinery
import os
import re
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

RUNNER = "runner.py"
# Variables that differ between runs and between ranks. No package reads them while it is imported, except tempfile,
# which reads TMPDIR, and is reset in a fork.
OF_A_RUN = (
    r"MUSTER_|CDSW_|HOROVOD_|OMPI_|PMI_|PMIX_|PRTE_|HYDRA_|HYDI_|MPIR_|MPI_LOCAL|NCCL_SOCKET_IFNAME$|SSH_"
    r"|(TF_CONFIG|TMPDIR|IPYTHONDIR|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PWD|OLDPWD|SHLVL|_)$"
)
MARKS = "MUSTER_MARKS"  # in a template's environment: room for the variables by which its forks are identified
MARKED = ("MUSTER_RUN_ID", "MUSTER_PROCESS")
IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")
ENDED_BY_PYTHON = ("sys", "builtins", "__main__")  # modules that have a clean-up of their own

_imported: "dict[str, ModuleType]" = {}  # the template's modules, in the template and in forks of it


class Template:
    """The properties of a template, as its forks have them.

    Attributes:
        python: path of the interpreter, as it was called.
        env: its environment, as far as it matters to imports.
        changed: variables that the imports have set, or None where they have removed one.
        path: ``sys.path`` without the entries of PYTHONPATH.
        files: descriptors that the imports have left open.
        modules: its top-level modules, and the folder in which each was found.
    """

    def __init__(
        self, python: str, env: "dict[str, str]", changed: "dict[str, str | None]", path: "list[str]", files: "set[int]"
    ) -> None:
        self.python = python
        self.env = env
        self.changed = changed
        self.path = path
        self.files = files
        self.modules = {name: _home(sys.modules[name]) for name in list(sys.modules) if not _is_hidden(name)}

    def reason_against(self, argv: "list[str]", env: "dict[str, str]", cwd: str) -> "str | None":
        """Return, in words, why a process cannot be a fork of the template; None where it can."""
        if not starts_script(argv):
            return "it is no script of Python's"
        if argv[0] != self.python:
            return "it has another interpreter"
        known = relevant(env, os.path.dirname(argv[2]))
        if known is None:
            return "its PYTHONPATH names folders by relative paths"
        if known != self.env:
            names = {name for name in set(known) | set(self.env) if known.get(name) != self.env.get(name)}
            return "{} changed in its environment".format(", ".join(sorted(names)))
        for folder in [folder_of_script(argv, cwd)] + [entry or cwd for entry in _python_path(env)]:
            here = os.path.realpath(folder)
            hidden = {name for name in _importable(folder) if self.modules.get(name, here) != here}
            if hidden:
                return "{} has a module {}, as the interpreter has".format(folder, sorted(hidden)[0])
        return None


def get_ready() -> None:
    """Do in a template what its forks would do alike: each would copy the memory that it writes to.

    Modules that have been found are remembered, and what importlib has noted about folders is forgotten.
    """
    _imported.update((name, module) for name, module in sys.modules.items() if name not in ENDED_BY_PYTHON)
    importlib.invalidate_caches()


def starts_script(argv: "list[str]") -> bool:
    """Return whether a command line starts a script through the runner."""
    return len(argv) > 3 and argv[1] == "-u" and os.path.basename(argv[2]) == RUNNER


def folder_of_script(argv: "list[str]", cwd: str) -> str:
    """Return the folder that the runner puts in front of ``sys.path``."""
    is_file = argv[3] in ("program", "task") and len(argv) > 4 and (argv[3] == "program" or argv[4].endswith(".py"))
    return os.path.dirname(os.path.join(cwd, argv[4])) if is_file else cwd


def relevant(env: "dict[str, str]", library: str) -> "dict[str, str] | None":
    """Return the variables of an environment that may matter to imports, without the run's own library.

    An empty entry of PYTHONPATH stands for the working directory, which is left out as the script's folder is. Return
    None where PYTHONPATH has another entry that depends on the working directory.
    """
    found = {name: value for name, value in env.items() if not re.match(OF_A_RUN, name) and name != "PYTHONPATH"}
    folders = [folder for folder in _python_path(env) if folder]
    if not all(map(os.path.isabs, folders)):
        return None
    others = [folder for folder in folders if folder != library]
    if others:
        found["PYTHONPATH"] = os.pathsep.join(others)
    return found


def _is_hidden(name: str) -> bool:
    """Return whether a script cannot have another module of this name: it is no top-level module, or the main one."""
    return "." in name or name in ("__main__", "__mp_main__")


def _home(module: object) -> str:
    """Return the folder in which a top-level module was found; empty for a module without a file."""
    try:
        found = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return ""
    path = found.get("__file__")
    if not isinstance(path, str):
        return ""
    folder = os.path.dirname(path)
    return os.path.realpath(os.path.dirname(folder) if isinstance(found.get("__path__"), list) else folder)


def _python_path(env: "dict[str, str]") -> "list[str]":
    return env["PYTHONPATH"].split(os.pathsep) if env.get("PYTHONPATH") else []


def _importable(folder: str) -> "set[str]":
    """Return the names of the modules and packages in a folder."""
    suffixes = tuple(importlib.machinery.all_suffixes())
    found = set()
    try:
        for name in os.listdir(folder):
            if name.endswith(suffixes):
                found.add(name.partition(".")[0])
            elif any(os.path.exists(os.path.join(folder, name, "__init__" + suffix)) for suffix in suffixes):
                found.add(name)
    except OSError:
        pass
    return found


def become(template: Template, argv: "list[str]", env: "dict[str, str]") -> None:
    """Become the process that a command line would have started. For a child just forked; does not return.

    Args:
        template: the template that this process is a fork of.
        argv: the command line; the template has no reason against it.
        env: the whole environment.
    """
    _close_what_exec_closes(template.files)
    env = dict(env)
    for name, value in template.changed.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    os.environ.clear()
    os.environ.update(env)
    _show(argv, env)
    _start_signals_afresh()
    sys.argv = argv[2:]
    sys.orig_argv = list(argv)  # from Python 3.10 on
    path = list(dict.fromkeys(folder or os.getcwd() for folder in _python_path(env)))
    sys.path[:] = [os.path.dirname(argv[2])] + path + [folder for folder in template.path if folder not in path]
    _forget_chance()
    if hasattr(gc, "freeze"):
        gc.freeze()
    _finish(_run_as_main(argv[2]))


def _run_as_main(program: str) -> int:
    """Run a file as the interpreter does, and return its exit status."""
    main = sys.modules["__main__"]
    builtins = main.__dict__["__builtins__"]
    main.__dict__.clear()
    main.__dict__.update(
        __name__="__main__", __doc__=None, __package__=None, __spec__=None, __annotations__={}, __cached__=None,
        __builtins__=builtins, __file__=program,
        __loader__=importlib.machinery.SourceFileLoader("__main__", program),
    )  # fmt: skip
    try:
        with open(program, "rb") as file:
            code = compile(file.read(), program, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except SystemExit as ended:
        return _status(ended.code)
    except BaseException as error:
        status = _call_hook(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else status
    return 0


def _call_hook(error: BaseException) -> int:
    """Have ``sys.excepthook`` print an exception, and print what it raises itself; return the exit status."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as ended:
        return _status(ended.code)
    except BaseException as failed:
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(failed), failed, failed.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if code.bit_length() < 64 else 0xFF  # what no C long holds
    sys.stderr.write("{}\n".format(code))
    return 1


def _finish(status: int) -> None:
    """Exit as the interpreter does at its end, with all of its clean-up, except that of the template's modules."""
    import threading  # only here, as every launch waits for a guard's imports

    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        libc = ctypes.CDLL(None)
        libc.on_exit(getattr(libc, "raise"), None)  # called with the exit status, once the interpreter has ended
    try:  # what the interpreter begins its end with, and what may use these modules
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        gc.collect()
        _leave_imports()
    finally:
        # Not sys.exit, which would unwind into the agent's code, from which this was called.
        ctypes.pythonapi.Py_Exit(ctypes.c_int(abs(status)))


def _leave_imports() -> None:
    """Keep the interpreter from taking the template's modules apart, which would copy all their memory.

    That takes several times as long as the rest of the end. What the script has made and imported is cleaned up as
    always, and finds these modules whole.
    """
    for name, module in _imported.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_imported))  # else they would be freed with this module


def _close_what_exec_closes(kept: "set[int]") -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and int(name) not in kept and not os.get_inheritable(int(name)):
                os.close(int(name))
        except OSError:  # the descriptor of the listed folder itself
            pass


def _start_signals_afresh() -> None:
    """Set the signal handlers of a newly started interpreter."""
    for name in IGNORED_BY_PYTHON:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _forget_chance() -> None:
    """Reset what modules chose at their import: the temporary folder, and the seeds of random numbers."""
    for name, forget in (
        ("tempfile", lambda module: setattr(module, "tempdir", None)),
        ("random", lambda module: module.seed()),
        ("numpy.random", lambda module: module.seed()),
    ):
        module = sys.modules.get(name)
        if module is not None:
            forget(module)


def _show(argv: "list[str]", env: "dict[str, str]") -> None:
    """Make /proc show this process's command line and marks in place of the template's, as agents look there."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arg_start, arg_end, env_start, env_end = (int(field) for field in fields[45:49])
    _overwrite(arg_start, arg_end - arg_start, b"\0".join(os.fsencode(word) for word in argv))
    before = ctypes.string_at(env_start, env_end - env_start)
    room = before.find(os.fsencode(MARKS + "="))
    if room >= 0:
        end = before.find(b"\0", room)
        marks = ["{}={}".format(name, env[name]) for name in MARKED if name in env]
        _overwrite(env_start + room, end - room, os.fsencode("\0".join(marks)))


def _overwrite(address: int, size: int, text: bytes) -> None:
    if address and size > 0:
        ctypes.memmove(address, text[: size - 1].ljust(size, b"\0"), size)


def threads() -> int:
    """Return the number of threads of this process."""
    return len(os.listdir("/proc/self/task"))


def share_of(template: "dict[str, Any]") -> "dict[int, float]":
    """Return the processes whose memory a worker shares, and the part of it that counts as the worker's own."""
    return {os.getpid(): 1.0, int(template["pid"]): 1.0 / max(1, int(template["workers"]))}
