"""Keys, host keys and configuration, tried with real sshds and the real ssh client."""

from __future__ import annotations

import getpass
import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from muster.errors import HostKeyChanged, HostKeyUnknown, JobError, LoginRefused, TrustError
from muster.security.ssh import generate_key_pair, write_private
from muster.security.trust import SshFolder, check_login, trust

from tests.trust.hosts import PASSWORD, USER, Host, can_have_hosts

pytestmark = pytest.mark.skipif(not can_have_hosts(), reason="needs root, mount namespaces and an sshd")
EARLIER = "Host elsewhere\n    User somebody\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The ssh folder of somebody who has none yet."""
    return tmp_path / "me" / ".ssh"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def knows(host: Host) -> dict[str, Any]:
    """Return the arguments of somebody who knows a host's fingerprint and password."""
    accept = {host.fingerprint}
    return {"user": USER, "accept": lambda _, found: found in accept, "ask_password": lambda _: PASSWORD}


def never(*_: object) -> Any:
    raise AssertionError("nothing is to be asked")


@pytest.mark.slow
def test_from_a_password_to_logins_that_ask_nothing(make_host: Callable[..., Host], folder: Path) -> None:
    hosts = [make_host(), make_host()]
    asked: list[str] = []

    def ask(who: str) -> str:
        asked.append(who)
        return PASSWORD

    for host in hosts:
        options = {**knows(host), "ask_password": ask}
        assert trust(host.address, folder=folder, **options), "the key has been installed"
    assert asked == [f"{USER}@{host.address}" for host in hosts]

    # As mpirun calls it, with neither user nor port.
    for host in hosts:
        command = ["ssh", "-F", str(folder / "config"), "-o", "BatchMode=yes", host.address, "id -un"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert (done.stdout, done.returncode) == (f"{USER}\n", 0), done.stderr
    assert {path.name: mode(path) for path in folder.iterdir()} == {
        "config": 0o600, "id_ed25519": 0o600, "id_ed25519.pub": 0o600, "known_hosts": 0o600, "muster.d": 0o700
    }  # fmt: skip
    assert mode(folder) == 0o700
    assert mode(hosts[0].authorized_keys) == 0o600
    assert PASSWORD not in "".join(path.read_text() for path in folder.rglob("*") if path.is_file())

    # Again: nothing is asked, and nothing changes.
    before = {path: path.read_text() for path in [*folder.rglob("*"), hosts[0].authorized_keys] if path.is_file()}
    assert not trust(hosts[0].address, user=USER, accept=never, ask_password=never, folder=folder)
    assert before == {path: path.read_text() for path in before}


def test_nothing_that_is_there_is_overwritten(host: Host, folder: Path) -> None:
    mine = generate_key_pair()
    write_private(folder / "id_ed25519", mine.private).chmod(0o644)  # and it has no public part
    (folder / "config").write_text(EARLIER)
    (folder / "known_hosts").write_text(f"elsewhere {mine.public}")  # without the end of the line
    host.authorized_keys.parent.mkdir()
    host.authorized_keys.write_text("ssh-ed25519 of-somebody-else")
    host.give_home_to_user()

    trust(host.address, folder=folder, **knows(host))

    assert (folder / "id_ed25519").read_text() == mine.private
    assert mode(folder / "id_ed25519") == 0o600, "ssh would not use it otherwise"
    assert host.authorized_keys.read_text() == f"ssh-ed25519 of-somebody-else\n{mine.public}\n"
    assert (folder / "config").read_text().endswith(EARLIER)
    first, second = (folder / "known_hosts").read_text().splitlines()
    assert first == f"elsewhere {mine.public}"
    assert second == f"[{host.address}]:2222 {host.key.public}"


def test_another_key_can_let_the_first_one_in_also_where_a_user_runs_sshd(
    make_host: Callable[..., Host], folder: Path
) -> None:
    host = make_host(as_root=False)
    earlier = generate_key_pair()
    write_private(folder / "id_earlier", earlier.private)
    host.authorized_keys.parent.mkdir(mode=0o700)
    host.authorized_keys.write_text(f"{earlier.public}\n")
    host.give_home_to_user()

    assert trust(host.address, folder=folder, **{**knows(host), "ask_password": never})
    assert len(host.authorized_keys.read_text().splitlines()) == 2


def test_an_unknown_key_is_refused_with_its_fingerprint_and_nothing_is_recorded(host: Host, folder: Path) -> None:
    with pytest.raises(HostKeyUnknown, match=re.escape(f"ssh-ed25519 {host.fingerprint}")) as caught:
        trust(host.address, user=USER, ask_password=never, folder=folder)

    again = f"muster trust {host.address} --user {USER} --port 2222 --accept {host.fingerprint}"
    assert again in str(caught.value)
    assert not (folder / "known_hosts").exists()
    assert not (folder / "config").exists()


def test_a_key_that_has_changed_is_refused_even_if_it_would_be_accepted(host: Host, folder: Path) -> None:
    trust(host.address, folder=folder, **knows(host))
    known, before = (folder / "known_hosts").read_text(), host.fingerprint
    host.stop()
    host.set_up_anew()

    with pytest.raises(HostKeyChanged, match="HAS CHANGED") as caught:
        trust(host.address, folder=folder, **{**knows(host), "ask_password": never})
    assert before in str(caught.value)
    assert host.fingerprint in str(caught.value)
    assert f"ssh-keygen -R '[{host.address}]:2222'" in str(caught.value)
    assert (folder / "known_hosts").read_text() == known
    with pytest.raises(TrustError, match="REMOTE HOST IDENTIFICATION HAS CHANGED"):
        check_login(host.address, folder)


@pytest.mark.parametrize(("password", "advised"), [
    ("wrong", r"PasswordAuthentication.*; or add this line to ~/\.ssh/authorized_keys there: ssh-ed25519 \S+"),
    (None, "in a terminal, where it can ask for a password"),
])  # fmt: skip
def test_without_the_password_there_is_no_login(host: Host, folder: Path, password: str | None, advised: str) -> None:
    ask = None if password is None else lambda _: password
    with pytest.raises(LoginRefused, match=f"does not let {USER} in") as caught:
        trust(host.address, folder=folder, **{**knows(host), "ask_password": ask})
    assert re.search(advised, str(caught.value.advice))


def test_a_key_with_a_passphrase_is_said_to_be_one(host: Host, folder: Path) -> None:
    folder.mkdir(parents=True)
    key = folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)

    with pytest.raises(LoginRefused, match="has a passphrase"):
        trust(host.address, folder=folder, **{**knows(host), "ask_password": None})


def test_a_host_without_sshd_is_named(host: Host, folder: Path) -> None:
    host.stop()
    with pytest.raises(TrustError, match=f"{host.address}, port 2222, cannot be reached"):
        trust(host.address, folder=folder, **knows(host))


def test_a_host_where_nothing_can_be_run_is_named(host: Host, folder: Path) -> None:
    host.stop()
    with (host.folder / "sshd_config").open("a") as config:
        config.write("MaxSessions 0\n")
    host.start()
    with pytest.raises(TrustError, match=f"could not be installed on {host.address}: "):
        trust(host.address, folder=folder, **knows(host))


def test_what_is_no_host_is_refused(folder: Path) -> None:
    for name in ("-oProxyCommand=sh", "a b", "*", "../x", ".", ".."):
        with pytest.raises(JobError, match="no name or address"):
            trust(name, folder=folder)


def test_a_public_key_alone_is_not_replaced(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "id_ed25519.pub").write_text("mine")
    with pytest.raises(TrustError, match="not its private key"):
        SshFolder(folder).identity()
    assert (folder / "id_ed25519.pub").read_text() == "mine"


def test_by_default_it_is_the_folder_that_ssh_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    assert SshFolder().path == Path(f"~{getpass.getuser()}").expanduser() / ".ssh"
