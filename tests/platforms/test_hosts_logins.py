"""Ways to log in to hosts that a user's ssh_config has: jump hosts, an ssh agent, an ordinary user. On real sshds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import LoginRefused
from muster.platforms.hosts.platform import HostsPlatform

from tests.platforms.hosts_network import Network
from tests.support import eventually

WHERE = "import os\nprint(os.uname().nodename, os.getuid(), os.path.expanduser('~'))\n"


@pytest.fixture
def config(hosts: Network) -> Iterator[Path]:
    """The user's ssh_config, which is put back after the test."""
    path = hosts.folder / "config"
    before = path.read_text()
    yield path
    path.write_text(before)


def trained_on(host: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """Run a script on one worker there, and return what it has printed."""
    (folder / "project").mkdir()
    (folder / "project" / "train.py").write_text(WHERE)
    monkeypatch.chdir(folder / "project")
    cluster: muster.Cluster = muster.run_cluster(
        1, worker_script="train.py", strategy="processes", memory=0.5, platform="hosts", hosts=[f"{host}:1"],
        timeout_seconds=120, **options,
    ).cluster  # fmt: skip
    return cluster.logs("worker-0")


@pytest.mark.parametrize("tunnel", [None, True], ids=["dialled", "through ssh"])
def test_a_host_behind_another_one(
    hosts: Network, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tunnel: bool | None
) -> None:
    far = hosts.hosts["h2"]
    own = f"Host far\n    HostName {far.address}\n    ProxyJump h1\n"
    config.write_text(own + config.read_text())
    deny = f"INPUT -s {hosts.address} -p tcp --dport 22 -j REJECT --reject-with tcp-reset"  # but from h1
    far.run(f"iptables -A {deny}")
    try:
        assert trained_on("far", tmp_path, monkeypatch, tunnel=tunnel) == "h2 0 /root\n"
    finally:
        far.run(f"iptables -D {deny}")


def test_a_key_that_only_an_agent_has(
    hosts: Network, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (shutil.which("ssh-agent") and shutil.which("ssh-add")):
        pytest.skip("there is no ssh-agent here")
    socket, key = hosts.folder / "agent.sock", hosts.folder / "id_ed25519"
    text = config.read_text()
    assert f"IdentityFile {key}" in text
    config.write_text(text.replace(f"IdentityFile {key}", "IdentityFile none").replace("IdentitiesOnly yes", ""))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as agent:
        try:
            eventually(socket.exists, "the agent listens")
            subprocess.run(["ssh-add", "-q", str(key)], check=True, stderr=subprocess.DEVNULL)
            assert trained_on("h1", tmp_path, monkeypatch) == "h1 0 /root\n"
        finally:
            agent.terminate()


def test_an_ordinary_user_of_a_host(hosts: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, uid = hosts.hosts["h1"], 54321
    entry = f"worker:x:{uid}:{uid}::/home/worker:/bin/sh"
    host.run(f"cp /etc/passwd /mnt/passwd && echo {entry} >> /mnt/passwd && mount --bind /mnt/passwd /etc/passwd")
    host.run(f"mkdir /home/worker && chown {uid}:{uid} /home/worker && chmod 700 /home/worker")
    try:
        assert trained_on("worker@h1", tmp_path, monkeypatch) == f"h1 {uid} /home/worker\n"
        kept = host.run("find /home/worker -mindepth 1 -type d").split()
        assert "/home/worker/.cache/muster/projects" in kept
        assert not host.run("find /home/worker ! -user worker").split()
    finally:
        host.run("umount /etc/passwd && rm -r /home/worker /mnt/passwd")
    assert os.getuid() == 0


def test_nobody_is_asked_for_a_passphrase(
    hosts: Network, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, asked = tmp_path / "id_locked", tmp_path / "asked"
    shutil.copy(hosts.folder / "id_ed25519", key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True)
    config.write_text(config.read_text().replace(f"IdentityFile {hosts.folder}/id_ed25519", f"IdentityFile {key}"))
    (tmp_path / "askpass").write_text(f"#!/bin/sh\ntouch {asked}\n")
    (tmp_path / "askpass").chmod(0o755)
    for name, value in {"": str(tmp_path / "askpass"), "_REQUIRE": "force"}.items():
        monkeypatch.setenv(f"SSH_ASKPASS{name}", value)
    platform = HostsPlatform(hosts=("h1:1",))
    with pytest.raises(LoginRefused):
        platform.check()
    platform.close()
    assert not asked.exists()
