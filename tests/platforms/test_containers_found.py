"""Engines that are found as Docker's and Podman's own tools find them: by what those tools have written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.errors import PlatformUnsupported
from muster.platforms.containers.engine import connect
from muster.security.ssh import generate_key_pair, write_private

from tests.platforms.containers_docker import Docker
from tests.platforms.containers_podman import Podman
from tests.platforms.ordinary import UID, home_of_user
from tests.platforms.test_containers import run
from tests.support import eventually
from tests.trust.hosts import USER, Host, can_have_hosts


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's with a script, which is the working directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('done')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "of-docker"))
    return folder


@pytest.fixture
def home() -> Iterator[Path]:
    """The home of an ordinary user."""
    with home_of_user() as folder:
        yield folder


def test_a_podman_by_its_connections(
    engine: Podman, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``podman system connection`` stores them for an ordinary user, who has two."""
    as_user = ["env", f"HOME={home}", f"TMPDIR={home}", "--unset=CONTAINER_HOST", "--unset=XDG_RUNTIME_DIR"]
    as_user += ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "podman", "--remote", "system"]

    def podman(*words: str) -> None:
        subprocess.run([*as_user, "connection", *words], cwd="/", check=True, capture_output=True)

    podman("add", "another", "unix:///run/nobody.sock")
    podman("add", "mine", engine.url)
    monkeypatch.delenv("CONTAINER_HOST")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    with pytest.raises(PlatformUnsupported, match="unix:///run/nobody.sock .Podman's connection another.: no such"):
        run("train.py", 1)
    monkeypatch.setenv("CONTAINER_CONNECTION", "mine")
    assert run("train.py", 1).logs("worker-0") == "done\n"
    monkeypatch.delenv("CONTAINER_CONNECTION")
    podman("default", "mine")
    found = connect()
    assert (found.url, found.source) == (engine.url, "Podman's connection mine")


def test_a_docker_by_its_contexts(docker: Docker, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of one, and by the one that is in use."""
    (project.parent / "another-path").symlink_to(docker.folder)
    url = f"unix://{project.parent}/another-path/docker.sock"
    monkeypatch.delenv("DOCKER_HOST")
    environment = {**docker.environment, "DOCKER_CONFIG": os.environ["DOCKER_CONFIG"], "DOCKER_HOST": ""}

    def context(*words: str) -> None:
        subprocess.run(["docker", "context", *words], env=environment, check=True, capture_output=True)

    context("create", "mine", f"--docker=host={url}")
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    assert run("train.py", 1).logs("worker-0") == "done\n"
    monkeypatch.delenv("DOCKER_CONTEXT")
    context("use", "mine")
    found = connect()
    assert (found.url, found.source) == (url, "Docker's context mine")


@pytest.fixture
def host(home: Path) -> Iterator[Host]:
    """A host whose user may log in by a key, which ``ssh`` knows."""
    if not can_have_hosts():
        pytest.skip("hosts need sshd and mount namespaces")
    (home / "host").mkdir()
    host, key = Host(home / "host"), generate_key_pair()
    write_private(host.authorized_keys, key.public)
    host.give_home_to_user()
    write_private(home / "id", key.private)
    (home / "known_hosts").write_text(f"[{host.address}]:2222 {host.key.public}\n")
    options = f"-F none -o UserKnownHostsFile={home}/known_hosts -o ControlMaster=auto -o ControlPath={home}/login"
    write_private(home / "bin" / "ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} {options} "$@"\n')
    yield host
    host.stop()


@pytest.mark.elsewhere
def test_a_podman_behind_ssh_by_what_the_error_advises(
    engine: Podman, project: Path, home: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is forwarded, and it is then not taken for one of this machine's."""
    monkeypatch.setenv("PATH", str(home / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    monkeypatch.setenv("CONTAINER_SSHKEY", str(home / "id"))
    there = engine.url.removeprefix("unix://")
    monkeypatch.setenv("CONTAINER_HOST", f"ssh://{USER}@{host.address}:2222{there}")
    with pytest.raises(PlatformUnsupported, match="is a Podman behind ssh") as raised:
        run("train.py", 1)
    advised = re.fullmatch(r'forward its socket to this machine \((.*)\), and engine="(.*)"', str(raised.value.advice))
    assert advised
    command, url = advised.groups()
    with engine.given_to(UID):
        # Without a pipe, which the ssh that goes on in the background would keep open.
        subprocess.run(command, shell=True, check=True)
        try:
            assert not connect(url).is_here
            found = run("train.py", 1, engine=url, image=engine.add_python())
            assert found.logs("worker-0") == "done\n"
            eventually(lambda: engine.left_behind() == [], "nothing is left", timeout=30)
        finally:
            subprocess.run(["ssh", "-O", "exit", host.address], check=True, capture_output=True)
