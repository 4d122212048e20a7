"""A network of hosts to log in to, which share this kernel and the system's files, but no more.

Each host has a network namespace with an address of its own, reached over a bridge; process ids, shared memory and a
host name of its own; and a view of the files in which folders that users write to are empty. Its sshd is a real one, on
port 22.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import muster
from muster.security.ssh import generate_key_pair, write_private

from tests.support import eventually

SSHD = "/usr/sbin/sshd"
HIDDEN = ("/tmp", "/var/tmp", "/dev/shm", "/root", "/home", "/mnt")
SSHD_CONFIG = """\
Port 22
HostKey /mnt/sshd/host_key
AuthorizedKeysFile /mnt/sshd/authorized_keys
PidFile none
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
MaxStartups 100:30:200
PrintLastLog no
PrintMotd no
"""
SETUP = """\
set -e
mount --make-rprivate /
ip link set lo up
hostname {name}
mount -t tmpfs none /media
cp -r {etc} /media/sshd
{keep}{hide}mkdir -p /mnt/sshd && cp /media/sshd/* /mnt/sshd/
{bring_back}umount -l /media
mkdir -p /run/sshd
mount --bind /mnt/sshd/hosts /etc/hosts
exec {sshd} -D -e -f /mnt/sshd/sshd_config
"""


@functools.lru_cache(maxsize=1)
def can_have_networks() -> bool:
    """Return whether this user may make network namespaces, and all programs that hosts need are installed."""
    if os.geteuid() != 0 or not all(map(shutil.which, (SSHD, "ssh", "ip", "unshare"))):
        return False
    name = f"muster-probe-{secrets.token_hex(3)}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return False
    bridge = subprocess.run(["ip", "-n", name, "link", "add", "br0", "type", "bridge"], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return bridge.returncode == 0


def ip(*words: str) -> None:
    """Run the program ``ip``."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """A bridge in a namespace of its own, to which this machine and some hosts are connected.

    Attributes:
        address: this machine's address on the network.
        folder: folder of the ssh client's configuration, its key, and the hosts' keys.
        hosts: the hosts, by name.
        names: the hosts' ``/etc/hosts``.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        token = secrets.token_hex(3)
        self._prefix = f"muster-{token}"
        self._switch = f"{self._prefix}-switch"
        self._veth = f"mst{token}"
        self._subnet = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(250)}"
        self.address = f"{self._subnet}.1"
        self.folder = Path(tempfile.mkdtemp(prefix="mst-"))
        self.key = generate_key_pair()
        self.hosts: dict[str, Host] = {}
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self._switch, "link", "set", "br0", "up")
        self._plug(self._veth)
        ip("addr", "add", f"{self.address}/24", "dev", self._veth)
        ip("link", "set", self._veth, "up")
        write_private(self.folder / "id_ed25519", self.key.private)
        known = [f"{self._subnet}.{number} {name}\n" for number, name in enumerate(names, 2)]
        self.names = "".join(["127.0.0.1 localhost\n", *known])
        for number, name in enumerate(names, 2):
            self.hosts[name] = Host(self, name, f"{self._subnet}.{number}", number)
        self._write_client()
        for host in self.hosts.values():
            host.wait()

    @property
    def path(self) -> str:
        """A search path on which ``ssh`` knows the hosts."""
        return os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])

    def netns(self, name: str) -> str:
        """Make a namespace for a host, and return its name."""
        found = f"{self._prefix}-{name}"
        ip("netns", "add", found)
        return found

    def connect(self, namespace: str, address: str, number: int) -> None:
        """Give a namespace an ``eth0`` with this address, at the bridge's port ``portN``."""
        self._plug(f"{self._veth}x")
        ip("link", "set", f"{self._veth}x", "netns", namespace, "name", "eth0")
        ip("-n", self._switch, "link", "set", "port", "name", f"port{number}")
        ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "eth0", "up")
        ip("-n", self._switch, "link", "set", f"port{number}", "up")

    def switch_port(self, number: int, *, up: bool) -> None:
        """Cut a host off the network silently, or connect it again."""
        ip("-n", self._switch, "link", "set", f"port{number}", "up" if up else "down")

    def expect_nothing_left(self) -> None:
        """Raise AssertionError unless all is gone, within 20 s, that was not on a host when it was powered on."""
        for host in self.hosts.values():
            eventually(lambda: not host.left_behind(), f"nothing left: {host.left_behind()}", 20)  # noqa: B023

    def remove_what_tensorflow_leaves(self) -> None:
        """Remove what TensorFlow's own imports leave in the home of the user who logs in."""
        for host in self.hosts.values():
            host.run("rm -rf /root/.keras /root/.config /root/.cache/matplotlib")

    def remove(self) -> None:
        """End the hosts, and remove everything."""
        for host in self.hosts.values():
            host.power_off()
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)
        subprocess.run(["ip", "link", "del", self._veth], capture_output=True)
        subprocess.run(["ip", "netns", "del", self._switch], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _plug(self, name: str) -> None:
        """Make a pair of interfaces: ``name`` here, and on the bridge ``port``, or ``port1`` for this machine."""
        there = "port1" if name == self._veth else "port"
        ip("link", "add", name, "type", "veth", "peer", "name", there, "netns", self._switch)
        ip("-n", self._switch, "link", "set", there, "master", "br0")
        if there == "port1":
            ip("-n", self._switch, "link", "set", there, "up")

    def _write_client(self) -> None:
        """Write a configuration of ssh that knows the hosts, and a program ``ssh`` that uses it as the user's."""
        lines = [f"{host.address} {host.key.public}\n" for host in self.hosts.values()]
        (self.folder / "known_hosts").write_text("".join(lines))
        entries = [f"Host {name}\n    HostName {host.address}\n" for name, host in self.hosts.items()]
        common = f"Host *\n    User root\n    IdentityFile {self.folder}/id_ed25519\n    IdentitiesOnly yes\n"
        common += f"    UserKnownHostsFile {self.folder}/known_hosts\n    GlobalKnownHostsFile /dev/null\n"
        (self.folder / "config").write_text("".join(entries) + common)
        real = shutil.which("ssh")
        write_private(self.folder / "bin" / "ssh", f'#!/bin/sh\nexec {real} -F {self.folder}/config "$@"\n')


class Host:
    """One host of a network.

    Attributes:
        name: its name, in ssh's configuration as well.
        address: its address.
        namespace: name of its network namespace.
        init: id on this machine of its first process, once it is up.
    """

    def __init__(self, network: Network, name: str, address: str, number: int) -> None:
        self.name, self.address = name, address
        self.key = generate_key_pair()
        self._network = network
        self._number = number
        self.namespace = network.netns(name)
        network.connect(self.namespace, address, number)
        self._etc = network.folder / name
        write_private(self._etc / "host_key", self.key.private)
        (self._etc / "authorized_keys").write_text(network.key.public + "\n")
        (self._etc / "sshd_config").write_text(SSHD_CONFIG)
        (self._etc / "hosts").write_text(network.names)
        self.power_on()

    def power_on(self) -> None:
        """Start the host, with no files but the system's; ``wait`` waits until its sshd listens."""
        self.log = self._etc / "sshd.log"
        script = setup_script(self.name, self._etc)
        own = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, "unshare", *own, "sh", "-c", script],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={"PATH": os.defpath + ":/usr/sbin:/sbin"},
            )

    def wait(self) -> None:
        """Wait until the host's sshd listens."""
        eventually(lambda: "Server listening" in self.log.read_text(), f"sshd listens: {self.log.read_text()}")
        self.init: int = eventually(self._find_init, "its first process runs")

    def power_off(self) -> None:
        """Kill all processes of the host at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(10)
        eventually(lambda: not self.pids(), "it is off", 5)

    def cut(self) -> None:
        """Cut the host off the network silently, as when its cable is pulled."""
        self._network.switch_port(self._number, up=False)

    def plug_in(self) -> None:
        """Connect the host to the network again."""
        self._network.switch_port(self._number, up=True)

    def run(self, command: str, check: bool = True) -> str:
        """Run a shell command on the host, without ssh, and return its output."""
        inside = ["nsenter", f"--target={self.init}", "--all", "--wd=/", "sh", "-c", command]
        return subprocess.run(inside, check=check, stdout=subprocess.PIPE, text=True).stdout

    def _find_init(self) -> int | None:
        """Return the id on this machine of the host's first process, or None if there is none yet."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                if status.split("NSpid:")[1].split("\n")[0].split()[1:] == ["1"]:
                    return pid
        return None

    def pids(self) -> list[int]:
        """Return the ids on this machine of all processes in the host's network namespace."""
        listed = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True)
        return [int(word) for word in listed.stdout.split()]

    def processes(self) -> list[str]:
        """Return the command lines of all the host's processes, except for the sshd that waits for logins."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if line and not line.startswith(("unshare ", "ip netns exec", f"sshd: {SSHD}")):
                    found.append(line)
        return found

    def files(self) -> list[str]:
        """Return the paths of everything in the folders that users write to."""
        return self.run("find /tmp /var/tmp /dev/shm /root -mindepth 1 -maxdepth 2 -xdev").splitlines()

    def left_behind(self) -> list[str]:
        """Return the processes, files and ports that were not there when the host was powered on."""
        listening = self.run("cat /proc/net/tcp /proc/net/tcp6 | awk '$4 == \"0A\" {print $2}'").split()
        ports = [int(place.rpartition(":")[2], 16) for place in listening]
        others = [f"port {port}" for port in ports if port != 22]
        return [*self.processes(), *(path for path in self.files() if path not in self._own_files()), *others]

    @staticmethod
    def _own_files() -> set[str]:
        announced = {"/root/.cache", "/root/.cache/muster"}  # the cache of projects
        return announced | {str(parent) for kept in kept_folders() for parent in (kept, *kept.parents)}


def kept_folders() -> list[Path]:
    """Return those folders of this interpreter and of others that are hidden; every host has them all the same."""
    found = {Path(path) for path in (sys.prefix, sys.base_prefix)}
    found |= {python.parents[1] for python in Path.home().glob(".pyenv/versions/3.*/bin/python3")}
    return [path for path in sorted(found) if any(path.is_relative_to(hidden) for hidden in hidden_folders())]


def hidden_folders() -> list[Path]:
    """Return the folders that are empty on hosts: those that users write to, and this project's."""
    project = [Path(muster.__file__).resolve().parents[2], Path(__file__).resolve().parents[2], Path.cwd()]
    return [path for path in sorted({*map(Path, (*HIDDEN, tempfile.gettempdir())), *project}) if path.is_dir()]


def setup_script(name: str, etc: Path) -> str:
    """Return the shell script that is a host's first process."""
    keep = hide = back = ""
    for number, kept in enumerate(kept_folders()):
        keep += f"mkdir /media/{number} && mount --bind {kept} /media/{number}\n"
        back += f"mkdir -p {kept} && mount --bind /media/{number} {kept} && mount -o remount,ro,bind {kept}\n"
    outermost: list[Path] = []
    for hidden in hidden_folders():
        if not any(hidden.is_relative_to(other) for other in outermost):
            outermost.append(hidden)
            hide += (
                f"mount -t tmpfs -o mode=1777 none {hidden}\n"
                if "tmp" in hidden.name
                else f"mount -t tmpfs none {hidden}\n"
            )
    return SETUP.format(name=name, etc=etc, keep=keep, hide=hide, bring_back=back, sshd=SSHD)


def main() -> None:
    """Keep a network of two hosts up, for experiments by hand."""
    network = Network(("h1", "h2"))
    print(network.folder, network.address, flush=True)
    try:
        while True:
            time.sleep(60)
    finally:
        network.remove()


if __name__ == "__main__":
    main()
