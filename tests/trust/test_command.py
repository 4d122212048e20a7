"""``muster trust`` in a terminal and without one, by somebody whose home is a folder of the test."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import environment
from tests.trust.hosts import PASSWORD, USER, Host, can_have_hosts

pytestmark = pytest.mark.skipif(not can_have_hosts(), reason="needs root, mount namespaces and an sshd")


class Person:
    """Somebody with a home of their own, as far as the processes know that they start."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self._passwd = folder / "passwd"
        self._passwd.write_text(f"root:x:0:0::{self.home}:/bin/sh\n")

    def command(self, *words: object, terminal: str = "/dev/null") -> list[str]:
        muster = shlex.join([sys.executable, "-m", "muster", "trust", *map(str, words)])
        mount = f"mount --bind {self._passwd} /etc/passwd"
        return ["unshare", "--mount", "sh", "-c", f"{mount} && exec {muster} < {terminal}"]

    def trust(self, *words: object) -> tuple[int, str]:
        """Run the command without a terminal; return its exit status, and what it says."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, env=environment(), timeout=60)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def read_until(terminal: int, words: str) -> str:
    text, deadline = "", time.monotonic() + 20
    while words not in text:
        assert time.monotonic() < deadline, text
        if select.select([terminal], [], [], 0.1)[0]:
            text += os.read(terminal, 4096).decode()
    return text


@pytest.mark.slow
def test_in_a_terminal_it_asks_about_the_key_and_for_the_password(person: Person, host: Host) -> None:
    terminal, theirs = pty.openpty()
    command = person.command(host.address, "--user", USER, terminal=os.ttyname(theirs))
    # The leader of a session gets the first terminal that it opens for its own, which is where passwords are asked for.
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment(), start_new_session=True) as process:
        assert host.fingerprint in read_until(terminal, "right one? [y/N]")
        os.write(terminal, b"y\n")
        read_until(terminal, f"Password of {USER}@{host.address}: ")
        os.write(terminal, f"{PASSWORD}\n".encode())
        said = read_until(terminal, "installed")
        assert process.wait(20) == 0
    assert f"✓ {host.address}  logs in without a prompt, its key has been installed" in said
    assert PASSWORD not in said
    os.close(terminal)
    os.close(theirs)

    assert person.trust("--check", host.address) == (0, f"✓ {host.address}  logs in without a prompt\n")
    assert person.trust("--check", "-p", "2222", host.address)[0] == 0
    status, said = person.trust("--check", "--port", "9", host.address)
    assert status == 1
    assert f"ssh {host.address}, port 9, does not log in" in said
    assert "see whether its sshd runs, and listens on port 9" in said
    status, said = person.trust("--check", "-l", "nobody-of-that-name", host.address)
    assert (status, f"muster trust {host.address} -p 2222" in said) == (1, True)


@pytest.mark.slow
def test_without_a_terminal_it_says_what_to_accept_and_goes_on_with_the_next_host(person: Person, host: Host) -> None:
    status, said = person.trust("127.255.255.254", host.address)
    assert status == 1
    assert "✗ 127.255.255.254  127.255.255.254, port 2222, cannot be reached over ssh" in said
    advised = re.search(r"muster (trust .* --accept \S+)", said)
    assert advised
    assert advised[1] == f"trust {host.address} --port 2222 --accept {host.fingerprint}"

    status, said = person.trust(*advised[1].split()[1:], "-l", USER)
    assert status == 1
    assert f"does not let {USER} in" in said
    assert "Try: run it in a terminal" in said
    assert person.trust("--check", host.address)[0] == 1
