"""Faults around the ranks: links that are slow or cut, clocks that jump or differ, and a disk that is full."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.ranks import address_of_rank

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MOST_APART = 8  # seconds
PRELOAD, CLOCK = "LD_PRELOAD", "CHAOS_CLOCK"  # environment variables of processes that see simulated clocks
DISK_KB = 512  # size of a small disk; a run takes half of it before its ranks have printed anything
CLOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *seconds;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) seconds = mapped;
}

int clock_gettime(clockid_t which, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, time);
    if (!failed && seconds && which == CLOCK_REALTIME) time->tv_sec += *seconds;
    return failed;
}

static int is_guard(void) {
    char line[4096] = "";
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t size = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file) fclose(file);
    for (size_t at = 0; at < size; at += strlen(line + at) + 1)
        if (!strcmp(line + at, "guard")) return 1;
    return 0;
}

/* The guard forks agents: each gets a monotonic clock that is some seconds ahead, with everything that it starts. */
pid_t fork(void) {
    static pid_t (*real)(void);
    static unsigned int state;
    static int is_agent;
    const char *seed = getenv("CHAOS_APART");
    if (!real) real = dlsym(RTLD_NEXT, "fork");
    if (seed && !is_agent && is_guard()) {
        if (!state) state = atoi(seed);
        FILE *offsets = unshare(CLONE_NEWTIME) ? 0 : fopen("/proc/self/timens_offsets", "w");
        if (offsets) {
            int whole = rand_r(&state) % MOST_APART, nanoseconds = rand_r(&state) % 1000000000;
            fprintf(offsets, "monotonic %d %d\\n", whole, nanoseconds);
            fclose(offsets);
        }
    }
    pid_t pid = real();
    if (!pid) is_agent = 1;
    return pid;
}
"""


def can_isolate() -> bool:
    """Return whether this user can make network, mount and time namespaces here."""
    tools = shutil.which("unshare") and shutil.which("ip")
    return bool(tools) and subprocess.run(["unshare", "-nmT", "true"], capture_output=True).returncode == 0


def isolate() -> None:
    """Give this process a network of its own, which has only loopback, and mounts that no other process sees.

    The kernel's rule for local addresses is moved behind other rules, so that these can cut links.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for command in ("link set lo up", "rule add pref 10 lookup local", "rule del pref 0"):
        subprocess.run(["ip", *command.split()], check=True)


def mount_small_disk(folder: Path) -> None:
    """Mount a disk with little space at the folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_KB}k", "none", str(folder)], check=True)


def fill_disk(folder: Path) -> None:
    """Fill the disk that is mounted at the folder."""
    with (folder / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def empty_disk(folder: Path) -> None:
    """Unmount the disk from the folder, and move its files into the folder itself, without the filling."""
    (folder / "ballast").unlink(missing_ok=True)
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept, symlinks=True)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()
    kept.rename(folder)


def cut_link(one: int, other: int) -> None:
    """Drop all packets between two ranks, so that no data, end of a connection or refusal arrives."""
    _rules("add", one, other)


def repair_link(one: int, other: int) -> None:
    """Undo ``cut_link``."""
    _rules("del", one, other)


def _rules(what: str, one: int, other: int) -> None:
    for source, target in ((one, other), (other, one)):
        rule = f"rule {what} pref 5 from {address_of_rank(source)} to {address_of_rank(target)} blackhole"
        subprocess.run(["ip", *rule.split()], check=True, capture_output=True)


class SlowLink(threading.Thread):
    """A relay between two ranks, which delays what the source sends to the target."""

    def __init__(self, folder: Path, source: int, target: int, delay: float) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._names = f"address-{target}", f"relay-{source}-{target}"
        self._delay = delay

    def run(self) -> None:
        """Relay until one of the ranks has closed the connection."""
        address, relay = (self._folder / name for name in self._names)
        deadline = time.monotonic() + 30
        while not address.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(30)
            relay.with_suffix(".part").write_text(f"127.0.0.1 {listener.getsockname()[1]}")
            relay.with_suffix(".part").rename(relay)
            sender, _ = listener.accept()
        host, port = address.read_text().split()
        with sender, socket.create_connection((host, int(port))) as receiver, contextlib.suppress(OSError):
            while data := sender.recv(1 << 16):
                time.sleep(self._delay)
                receiver.sendall(data)


def kernel_time() -> float:
    """Return the time of the real wall clock, by which the kernel stamps files, even if this process sees another."""
    with tempfile.TemporaryFile() as file:
        return os.fstat(file.fileno()).st_mtime


class Clocks:
    """Simulated clocks of the processes that are started within ``shown``: the wall clock can be set.

    The monotonic clocks of workers can be apart.
    """

    def __init__(self, folder: Path) -> None:
        self._library, self._shift = folder / "clock.so", folder / "clock"
        self._shift.write_bytes(struct.pack("l", 0))
        (folder / "clock.c").write_text(CLOCKS)
        sizes = [f"-DMOST_APART={MOST_APART}"]
        command = ["cc", "-shared", "-fPIC", *sizes, "-o", str(self._library), str(folder / "clock.c"), "-ldl"]
        subprocess.run(command, check=True)

    def jump(self, seconds: int) -> None:
        """Set the wall clock, ``seconds`` ahead of the real one, or behind if they are negative."""
        with self._shift.open("r+b") as file, mmap.mmap(file.fileno(), struct.calcsize("l")) as shared:
            shared[:] = struct.pack("l", seconds)

    def set_right(self) -> None:
        """Set the wall clock to the real time."""
        self.jump(0)

    @contextlib.contextmanager
    def shown(self, apart: str = "") -> Iterator[None]:
        """Make processes that are started within the block see these clocks.

        Args:
            apart: seed of the seconds by which the monotonic clock of each worker is ahead; if empty, none is.
        """
        variables = {PRELOAD: str(self._library), CLOCK: str(self._shift)}
        variables |= {"CHAOS_APART": apart} if apart else {}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in variables:
                del os.environ[name]
