"""The guard of a host without a host: what it sweeps, and what another user cannot keep it from."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from muster.agent import frames, linux
from muster.agent.guard_clients import guard_address
from muster.agent.host_guard import READY
from muster.platforms.hosts.login import LOADER, guard_program, package_for


def test_a_guard_sweeps_no_folder_that_is_not_a_guards() -> None:
    """Folders of the user's own may begin like a guard's."""
    kept = ["muster-host-keys", "muster-host-training", "muster-host-ab12cd34x", "other"]
    with tempfile.TemporaryDirectory(dir="/tmp") as around:  # of whose path sockets can be
        here = f"{zlib.crc32(os.uname().nodename.encode()):08x}"
        left = Path(tempfile.mkdtemp(prefix=f"muster-host-{here}-", dir=around))
        elsewhere = Path(tempfile.mkdtemp(prefix="muster-host-01234567-", dir=around))  # which shares the folder
        for name in kept:
            Path(around, name).mkdir()
            Path(around, name, "file").touch()
        subprocess.run(
            ["/bin/sh", "-c", LOADER], input=guard_program() + package_for(""), env={**os.environ, "TMPDIR": around},
            stdout=subprocess.DEVNULL, timeout=30, check=True,
        )  # fmt: skip
        assert not left.exists()
        assert sorted(os.listdir(around)) == sorted([*kept, elsewhere.name])


def test_a_guard_whose_name_is_taken_serves_its_platform_all_the_same(tmp_path: Path) -> None:
    program = "import sys; sys.stdin.buffer.raw.read(1); from muster.agent.host_guard import main; main(sys.argv[1])"
    with (
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as guard,
        socket.socket(socket.AF_UNIX) as squatter,
    ):
        squatter.bind(guard_address(guard.pid, linux.start_of(guard.pid)))
        said, _ = guard.communicate(b"x" + frames.encode("poll") + frames.encode("close"), timeout=30)
    assert said.startswith(READY + b'{"workers":[]')
