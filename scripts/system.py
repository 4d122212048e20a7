"""System packages: which of those in system.cfg are missing, and how they are installed on Debian and Ubuntu.

    sudo python3 scripts/system.py PACKAGE ...

Needs nothing but the standard library of Python 3.6.
"""

import configparser
import contextlib
import os
import shutil
import subprocess
import sys
from typing import Dict, Iterator, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
POLICY = "/usr/sbin/policy-rc.d"
POLICY_TEXT = "#!/bin/sh\n# Set there by Muster's set-up for as long as it installs packages.\nexit 101\n"


def lacking(section: str) -> Dict[str, str]:
    """Name the packages of a section of system.cfg that are not there, each with what goes without it."""
    config = configparser.ConfigParser(delimiters=("=",))
    config.read(os.path.join(HERE, "system.cfg"), encoding="utf-8")
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin:/sbin"
    missing = {}
    for package, line in config[section].items():
        programs, _, lost = line.partition("|")
        if not any(shutil.which(program.strip(), path=path) for program in programs.split(",")):
            missing[package] = lost.strip()
    return missing


@contextlib.contextmanager
def services_stay_down() -> Iterator[None]:
    """Keep what is being installed from being started: nobody asked for an open port 22."""
    saved = POLICY + ".before-muster"

    def ours() -> bool:
        with contextlib.suppress(OSError, ValueError), open(POLICY) as file:
            return file.read() == POLICY_TEXT
        return False

    # A set-up that was killed may have left its own policy behind: that one is not to be kept.
    if os.path.lexists(POLICY) and not ours():
        os.rename(POLICY, saved)
    with open(POLICY, "w") as file:
        file.write(POLICY_TEXT)
    os.chmod(POLICY, 0o755)
    try:
        yield
    finally:
        os.unlink(POLICY)
        if os.path.lexists(saved):
            os.rename(saved, POLICY)


def install(packages: Sequence[str]) -> None:
    """Install Debian packages, as root, with output as apt gives it."""
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive", NEEDRESTART_SUSPEND="1")
    apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    install = apt + ["install", "--no-install-recommends"] + list(packages)
    with services_stay_down():
        # Lists that are missing or old make the first try fail within a second; fetching them takes far longer.
        if subprocess.call(install, env=env) != 0:
            subprocess.call(apt + ["update"], env=env)
            subprocess.check_call(install, env=env)
    if "openssh-server" in packages:
        # Its installation enables it for the next start of the machine. Muster starts its own, on its own port.
        units = ["disable", "ssh.socket", "ssh.service"]
        for command in (["update-rc.d", "ssh", "disable"], ["deb-systemd-helper"] + units, ["systemctl"] + units):
            if shutil.which(command[0]):
                subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    install(sys.argv[1:])
