"""The process of a guard beside a session: it waits for the session's end, and has a module of its platform clean up.

It reads facts from its standard input as lines of JSON until that ends with the session; a line with ``done`` says that
nothing is left to remove. That module, and with it all of Muster, is imported only once a launch no longer waits for
this machine's processors.

While the session lives, SIGTERM is ignored, as a logout sends it to both; after that, it ends the tries to clean up.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import time

from . import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

CHECK_SECONDS = 0.5  # between two checks of the session, where the kernel has no pidfd
CLEANS_UP = "muster.platforms.session_guard"  # has that module clean up
PREPARE_SECONDS = 5.0  # after which the module is imported, as it might be gone when it is needed
SITES = ("site-packages", "dist-packages")  # names of the folders in which Python reads .pth files

_read_sites: "set[str]" = set()  # those in which they have been read here


def main(module: str) -> None:
    """Wait for the end of the session, and have this module's ``clean_up`` called with the facts, unless all is done.

    The first line has the ``session``, its process id and start, and the ``path`` that its modules are found on.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
        facts = json.loads(lines.readline().decode())
        sys.path[:] = facts.pop("path")
        if not _is_done(facts, lines, module):
            asked: "list[int]" = []
            signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
            _read_pth_files()
            importlib.import_module(CLEANS_UP).clean_up_after(module, facts, lambda: bool(asked))


def _is_done(facts: "dict[str, Any]", lines: "IO[bytes]", module: str) -> bool:
    """Update the facts until the session says that nothing is left (return True) or has ended (return False)."""
    pid, start = facts["session"]
    watched = [lines.fileno()]
    with contextlib.suppress(OSError, AttributeError):  # the session has ended, or the kernel has no pidfd
        watched.append(os.pidfd_open(pid))
    prepare_at: "float | None" = time.monotonic() + PREPARE_SECONDS
    while linux.is_running(pid, start):
        if prepare_at is not None and time.monotonic() >= prepare_at:
            prepare_at = None
            with contextlib.suppress(Exception):  # it is imported again, and fails again, when it is needed
                _read_pth_files()
                importlib.import_module(module)
        patience = None if prepare_at is None else max(prepare_at - time.monotonic(), 0)
        if len(watched) == 1:
            patience = CHECK_SECONDS
        readable, _, _ = select.select(watched, [], [], patience)
        if watched[0] in readable:
            line = lines.readline()
            if not line or _takes(facts, line):
                return bool(line)
    os.set_blocking(lines.fileno(), False)
    with contextlib.suppress(OSError):  # there is no more, and a process that the session has forked can still write
        for line in iter(lines.readline, b""):  # what was sent just before its end
            if _takes(facts, line):
                return True
    return False


def _read_pth_files() -> None:
    """Have Python read these files as at the session's start: ``pip install -e`` leaves some that find modules."""
    import site  # only here, as launches would wait for it

    for folder in sys.path[:]:
        if os.path.basename(folder) in SITES and folder not in _read_sites:
            _read_sites.add(folder)
            with contextlib.suppress(Exception):  # one that cannot be read keeps nothing from being cleaned up
                site.addsitedir(folder)


def _takes(facts: "dict[str, Any]", line: bytes) -> bool:
    """Update the facts with a line of JSON, and return whether it says that nothing is left."""
    try:
        said = json.loads(line.decode())
    except ValueError:  # the session was killed while it wrote the line
        return False
    facts.update(said)
    return bool(said.get("done"))
