"""Hosts to log in to: real sshds on port 2222 of loopback addresses, with accounts, homes and passwords of their own.

Each sees an ``/etc/passwd`` and an ``/etc/shadow`` of its own, in a mount namespace: this machine's stay as they are.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from pathlib import Path

from muster.agent.ports import random_loopback_address
from muster.security.ssh import KeyPair, generate_key_pair, write_private

from tests.support import eventually

SSHD = "/usr/sbin/sshd"
USER, UID, PASSWORD = "trainee", 54321, "correct horse"
CONFIG = """\
Port 2222
ListenAddress {address}
HostKey {folder}/host_key
PidFile none
UsePAM no
UseDNS no
PasswordAuthentication {password}
"""
MOUNT = "mount --bind {folder}/passwd /etc/passwd && mount --bind {folder}/shadow /etc/shadow && exec {sshd}"


@functools.lru_cache(maxsize=1)
def can_have_hosts() -> bool:
    """Return whether mount namespaces can be made here, and everything else is there."""
    probe = ["unshare", "--mount", "mount", "--bind", "/etc/passwd", "/etc/passwd"]
    programs = all(map(shutil.which, (SSHD, "ssh", "openssl", "unshare", "setpriv")))
    return programs and subprocess.run(probe, capture_output=True).returncode == 0


class Host:
    """One host, with an account for ``USER``; its sshd is that of root, or one that the user runs."""

    def __init__(self, folder: Path, *, as_root: bool = True) -> None:
        self.folder = folder
        self.address = random_loopback_address()
        self.home = folder / "home"
        self.authorized_keys = self.home / ".ssh" / "authorized_keys"
        self._as_root = as_root
        folder.chmod(0o755)
        self.home.mkdir()
        self._write_accounts()
        self.set_up_anew()

    def set_up_anew(self) -> None:
        """Start it with a new host key."""
        self.key: KeyPair = generate_key_pair()
        write_private(self.folder / "host_key", self.key.private)
        (self.folder / "sshd_config").write_text(
            CONFIG.format(address=self.address, folder=self.folder, password="yes" if self._as_root else "no")
        )
        self.give_home_to_user()
        if self._as_root:
            os.makedirs("/run/sshd", exist_ok=True)
        else:
            os.chown(self.folder / "host_key", UID, UID)
        self.start()

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its key, as ssh-keygen has it."""
        (self.folder / "host_key.pub").write_text(self.key.public)
        listed = subprocess.run(
            ["ssh-keygen", "-lf", self.folder / "host_key.pub"], capture_output=True, text=True, check=True
        )
        return listed.stdout.split()[1]

    def start(self) -> None:
        """Start its sshd, and wait until it listens."""
        change_user = [] if self._as_root else ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        sshd = " ".join([*change_user, SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")])
        self.log = self.folder / "sshd.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", MOUNT.format(folder=self.folder, sshd=sshd)], stderr=log
            )
        eventually(lambda: "Server listening" in self.log.read_text(), "sshd listens")

    def stop(self) -> None:
        """End its sshd."""
        self._process.terminate()
        self._process.wait(10)

    def remove(self) -> None:
        """End it, and remove its files."""
        self.stop()
        time.sleep(0.05)  # sessions of its that are just ending
        shutil.rmtree(self.folder)

    def give_home_to_user(self) -> None:
        """Have everything in the home belong to the user."""
        subprocess.run(["chown", "-R", f"{UID}:{UID}", self.home], check=True)

    def _write_accounts(self) -> None:
        hashed = subprocess.run(
            ["openssl", "passwd", "-6", "-stdin"], input=PASSWORD, capture_output=True, text=True, check=True
        )
        account = f"{USER}:x:{UID}:{UID}::{self.home}:/bin/sh\n"
        (self.folder / "passwd").write_text(Path("/etc/passwd").read_text() + account)
        write_private(self.folder / "shadow", f"{USER}:{hashed.stdout.strip()}:20000:0:99999:7:::\n")
