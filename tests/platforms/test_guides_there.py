"""The guides of hosts and of containers, from top to bottom, as somebody follows them who has a script and no more.

What they say in blocks, and the commands with arguments in their text, is run in order as it stands there: on the hosts
of the tests, and on their Podman. ``LEFT_OUT`` says what is not.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import muster
import pytest

from tests.platforms.containers_podman import Podman, why_not
from tests.platforms.hosts_network import Network
from tests.platforms.test_worker_image import built
from tests.support import DOCS, environment, eventually

pytestmark = [pytest.mark.elsewhere, pytest.mark.slow]

SCRIPT = "import os\nprint('rank', os.environ.get('HOROVOD_RANK', os.environ.get('RANK')), 'on', os.uname().nodename)\n"
LEFT_OUT = {
    "muster trust": "for hosts that are not logged in to by a key yet; tests/trust has such",
    "ssh lab1": "downloads TensorFlow; the hosts of the tests have the session's interpreter at the same path",
    "apt-get install": "the engine of the tests is here already",
    "podman system service": "as above",
    "make image": "downloads TensorFlow; make worker-image runs it on another base",
    "cp -r": "its digits are for the script of the next line",
    "muster run -p containers --image": "trains for long on what was left out; test_worker_image.py does so",
    "docker run": "waits for somebody at a terminal; test_containers.py has a session in a container",
}


class Reader:
    """Somebody who follows a guide in a folder of their own, where their script is.

    Attributes:
        said: what each command has printed, by the command.
    """

    def __init__(self, folder: Path, programs: dict[str, list[str]]) -> None:
        self.said: dict[str, str] = {}
        (folder / "train.py").write_text(SCRIPT)
        (folder / "bin").mkdir()
        for name, command in {"muster": [sys.executable, "-m", "muster"], **programs}.items():
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            program.chmod(0o755)
        self._environment = environment(PATH=f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def follow(self, page: str) -> None:
        """Run everything that a page says, in order."""
        names: dict[str, object] = {}
        parts = re.compile(r"^```(sh|python)\n(.*?)^```|`(muster \w+ -[^`]+)`", re.MULTILINE | re.DOTALL)
        for language, block, inline in parts.findall((DOCS / page).read_text(encoding="utf-8")):
            if language == "python":
                exec(compile(block, page, "exec"), names)
            else:
                for line in (block or inline).splitlines():
                    self._run(re.sub(r" +# .*", "", line))

    def _run(self, command: str) -> None:
        if not any(command.startswith(left_out) for left_out in LEFT_OUT):
            done = subprocess.run(
                command.replace("RUN", "last"), shell=True, env=self._environment, capture_output=True, text=True
            )
            self.said[command] = done.stdout
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def lines_of_runs() -> list[list[str]]:
    """What the ranks of all runs have printed, the oldest run first; all have succeeded."""
    runs = muster.list_runs()[::-1]
    assert {run.status for run in runs} == {"succeeded"}
    return [[run.logs(worker).rstrip() for worker in run.workers] for run in runs]


def test_that_of_hosts(hosts: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = hosts.folder / "config"
    before = config.read_text()
    labs = [f"Host lab{number}\n    HostName {hosts.hosts[f'h{number}'].address}\n" for number in (1, 2)]
    config.write_text("".join(labs) + before)
    reader = Reader(tmp_path, {})
    try:
        reader.follow("hosts.md")
    finally:
        config.write_text(before)
    four = [f"rank {rank} on h{1 + rank // 2}" for rank in range(4)]
    assert lines_of_runs() == [four, four]
    (doctor,) = (said for command, said in reader.said.items() if command.startswith("muster doctor"))
    assert "4 workers came up" in doctor
    (cleaned,) = (said for command, said in reader.said.items() if command.startswith("muster clean"))
    assert all(f"lab{number}: ~/.cache/muster/projects" in cleaned for number in (1, 2))
    hosts.remove_what_tensorflow_leaves()


@pytest.fixture
def podman_with_training() -> Iterator[Podman]:
    """A Podman that has the image my/training:1; skips where the tests' image of workers is not built."""
    if why_not():
        pytest.skip(why_not())
    podman = Podman(images=built("podman"))
    podman.add_layer("localhost/muster-worker", "mine", b"", "localhost/my/training:1")
    yield podman
    podman.remove()


def test_that_of_containers(podman_with_training: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman = podman_with_training
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("CONTAINER_HOST", podman.url)
    for name, value in podman.environment.items():
        if name.startswith("CONTAINERS_"):
            monkeypatch.setenv(name, value)
    reader = Reader(tmp_path, {"docker": ["env", "--unset=CONTAINER_HOST", *podman.command()]})
    reader.follow("containers.md")
    ranks = [f"rank {rank} on worker-{rank}" for rank in range(4)]
    workers = [f"worker-{index} in worker-{index}" for index in range(2)]  # by the script that the page has
    assert lines_of_runs() == [ranks[:2], ranks, workers, workers]
    (logs,) = (said for command, said in reader.said.items() if command.startswith("muster logs"))
    assert logs == f"{workers[1]}\n"
    (plan,) = (said for command, said in reader.said.items() if command.startswith("muster plan"))
    assert f"unix://{podman.folder}" in plan
    (cleaned,) = (said for command, said in reader.said.items() if command.startswith("muster clean"))
    assert cleaned.startswith("localhost/muster-tiny-")
    podman.run("network", "rm", "training")
    eventually(lambda: podman.left_behind() == [], "nothing is left on the engine", timeout=30)
