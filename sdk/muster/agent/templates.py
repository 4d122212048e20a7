"""The guard's template: started between two runs, used to fork agents of the next, and dropped when out of date."""

import contextlib
import functools
import os
import socket
import struct

from . import frames, linux, warm
from .loop import Loop
from .package import program
from .processes import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NONE, IMPORTING, READY, UNSAFE = "none", "importing", "ready", "unsafe"
ANSWER_SECONDS = 10.0  # how long an idle template may take to answer
IMPORT_SECONDS = 180.0  # how long its imports may take
ROOM = 1500  # characters of its command line and of its environment that forks overwrite with their own
DESCRIPTOR = struct.Struct("i")


class Templates:
    """The one template of a guard.

    Args:
        loop: the guard's event loop.

    Attributes:
        pid: the template's process id; 0 where there is no template.
        state: ``none``, ``importing``, ``ready`` or ``unsafe``.
        why: why it is unsafe, or was dropped, in words.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._channel: "socket.socket | None" = None
        self._decoder = frames.Decoder(limit=None)
        self._wanted: "dict[str, Any]" = {}
        self._made: "dict[str, Any]" = {}
        self.pid = 0
        self.state = NONE
        self.why = ""

    def note(self, recipe: "dict[str, Any]") -> None:
        """Remember what the ranks of a run needed: ``python``, ``env``, and ``imports``."""
        self._wanted = recipe

    def prepare(self) -> None:
        """Start a template that would have suited the last run, unless there is one."""
        if not self._wanted or (self.state != NONE and _is_same(self._wanted, self._made)):
            return
        self.drop("")
        self._made = self._wanted
        ours, theirs = socket.socketpair()
        python = self._made["python"]
        argv = [python, "-u", program(), "template", str(theirs.fileno()), python, " " * ROOM]
        env = dict(self._made["env"])
        env[warm.MARKS] = "-" * ROOM
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.set_inheritable(theirs.fileno(), True)
            self.pid = spawn(argv, env, "/", nothing)
        except OSError as error:
            ours.close()
            self.state, self.why = UNSAFE, "{} cannot be started: {}".format(python, error)
            return
        finally:
            theirs.close()
            os.close(nothing)
        self.state, self._channel, self._decoder = IMPORTING, ours, frames.Decoder(limit=None)
        ours.settimeout(ANSWER_SECONDS)
        with contextlib.suppress(OSError):  # it has ended already, or does not read: ``ended`` or ``_give_up`` says so
            ours.sendall(frames.encode("import", imports=self._made["imports"]))
        self._loop.on_readable(ours, self._hear)
        self._loop.call_later(IMPORT_SECONDS, functools.partial(self._give_up, self.pid))

    def refuse(self, why: str) -> None:
        """Record why there can be no template for the last run, unless there is one for another run."""
        if self.state == NONE:
            self.why = why

    def reason_against(self, wanted: "dict[str, Any] | None") -> "str | None":
        """Return, in words, why agents of a run may not be forks of the template; None where they may.

        The text is empty where there is nothing to say: there was no run before, or this one is not to be warm.
        """
        if wanted is None:
            return ""
        if self.state != READY:
            return "the imports for it have not ended" if self.state == IMPORTING else self.why
        if wanted["python"] != self._made["python"]:
            return "it has another interpreter"
        if not packages(self._made["imports"]) <= packages(wanted["modules"]):
            return "the script does not import all that the last one did"
        answer = self._ask(frames.encode("check"), None)
        if answer is None or answer["changed"]:
            self.drop("{} has changed".format(answer["changed"]) if answer else "it does not answer")
            return self.why
        return None

    def fork(self, config: "dict[str, Any]", upstream: socket.socket, workers: int) -> int:
        """Fork an agent whose socket to the guard is ``upstream``, and return its process id; 0 where that fails."""
        shared = {"pid": self.pid, "workers": workers}
        answer = self._ask(frames.encode("fork", config=config, shared=shared), upstream.fileno())
        if answer is None:
            self.drop("it does not answer")
        return int(answer["pid"]) if answer else 0

    def drop(self, why: str) -> None:
        """End the template."""
        self._close()
        if self.pid:
            linux.kill(self.pid)
        self.pid, self.state, self.why = 0, NONE, why

    def ended(self, pid: int) -> bool:
        """Handle the end of a child of the guard. Return whether it was the template."""
        if not self.pid or pid != self.pid:
            return False
        self._hear()
        self._close()
        self.pid = 0
        if self.state != UNSAFE:
            self.state = NONE if self.state == READY else UNSAFE
            self.why = "the process that imports for the next run has ended"
        return True

    def close_inherited(self) -> None:
        """Close the guard's connection to the template, in a forked child."""
        if self._channel is not None:
            self._channel.close()

    def _give_up(self, pid: int) -> None:
        """End a template whose imports take too long, since each run would wait some time for it."""
        if pid == self.pid and self.state == IMPORTING:
            self.drop("its imports take longer than {:.0f} s".format(IMPORT_SECONDS))
            self.state = UNSAFE

    def _hear(self) -> None:
        """Handle the template's message about its imports."""
        if self._channel is None or self.state != IMPORTING:
            return
        self._channel.setblocking(False)
        try:
            data = self._channel.recv(1 << 16)
        except OSError:
            data = b""
        self._channel.settimeout(ANSWER_SECONDS)
        self._loop.forget(self._channel)
        for message in self._decoder.feed(data):
            self.state, self.why = message["type"], message.get("why", "")

    def _ask(self, order: bytes, descriptor: "int | None") -> "dict[str, Any] | None":
        """Send the template an order, and return its answer; None where it does not answer."""
        if self._channel is None:
            return None
        with contextlib.suppress(OSError):
            along = [] if descriptor is None else [DESCRIPTOR.pack(descriptor)]
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, data) for data in along]
            sent = self._channel.sendmsg([order], control)
            if sent < len(order):  # else it may have answered and ended, and even nothing cannot be sent to it
                self._channel.sendall(order[sent:])
            while True:
                data = self._channel.recv(1 << 16)
                if not data:
                    return None
                for message in self._decoder.feed(data):
                    return message
        return None

    def _close(self) -> None:
        if self._channel is not None:
            self._loop.forget(self._channel)
            self._channel.close()
            self._channel = None


def packages(imports: "list[str]") -> "set[str]":
    """Return the names of the packages of modules."""
    return {name.partition(":")[0].partition(".")[0] for name in imports}


def _is_same(one: "dict[str, Any]", other: "dict[str, Any]") -> bool:
    """Return whether the same template suits both."""
    same = all(one[name] == other.get(name) for name in ("python", "env"))
    return same and packages(one["imports"]) == packages(other["imports"])
