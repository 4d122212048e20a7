"""The baseline of the benchmarks with Horovod: a bare horovodrun on hosts that are already up."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import muster
import psutil
from muster.agent.ports import random_loopback_address
from muster.platforms.machine import ssh_server
from muster.security.ssh import generate_key_pair, ssh_client, write_private

PORT = 2222
THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "4",
}  # what Muster gives a worker of one core

SSHD_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/identity
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
"""


@dataclass(frozen=True)
class Hosts:
    """Hosts on which horovodrun starts ranks over ssh."""

    folder: Path
    addresses: Sequence[str]

    def horovodrun(self, *command: str) -> None:
        """Run a command with one rank on each host."""
        hosts = ",".join(f"{address}:1" for address in self.addresses)
        self._run("-np", str(len(self.addresses)), "-H", hosts, *command)

    def horovodrun_elastic(self, ranks: int, discovery: Path, *command: str) -> None:
        """Run a command in elastic mode, with this many ranks, on the hosts that the program ``discovery`` prints."""
        number = str(ranks)
        limits = ("-np", number, "--min-np", number, "--max-np", number)
        self._run(*limits, "--host-discovery-script", str(discovery), *command)

    def _run(self, *arguments: str) -> None:
        log = self.folder / "horovodrun.log"
        horovodrun = (
            "horovodrun", "--gloo", "--disable-cache", "-p", str(PORT), "-i", str(self.folder / "identity"),
            "--network-interfaces", "lo",
        )  # fmt: skip
        environment = {
            "PATH": os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), os.defpath]),
            "HOME": str(self.folder),
            "PYTHONPATH": str(Path(muster.__file__).parents[1]),
            "CUDA_VISIBLE_DEVICES": "-1",
            **THREADS,
        }
        with log.open("wb") as output:
            done = subprocess.run(
                [*horovodrun, *arguments], env=environment, cwd=self.folder, stdout=output, stderr=output, check=False
            )
        if done.returncode:
            raise RuntimeError(f"horovodrun ended with {done.returncode}:\n{log.read_text(errors='replace')[-4000:]}")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Run an sshd for each host, on port 2222 of a loopback address of its own, and yield the hosts."""
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", 0o755, exist_ok=True)  # sshd does not start as root without it
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        key = generate_key_pair()
        write_private(folder / "identity", key.private)
        write_private(folder / "authorized_keys", key.public + "\n")
        # The user's own configuration and known hosts are neither used nor changed.
        ssh = f"{ssh_client()} -F none -o UserKnownHostsFile={folder}/known_hosts"
        write_private(folder / "bin" / "ssh", f'#!/bin/sh\nexec {ssh} "$@"\n')
        addresses = [random_loopback_address() for _ in range(count)]
        for address in addresses:
            stack.enter_context(sshd(folder, address))
        yield Hosts(folder, addresses)


@contextlib.contextmanager
def sshd(folder: Path, address: str) -> Iterator[None]:
    """Run an sshd on an address; it listens when the block begins, and ends with it, as do its descendants."""
    config = write_private(folder / f"sshd-{address}", SSHD_CONFIG.format(port=PORT, address=address, folder=folder))
    log = folder / f"sshd-{address}.log"
    process = subprocess.Popen([ssh_server().path, "-D", "-f", str(config), "-E", str(log)])
    try:
        deadline = time.monotonic() + 10
        while not (log.exists() and "Server listening" in log.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd does not listen on {address}: {log.read_text() if log.exists() else ''}")
            time.sleep(0.01)
        yield
    finally:
        # Ranks outlive a horovodrun that was killed; they are in sessions of their own, but still descend from sshd.
        for descendant in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                descendant.kill()
        process.terminate()
        process.wait()
