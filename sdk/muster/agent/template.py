"""The template: a process of the user's interpreter that imports the modules of scripts, and from which agents fork.

The guard starts it, in the environment of future ranks, which are forks of its agents (``warm.py``). It uses no device,
and is not used itself if a fork of it might differ from a newly started process: if its imports have left threads, open
files, signal handlers, or modules that do not belong to an installed package.
"""

import gc
import glob
import importlib
import importlib.util
import os
import signal
import site
import socket
import struct
import sys
import sysconfig
import threading
import time

from . import agent, frames, linux, warm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Tuple

    Stamp = Tuple[int, int, int]

DESCRIPTOR = struct.Struct("i")
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel")
ADOPTION_SECONDS = 5.0
CLOCK_STEP = 20_000_000  # most nanoseconds by which the times of files lag behind the clock
SHARED_FILES = {"/dev/urandom", "/dev/random", "/dev/null"}  # files that processes may share
OURS = __name__.partition(".")[0]

UNKNOWN = (-1, -1, -1)  # a stamp that no file has


def main(descriptor: int) -> None:
    """Import the modules that the guard names, and fork agents until it hangs up."""
    guard = os.getppid()
    linux.signal_at_parent_death(signal.SIGKILL)
    channel = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this program's own folder
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    decoder = frames.Decoder(limit=None)
    order = _next(channel, decoder)
    try:
        template, stamps = _import_everything(order["imports"])
    except BaseException as reason:
        channel.sendall(frames.encode("unsafe", why=str(reason) or type(reason).__name__))
        os._exit(0)  # a normal exit would wait for threads that the imports have left
    channel.sendall(frames.encode("ready"))
    while True:
        order, upstream = _receive(channel, decoder)
        if order["type"] == "check":
            changed = _changed(stamps)
            channel.sendall(frames.encode("checked", changed=changed))
            if changed:
                os._exit(0)
        elif _fork(channel, guard, upstream):
            try:
                linux.hide(order["config"]["hidden"])
                agent.main(dict(order["config"], template=dict(order["shared"], made=template)), upstream)
            finally:
                os._exit(0)
        else:
            os.close(upstream)
            order.clear()  # it contains a worker's secrets


class Unsafe(Exception):
    """No process may be forked from this template; says why."""


def _import_everything(wanted: "list[str]") -> "tuple[warm.Template, dict[str, Stamp]]":
    """Import modules, and the attributes that scripts take from them. Raises Unsafe."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    env = warm.relevant(dict(os.environ), "")
    if env is None or getattr(sys.flags, "safe_path", False):
        raise Unsafe("its PYTHONPATH or PYTHONSAFEPATH is unusual")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # as the runner does
    began_at = int(time.time() * 1e9) - CLOCK_STEP
    before, path_before, files = dict(os.environ), list(sys.path), _files()
    handlers = {signum: signal.getsignal(signum) for signum in range(1, signal.NSIG)}
    for name in wanted:
        _import(name)
    gc.collect()
    if sys.path[: len(path_before)] != path_before:
        raise Unsafe("its imports put folders in front of sys.path")
    path = [folder for folder in sys.path if folder not in entries]
    if {signum: signal.getsignal(signum) for signum in range(1, signal.NSIG)} != handlers:
        raise Unsafe("its imports handle signals")
    _refuse_what_forks_would_lose(files)
    stamps = _stamps(began_at)
    warm.get_ready()
    if hasattr(gc, "freeze"):
        gc.freeze()
    changed = {name: os.environ.get(name) for name in set(before) | set(os.environ)}
    changed = {name: value for name, value in changed.items() if value != before.get(name)}
    kept = {int(name) for name in os.listdir("/proc/self/fd") if _is_shared(name)}
    return warm.Template(sys.argv[3], env, changed, path, kept), stamps


def _import(wanted: str) -> None:
    """Import ``module`` or ``module:attribute.attribute``, if it belongs to an installed package."""
    name, _, attributes = wanted.partition(":")
    top = name.partition(".")[0]
    if top == OURS or not _is_installed(importlib.util.find_spec(top)):
        return
    try:
        found = importlib.import_module(name)  # type: Any
        for attribute in filter(None, attributes.split(".")):
            if not isinstance(found, type(sys)):
                return
            try:
                found = getattr(found, attribute)
            except AttributeError:
                found = importlib.import_module("{}.{}".format(found.__name__, attribute))
    except ModuleNotFoundError:  # the script will fail itself, or handle that
        return
    except BaseException as error:
        raise Unsafe("{} cannot be imported: {!r}".format(name, error)) from error


def _folders() -> "list[str]":
    """Return the folders of installed packages and of the standard library."""
    names = ("purelib", "platlib", "stdlib", "platstdlib")
    found = [sysconfig.get_paths()[name] for name in names] + list(getattr(site, "getsitepackages", list)())
    found += [site.getusersitepackages()] + [folder for folder in sys.path if folder.endswith("-packages")]
    return sorted({form for folder in found if folder for form in (folder, os.path.realpath(folder))})


def _is_in(path: str, folders: "list[str]") -> bool:
    return any(path.startswith(folder + os.sep) for folder in folders)


def _is_installed(spec: "Any") -> bool:
    if spec is None:
        return False
    paths = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or [])
    return all(_is_in(os.path.realpath(path), _folders()) for path in paths)


def _refuse_what_forks_would_lose(files: "set[str]") -> None:
    """Raise Unsafe where a fork would lack something that the imports have made, or have more than it should."""
    if threading.active_count() > 1:
        raise Unsafe("its imports leave a thread: {}".format(threading.enumerate()[-1].name))
    more = warm.threads() - 1 - _threads_of_blas()
    if more > 0:
        raise Unsafe("its imports leave {} threads".format(more))
    opened = _files() - files - SHARED_FILES
    if any(path.startswith(DEVICES) for path in opened):
        raise Unsafe("its imports use a device")
    if opened:
        raise Unsafe("its imports leave files open: {}".format(sorted(opened)[0]))
    left = [found for found in map(linux.stat, linux.children()) if found is not None and found.state != "Z"]
    if left:
        raise Unsafe("its imports leave a process: {}".format(left[0].pid))
    if sys.stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__:
        raise Unsafe("its imports replace sys.stdout")
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if getattr(context, "_context_handle", None) is not None:
        raise Unsafe("its imports initialise TensorFlow")
    folders = [*_folders(), os.path.dirname(os.path.realpath(__file__))]
    library = sysconfig.get_paths()["stdlib"]
    for _, path in _modules():
        # Debian has the standard library's sitecustomize.py in /etc, and a link to it.
        if os.path.dirname(path) != library and not _is_in(os.path.realpath(path), folders):
            raise Unsafe("its imports load {}, which is not installed".format(path))


def _threads_of_blas() -> int:
    """Return the number of OpenBLAS's own threads. It ends them before a fork, and starts them when needed."""
    with open("/proc/self/maps") as file:
        libraries = {line.split()[-1] for line in file if "openblas" in line}
    each = [os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")]
    number = next((int(text) for text in each if text.isdecimal()), 1)
    return len(libraries) * max(0, number - 1)


def _files() -> "set[str]":
    """Return the files that this process has open."""
    return linux.open_files(os.getpid())


def _is_shared(name: str) -> bool:
    """Return whether a descriptor, other than of a standard stream, belongs to a file that processes may share."""
    try:
        return int(name) > 2 and os.readlink("/proc/self/fd/" + name) in SHARED_FILES
    except OSError:  # the descriptor of the listed folder itself
        return False


def _modules() -> "list[tuple[str, str]]":
    """Return the names and files of the loaded modules."""
    found = []
    for name, module in list(sys.modules.items()):
        path = _file_of(module)
        if path:
            found.append((name, path))
    return found


def _file_of(module: "ModuleType | None") -> "str | None":
    try:
        path = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None
    return path if isinstance(path, str) and os.path.isabs(path) else None


def _stamps(began_at: int) -> "dict[str, Stamp]":
    """Return the stamp of every file that was imported, and of the folders of installed packages.

    A file that was written after the imports began counts as changed, as it is unknown which state was imported.
    """
    folders = _folders()
    paths = {path for _, path in _modules()} | {*folders, sys.argv[3], os.path.realpath(sys.executable)}
    paths.update(path for folder in folders for path in glob.glob(os.path.join(glob.escape(folder), "*.pth")))
    found = {path: _stamp(path) for path in paths}
    return {path: UNKNOWN if stamp[1] >= began_at else stamp for path, stamp in found.items()}


def _stamp(path: str) -> "Stamp":
    """Return a file's times of modification and of status change, of which the latter cannot be set, and its size."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ctime_ns, 0 if os.path.isdir(path) else found.st_size)


def _changed(stamps: "dict[str, Stamp]") -> str:
    """Return the path of a file or folder that has changed since the imports; empty if none has."""
    return next((path for path, stamp in stamps.items() if _stamp(path) != stamp), "")


# Agents


def _next(channel: socket.socket, decoder: frames.Decoder) -> "dict[str, Any]":
    return _receive(channel, decoder)[0]


def _receive(channel: socket.socket, decoder: frames.Decoder) -> "tuple[dict[str, Any], int]":
    """Return the next order of the guard, and the descriptor sent with it, or -1. Exit when the guard hangs up."""
    descriptor = -1
    while True:
        data, control, _, _ = channel.recvmsg(1 << 16, socket.CMSG_LEN(DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC)
        for _, _, content in control:
            (descriptor,) = DESCRIPTOR.unpack(content)
        if not data:
            os._exit(0)
        for message in decoder.feed(data):  # only one, as the guard waits for each answer
            return message, descriptor


def _fork(channel: socket.socket, guard: int, upstream: int) -> bool:
    """Fork an agent, which the guard adopts. Return whether this process is the agent."""
    # Signals to the agent must not be lost, but be delivered only once it has handlers of its own.
    signal.pthread_sigmask(signal.SIG_BLOCK, agent.SIGNALS)
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid:
            channel.sendall(frames.encode("forked", pid=pid))
            os._exit(0)
        channel.close()
        deadline = time.monotonic() + ADOPTION_SECONDS
        while os.getppid() != guard:
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.0005)
        linux.signal_at_parent_death(signal.SIGTERM)
        if os.getppid() != guard:
            os._exit(1)
        os.setsid()
        return True
    os.waitpid(between, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, agent.SIGNALS)
    return False
