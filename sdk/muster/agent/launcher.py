"""The launcher of a run's ranks, where it is to run on this worker (``wire.Launch``)."""

import json
import os

from . import wire
from .logfile import LogFile
from .loop import Loop
from .places import resolve, write_private
from .processes import Child, Children, cannot_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

CANNOT_START = 127  # exit status of a shell that cannot start a program
LOG = "launcher.log"
COMMAND = "command.json"
AT_ONCE = 16  # messages with output, of 64 KiB each
AT_END = 256


class LauncherHere:
    """Runs the launcher as a process of this worker, and reports its output and its end to the session.

    Args:
        loop: the agent's event loop.
        processes: the worker's processes. The launcher is one of them while it runs.
        config: the worker, as its platform describes it.
        send: sends a message to the session.
        on_exit: called when it has ended.
    """

    def __init__(
        self,
        loop: Loop,
        processes: Children,
        config: "dict[str, Any]",
        send: "Callable[[tuple[Any, ...]], object]",
        on_exit: "Callable[[], object]",
    ) -> None:
        self._loop = loop
        self._processes = processes
        self._config = config
        self._send = send
        self._on_exit = on_exit
        self._log: "LogFile | None" = None
        self.child: "Child | None" = None

    def start(self, order: wire.Launch) -> None:
        """Start the launcher. If it cannot be started, that is written to its log and reported as its end."""
        import shutil  # only here, as every launch waits for the imports of its guard

        if self.child is not None:  # a worker runs one at a time
            return
        places: "Mapping[str, str]" = self._config["places"]
        folder = resolve(order.cwd, places)
        argv = [resolve(word, places) for word in order.argv]
        # The launcher's environment has a path of its own, without the folders that an image has its programs in.
        argv[:1] = [shutil.which(argv[0]) or argv[0]]
        line = json.dumps({"argv": [resolve(word, places) for word in order.line]})
        os.makedirs(folder, 0o700, exist_ok=True)
        self._log = self._log or LogFile(os.path.join(folder, LOG), self._config["log_cap"])
        try:
            for path, text in order.files.items():
                write_private(folder, path, resolve(text, places))
            write_private(folder, COMMAND, line + "\n")
            env = {name: resolve(value, places) for name, value in order.env.items()}
            with open(os.path.join(folder, COMMAND), "rb") as command:
                self.child = self._processes.start(
                    argv, env, folder, None, self._ended, self._log.descriptor, command.fileno()
                )
        except OSError as error:
            self._log.write(cannot_start(argv, error))
            self.tell()
            self._send(wire.LauncherExited(CANNOT_START))

    def stop(self, order: wire.StopLauncher) -> None:
        """Ask the launcher to end, and kill it once its grace period is over."""
        if self.child is not None:
            self._processes.end(self.child, order.grace, "stopped")

    def tell(self, most: int = AT_ONCE) -> None:
        """Send the launcher's output since the last call."""
        if self._log is None:
            return
        for _ in range(min(self._log.unread(), most)):
            text = self._log.read()
            if text:
                self._send(wire.LauncherOutput(text))
        self._log.rotate_when_full(wait_for_reader=True)

    def _ended(self, child: Child) -> None:
        self.child = None
        self.tell(AT_END)
        self._send(wire.LauncherExited(child.exit_code, child.signal))
        self._on_exit()
