"""``muster serve`` as a real process, and what a client of it has in its environment."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support import environment


@dataclass
class Service:
    """A running service.

    Attributes:
        process: the process that serves.
        url: where it listens, such as ``http://127.0.0.1:8765``.
        keys: its file of keys.
        key: the first key in it.
    """

    process: subprocess.Popen[str]
    url: str
    keys: Path
    key: str

    def client_environment(self) -> dict[str, str]:
        """The variables that ``--print-env`` sets for a new session: ``CDSW_API_KEY`` and so on."""
        port = self.url.rpartition(":")[2]
        program = f'eval "$({sys.executable} -m muster serve --print-env --port {port})" && env -0'
        done = subprocess.run(["bash", "-c", program], env=environment(), capture_output=True, text=True, check=True)
        variables = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
        return {name: value for name, value in variables.items() if name.startswith(("CDSW_", "REQUESTS_"))}


@contextlib.contextmanager
def serving(project: Path, *options: str, keys: Path | None = None) -> Iterator[Service]:
    """Serve a project on a free port until the block ends; it must then end in order.

    Args:
        project: the folder that workers run in.
        options: further options of ``muster serve``.
        keys: file of keys; a new one by default.
    """
    keys = keys or new_keys(project / ".keys" / secrets.token_hex(4))
    argv = [sys.executable, "-m", "muster", "serve", "--port", "0", "--project", str(project), "--keys", str(keys)]
    process = subprocess.Popen([*argv, *options], env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert first.startswith("Serving "), first
        url = first.split(" on ")[-1].split(",")[0]
        yield Service(process, url, keys, keys.read_text().splitlines()[0])
    finally:
        process.terminate()
        status = process.wait(20)
        process.stdout.close()
    assert status == 0


def new_keys(path: Path, count: int = 1) -> Path:
    """A file of new keys."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text("".join(secrets.token_urlsafe(32) + "\n" for _ in range(count)))
    return path
