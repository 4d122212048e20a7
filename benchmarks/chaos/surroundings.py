"""Faults around the ranks: links that are slow or cut, and a clock that is set while they run."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.ranks import address_of_rank

ISOLATED = "MUSTER_CHAOS_NETWORK"  # set in a network of its own, where links can be cut
JUMPING_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

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
"""


def can_isolate() -> bool:
    """Return whether this user may have a network of its own here."""
    tools = shutil.which("unshare") and shutil.which("ip")
    return bool(tools) and subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0


def isolate() -> None:
    """Go on in a network of its own, which has nothing but loopback and none of whose links is anybody else's."""
    os.execvpe(
        "unshare",
        ["unshare", "-n", sys.executable, "-m", "benchmarks.chaos", *sys.argv[1:]],
        {**os.environ, ISOLATED: "1"},
    )


def prepare_network() -> None:
    """Bring loopback up, and have the kernel look at rules of ours before it takes an address for its own."""
    for command in ("link set lo up", "rule add pref 10 lookup local", "rule del pref 0"):
        subprocess.run(["ip", *command.split()], check=True)


def cut_link(one: int, other: int) -> None:
    """Let nothing through any more between two ranks: no data, no end of a connection, no refusal."""
    _rules("add", one, other)


def mend_link(one: int, other: int) -> None:
    """Undo that."""
    _rules("del", one, other)


def _rules(what: str, one: int, other: int) -> None:
    for source, target in ((one, other), (other, one)):
        rule = f"rule {what} pref 5 from {address_of_rank(source)} to {address_of_rank(target)} blackhole"
        subprocess.run(["ip", *rule.split()], check=True, capture_output=True)


class SlowLink(threading.Thread):
    """Stands between two ranks, and passes on late what the one sends to the other."""

    def __init__(self, folder: Path, source: int, target: int, delay: float) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._names = f"address-{target}", f"relay-{source}-{target}"
        self._delay = delay

    def run(self) -> None:
        """Relay until one of the two has closed the connection."""
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


class Clock:
    """The clock on the wall of all processes that are started meanwhile, which can be set."""

    def __init__(self, folder: Path) -> None:
        self._library, self._shift = folder / "clock.so", folder / "clock"
        self._shift.write_bytes(struct.pack("l", 0))
        (folder / "clock.c").write_text(JUMPING_CLOCK)
        command = ["cc", "-shared", "-fPIC", "-o", str(self._library), str(folder / "clock.c"), "-ldl"]
        subprocess.run(command, check=True)

    def jump(self, seconds: int) -> None:
        """Set it forward or back."""
        with self._shift.open("r+b") as file, mmap.mmap(file.fileno(), struct.calcsize("l")) as shared:
            shared[:] = struct.pack("l", seconds)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Have processes that are started look at it."""
        os.environ.update(LD_PRELOAD=str(self._library), CHAOS_CLOCK=str(self._shift))
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"], os.environ["CHAOS_CLOCK"]
