"""A login node of the tests' Slurm, with a real sshd, for sessions on a machine that is not part of the cluster.

It has a network namespace, an address and a host name of its own. The home folder there is one that it shares with the
compute nodes, and that this machine does not see.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from muster.security.ssh import generate_key_pair, write_private

from tests.platforms.hosts_network import SSHD
from tests.platforms.slurm_engine import Engine
from tests.support import eventually

NAME = "login1"
# The same machine where logins lack Slurm's commands, have them only in a terminal, lack python3, forward no port, or
# have the python3 of ``old_python``.
NO_SLURM, TERMINAL, NO_PYTHON, NO_FORWARDING = "no-slurm", "terminal", "no-python", "no-forwarding"
OLD_PYTHON = "old-python"
PORTS = {NAME: 22, NO_SLURM: 23, TERMINAL: 24, NO_PYTHON: 25, NO_FORWARDING: 26, OLD_PYTHON: 27}
NUMBER = 250  # of its address
SSHD_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/pid
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
PrintLastLog no
PrintMotd no
"""
USUAL = "/usr/bin:/bin"
SETUP = """\
mount -t tmpfs none {home}
mkdir -p {homes} {home}/tmp /run/sshd
printf '%s\n' 'sleep 60 &' 'export PATH="{path}"' > {profile}/.profile
unshare --net --uts sh -c "until ip link show eth0 >/dev/null 2>&1; do sleep 0.01; done; ip link set lo up
    ip addr add {address}/24 dev eth0; ip link set eth0 up; hostname {name}
    exec {sshd} -D -e -f {folder}/sshd_config" &
until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link add eth0 netns $! type veth peer name port{number} netns {switch}
nsenter -t {switch} -n ip link set port{number} master br0 up
wait
"""


def why_not() -> str:
    """Return why there can be no login node here; an empty string if there can be one."""
    return "" if shutil.which(SSHD) and shutil.which("ssh") else "a login node needs ssh and sshd"


class LoginMachine:
    """The login node of a Slurm, which ``ssh`` knows by several names.

    One is of a login node as most are; with the others something is missing. Where ``off`` leads to nobody listens.

    Args:
        engine: the Slurm.

    Attributes:
        engine: the same.
        address: its address.
        home: the user's home there, which this machine does not see.
        old: a folder that comes first on the search path of ``OLD_PYTHON``.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.folder = engine.folder / "login"
        self.old = self.folder / "old"
        self.home = engine.folder / "home-of-cluster"
        self.address = f"{engine.subnet}.{NUMBER}"
        self._host_key, self._key = generate_key_pair(), generate_key_pair()
        self.home.mkdir()
        write_private(self.folder / "host_key", self._host_key.private)
        write_private(self.folder / "id_ed25519", self._key.private)
        (self.folder / "authorized_keys").write_text(self._key.public + "\n")
        (self.folder / "known_hosts").write_text(f"{NAME} {self._host_key.public}\n")
        with (engine.folder / "hosts").open("a") as names:
            names.write(f"{self.address} {NAME}\n")
        entries = "".join(f"Host {name}\n    Port {port}\n    HostKeyAlias {NAME}\n" for name, port in PORTS.items())
        entries += "Host off\n    Port 99\n"
        (self.folder / "config").write_text(
            f"{entries}Host *\n    HostName {self.address}\n    User root\n    IdentitiesOnly yes\n"
            f"    IdentityFile {self.folder}/id_ed25519\n    UserKnownHostsFile {self.folder}/known_hosts\n"
            "    GlobalKnownHostsFile /dev/null\n"
        )
        real = shutil.which("ssh")
        write_private(self.folder / "bin" / "ssh", f'#!/bin/sh\nexec {real} -F {self.folder}/config "$@"\n')
        self._start()

    def _start(self) -> None:
        facts = {
            "folder": self.folder, "home": self.home, "path": self.engine.path, "address": self.address, "name": NAME,
            "number": NUMBER, "sshd": SSHD, "switch": (self.engine.folder / "switch").read_text().strip(),
            "homes": " ".join(str(self._home_of(name)) for name in PORTS), "profile": self._home_of(TERMINAL),
        }  # fmt: skip
        ports = "".join(f"Port {port}\n" for port in PORTS.values())
        matches = "".join(self._match(name, port) for name, port in PORTS.items())
        (self.folder / "sshd_config").write_text(ports + SSHD_CONFIG.format(**facts) + matches)
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*self.engine.inside, "sh", "-c", SETUP.format(**facts)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.defpath + ":/usr/sbin:/sbin"},
            )
        eventually(lambda: "Server listening" in self._log(), "its sshd listens", 20)

    def _home_of(self, name: str) -> Path:
        return self.home if name == NAME else self.home / name

    def _match(self, name: str, port: int) -> str:
        """Return the part of sshd's configuration for logins by one of the names."""
        own = {NO_SLURM: USUAL, TERMINAL: USUAL, NO_PYTHON: "/nowhere", OLD_PYTHON: f"{self.old}:{self.engine.path}"}
        path = own.get(name, self.engine.path)
        home = self._home_of(name)
        return (
            f"Match LocalPort {port}\n    AllowTcpForwarding {'no' if name == NO_FORWARDING else 'yes'}\n"
            f"    SetEnv HOME={home} TMPDIR={self.home}/tmp PATH={path}\n"
        )

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def path(self) -> str:
        """A search path on which ``ssh`` knows this machine, and Slurm's commands are missing."""
        return os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])

    def run(self, command: str) -> str:
        """Run a shell command with the files of the cluster, and return its output."""
        inside = [*self.engine.inside, "sh", "-c", command]
        return subprocess.run(inside, check=True, stdout=subprocess.PIPE, text=True).stdout

    @contextlib.contextmanager
    def firewall(self) -> Iterator[None]:
        """Refuse all connections to the login node but those to its sshd, for a while."""
        network = ["nsenter", "--target", str(self._first()), "--net", "iptables"]
        refused = ["INPUT", "-i", "eth0", "-p", "tcp", "--syn", "!", "--dport", "22:99", "-j", "REJECT"]
        subprocess.run([*network, "-A", *refused], check=True)
        try:
            yield
        finally:
            subprocess.run([*network, "-D", *refused], check=True)

    @contextlib.contextmanager
    def open_files(self, most: int) -> Iterator[None]:
        """Let the sshd of each login have so many files open, for a while."""
        first, before = self._first(), resource.prlimit(self._first(), resource.RLIMIT_NOFILE)
        resource.prlimit(first, resource.RLIMIT_NOFILE, (most, before[1]))
        try:
            yield
        finally:
            resource.prlimit(first, resource.RLIMIT_NOFILE, before)

    def restart_sshd(self) -> None:
        """Have sshd start anew, as after a change of its configuration; logins go on, as they are other processes."""
        listening = self._log().count("Server listening")
        os.kill(self._first(), signal.SIGHUP)
        eventually(lambda: self._log().count("Server listening") > listening, "its sshd listens again", 20)

    def pids(self) -> list[int]:
        """Return the ids on this machine of all processes of the login node, its first sshd aside."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                found[int(path.name)] = os.readlink(path / "ns/net")
        first = self._first()
        return [pid for pid, network in found.items() if network == found[first] and pid != first]

    def _first(self) -> int:
        """Return the id on this machine of the sshd that waits for logins."""
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        (first,) = [pid for pid in pids if self._is_first(pid)]
        return first

    def _is_first(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            return words.startswith(f"sshd: {SSHD}") and f"{self.folder}/sshd_config" in words
        return False

    def processes(self) -> list[str]:
        """Return the command lines of the login node's processes."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        return [line for line in found if line.strip()]

    def files(self) -> list[str]:
        """Return the paths of all files in the homes there, but for startup files."""
        return sorted(self.run(f"cd {self.home} && find . -type f ! -name .profile").split())

    def remove_what_tensorflow_leaves(self) -> None:
        """Remove what TensorFlow's own imports leave in the user's home."""
        self.run(f"cd {self.home} && rm -rf .keras .config .cache/matplotlib")

    def switch(self, *, on: bool) -> None:
        """Cut the login node off the network silently, or connect it again."""
        switch = (self.engine.folder / "switch").read_text().strip()
        self.run(f"nsenter -t {switch} -n ip link set port{NUMBER} {'up' if on else 'down'}")

    def remove(self) -> None:
        """End the process that has started it; all others end with Slurm's."""
        self._process.kill()
        self._process.wait(20)

    def expect_nothing_left(self) -> None:
        """Fail unless all processes and files of Muster's are gone there, or go in a moment."""
        eventually(lambda: self.processes() == [], f"no process is left: {self.processes()}", 30)
        eventually(lambda: self.files() == [], f"no file is left: {self.files()}", 30)
