"""Ways to log in to hosts that a user's ssh_config has: jump hosts, an ssh agent, an ordinary user. On real sshds."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import LoginRefused
from muster.platforms.hosts.platform import HostsPlatform
from muster.records import scratch

from tests.platforms.hosts_network import Network
from tests.support import environment, eventually

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


@pytest.mark.parametrize("name", ["busy", "far"])
def test_a_host_that_takes_no_more_logins_at_once_is_asked_again(hosts: Network, config: Path, name: str) -> None:
    """As sshds hang up of which more than ten logins are wanted at once, say of all hosts behind one."""
    busy, far = hosts.hosts["h1"], hosts.hosts["h2"]
    own = f"Host busy\n    HostName {busy.address}\n    Port 2200\n    HostKeyAlias {busy.address}\n"
    config.write_text(f"{own}Host far\n    HostName {far.address}\n    ProxyJump busy\n{config.read_text()}")
    busy.run("sed 's/^MaxStartups .*/MaxStartups 1/' /mnt/sshd/sshd_config > /mnt/sshd/busy_config")
    busy.run("/usr/sbin/sshd -f /mnt/sshd/busy_config -p 2200 -o PidFile=/mnt/sshd/pid")

    def listens() -> bool:  # from when it has written this file until it removes it
        return bool(busy.run("cat /mnt/sshd/pid", check=False))

    eventually(listens, "sshd listens, some time after it has gone to the background")
    platform = HostsPlatform(hosts=(name,))
    try:
        with socket.create_connection((busy.address, 2200)) as other:
            assert other.recv(100)  # this login has the only place
            end = threading.Timer(1, other.shutdown, [socket.SHUT_RDWR])
            end.start()
            platform.check()
            end.join()
    finally:
        platform.close()
        busy.run("kill $(cat /mnt/sshd/pid)")
        eventually(lambda: not listens(), "sshd has ended")


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


KILLED = """
import os, signal
from muster.platforms.hosts.platform import HostsPlatform

platform = HostsPlatform(hosts=("h1:1",), tunnel=True)
platform.reach()
print(platform._routes.route("h1", ("127.0.0.1", 9))[1], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_connection_that_the_user_keeps_open_is_shared_where_no_other_login_is_let_in(
    hosts: Network, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = hosts.hosts["h1"]
    config.write_text(f"Host *\n    ControlPath {hosts.folder}/%C\n{config.read_text()}")

    def has_no_ports() -> bool:
        return not any(line.startswith("port ") for line in host.left_behind())

    subprocess.run(["ssh", "-M", "-f", "-N", "h1"], check=True)
    host.run("mv /mnt/sshd/authorized_keys /mnt/sshd/others")  # as one that wants another word for each login
    try:
        assert trained_on("h1", tmp_path, monkeypatch, tunnel=True) == "h1 0 /root\n"
        eventually(has_no_ports, "what was forwarded has been taken back")
        killed = subprocess.run([sys.executable, "-c", KILLED], env=environment(), stdout=subprocess.PIPE)
        assert killed.returncode == -signal.SIGKILL
        assert int(killed.stdout)
        scratch.sweep(Path(tempfile.gettempdir()))  # as the next run does
        eventually(has_no_ports, "also after a kill -9 of the session")
        subprocess.run(["ssh", "-O", "check", "h1"], check=True, stderr=subprocess.DEVNULL)
    finally:
        host.run("mv /mnt/sshd/others /mnt/sshd/authorized_keys")
        subprocess.run(["ssh", "-O", "exit", "h1"], check=True, stderr=subprocess.DEVNULL)


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
