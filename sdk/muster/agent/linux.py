"""Linux facilities that Muster uses: parent-death signals, orphans, and facts about processes in /proc."""

import collections
import contextlib
import fcntl
import os
import signal
import socket
import struct
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PF_EXITING = 0x4
SIOCGIFADDR = 0x8915
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
EXEC_LOOKS, EXEC_PAUSE = 50, 0.001  # how often, and after how many seconds, to look again at what is in an exec
TURN = 0.004  # time slice of the scheduler, in seconds
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
PEER = struct.Struct("3i")  # process, user and group id at the other end of a Unix socket

CLONE_NEWNS = 0x20000  # a mount namespace of its own
MS_REC, MS_PRIVATE = 0x4000, 0x40000

#: One process: ``ticks`` of CPU time used so far, ``rss`` in bytes, ``start`` in ticks since boot.
Stat = collections.namedtuple("Stat", "pid state parent ticks start rss")


def _prctl(option: int, value: int) -> None:
    import ctypes  # only where it is needed, as sessions import this module, too

    unused = ctypes.c_ulong(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), unused, unused, unused) != 0:
        raise OSError(ctypes.get_errno(), "prctl({}) failed".format(option))


def signal_at_parent_death(signum: int) -> None:
    """Have ``signum`` sent to this process when the thread that forked it ends. Survives exec, but not fork."""
    _prctl(PR_SET_PDEATHSIG, signum)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents end."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def redirect_to_null(*descriptors: int) -> None:
    """Put the null device in place of these descriptors of this process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nothing, descriptor)
    if nothing not in descriptors:  # it has the lowest free number, as that of one that was closed
        os.close(nothing)


def peer_of(connection: socket.socket) -> "tuple[int, int]":
    """Return the ids of the process at the other end of a Unix socket, and of its user."""
    pid, user, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return pid, user


def stat(pid: int) -> "Stat | None":
    """Return the process ``pid``, or None where there is none."""
    try:
        # The name is in parentheses, and may itself contain spaces and parentheses.
        fields = _read("/proc/{}/stat".format(pid)).rpartition(b")")[2].split()
    except OSError:
        return None
    return Stat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        ticks=int(fields[11]) + int(fields[12]),
        start=int(fields[19]),
        rss=int(fields[21]) * PAGE_SIZE,
    )


def start_of(pid: int) -> int:
    """Return when process ``pid`` started, in ticks since boot. Raises ProcessLookupError where there is none."""
    found = stat(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return int(found.start)


def is_running(pid: int, start: int) -> bool:
    """Return whether the process that got ``pid`` at ``start`` still runs: neither a zombie nor being killed."""
    found = stat(pid)
    return found is not None and found.start == start and found.state not in "ZX" and not _is_dying(pid)


def _is_dying(pid: int) -> bool:
    """Return whether ``pid`` has been killed and is not gone yet, which may take some milliseconds."""
    try:
        with open("/proc/{}/stat".format(pid), "rb") as file:
            is_exiting = int(file.read().rpartition(b")")[2].split()[6]) & PF_EXITING
        with open("/proc/{}/status".format(pid), "rb") as file:
            pending = [int(line.split()[1], 16) for line in file if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    except OSError:
        return True
    return bool(is_exiting) or any(signals >> (signal.SIGKILL - 1) & 1 for signals in pending)


def interfaces_of(address: str) -> "list[str]":
    """Return the names of the network interfaces that have the IPv4 address."""
    if address.startswith("127."):  # all of these belong to the loopback interface
        return ["lo"]
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                request = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", os.fsencode(name)))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(request[20:24]) == address:
                found.append(name)
    return found


def _read(path: str) -> bytes:
    """Return the content of a short file in /proc. ``open`` would take three times as long, on every tick."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def newest_pid() -> int:
    """Return the id of the process or thread started last; it changes when another one is started."""
    return int(_read("/proc/loadavg").split()[4])


def all_pids() -> "list[int]":
    """Return the ids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def snapshot() -> "dict[int, Stat]":
    """Return all processes by id."""
    found = (stat(pid) for pid in all_pids())
    return {process.pid: process for process in found if process is not None}


def descendants(root: int, processes: "dict[int, Stat]") -> "list[int]":
    """Return the ids of the children of ``root``, their children and so on; not ``root`` itself."""
    children: "dict[int, list[int]]" = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = list(children.get(root, ()))
    for pid in found:  # grows during the iteration
        found.extend(children.get(pid, ()))
    return found


def children() -> "list[int]":
    """Return the ids of this process's children, adopted ones included. Only for processes with a single thread."""
    me = os.getpid()
    try:
        with open("/proc/{0}/task/{0}/children".format(me)) as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [process.pid for process in snapshot().values() if process.parent == me]


def name_of(pid: int) -> str:
    """Return the name of the program that ``pid`` runs, cut by the kernel to 15 characters."""
    try:
        return _read("/proc/{}/comm".format(pid)).decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return "nothing any more"


def environment_of(pid: int) -> "set[bytes]":
    """Return the environment that ``pid`` was started with, as ``NAME=value``; empty where it cannot be read."""
    environment = b""
    with contextlib.suppress(OSError):
        for _ in range(EXEC_LOOKS):
            with open("/proc/{}/environ".format(pid), "rb") as file:
                environment = file.read()
            if environment or not _may_have_environment(pid):
                break
            time.sleep(EXEC_PAUSE)
    return set(filter(None, environment.split(b"\0")))


def _may_have_environment(pid: int) -> bool:
    """Return whether a process whose environment was found empty has one now, or is in an exec and may yet have one.

    In an exec its memory is new, the environment is put there next, and the program's code counts as there after that.
    """
    fields = _read("/proc/{}/stat".format(pid)).rpartition(b")")[2].split()
    memory, code, start, end = (int(fields[number]) for number in (20, 23, 47, 48))
    return memory > 0 and (code == 0 or end > start)


def mark_of(pid: int, name: str) -> "str | None":
    """Return the variable ``name`` of the environment that ``pid`` was started with; None where it is not in it."""
    prefix = os.fsencode(name + "=")
    return next((os.fsdecode(entry[len(prefix) :]) for entry in environment_of(pid) if entry.startswith(prefix)), None)


def marked(name: str, *values: str) -> "list[int]":
    """Return the ids of all other processes whose initial environment has ``name`` with one of ``values``."""
    wanted = {os.fsencode("{}={}".format(name, value)) for value in values}
    return [pid for pid in all_pids() if pid != os.getpid() and not wanted.isdisjoint(environment_of(pid))]


def resident_memory(pid: int) -> int:
    """Return the bytes that ``pid`` has in memory, shared pages included; 0 where there is no such process."""
    try:
        return int(_read("/proc/{}/statm".format(pid)).split()[1]) * PAGE_SIZE
    except OSError:
        return 0


def lateness() -> float:
    """Return by how many seconds a process may be scheduled later than usual, given the present load."""
    try:
        runnable = int(_read("/proc/loadavg").split()[3].partition(b"/")[0])
    except (OSError, IndexError, ValueError):
        return 0.0
    cores = os.cpu_count() or 1
    return max(0, runnable - cores) / cores * TURN


def proportional_memory(pid: int) -> "int | None":
    """Return the bytes that ``pid`` has in memory, shared pages in proportion; None where the kernel does not say."""
    try:
        with open("/proc/{}/smaps_rollup".format(pid), "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def is_listening(port: int, pids: "list[int]") -> bool:
    """Return whether one of ``pids`` listens on the TCP port."""
    sockets = _listening_sockets(port)
    return bool(sockets) and any(not sockets.isdisjoint(open_files(pid)) for pid in pids)


def _listening_sockets(port: int) -> "set[str]":
    suffix = ":{:04X}".format(port)
    found: "set[str]" = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file]
        except OSError:
            continue
        found.update("socket:[{}]".format(row[9]) for row in rows if row[3] == "0A" and row[1].endswith(suffix))
    return found


def open_files(pid: int) -> "set[str]":
    """Return the targets of the descriptors of ``pid``, such as ``socket:[4711]``."""
    folder = "/proc/{}/fd/".format(pid)
    found = set()
    try:
        for name in os.listdir(folder):
            found.add(os.readlink(folder + name))
    except OSError:  # it ended, or closed the file meanwhile
        pass
    return found


def catches(pid: int, signum: int) -> bool:
    """Return whether ``pid`` has a handler for the signal, so that it neither ends by it nor ignores it."""
    try:
        with open("/proc/{}/status".format(pid), "rb") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (signum - 1) & 1)


def kill(pid: int, signum: int = signal.SIGKILL) -> None:
    """Send ``signum`` to ``pid``, which may be gone already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def kill_group(group: int, signum: int) -> None:
    """Send ``signum`` to all of a process group, which may be gone already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def hide(folders: "list[str]") -> None:
    """Mount an empty folder over each of these, for this process and its children. Raises OSError: only root may."""
    if not folders:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWNS), "unshare")
    _check(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "/")
    for folder in folders:
        _check(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), b"mode=0700"), folder)


def _check(result: int, what: str) -> None:
    import ctypes

    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
