"""Exclusive claims of workers on cores and GPUs, among all clusters of a user on this machine.

Each device has a file in a common folder, and the process that holds the lock on it has the device. The kernel releases
a lock with the last process that holds the file open, so that no claim outlives its holder. The files themselves stay:
if one were removed, two processes could hold a lock of its name.

On a host where no files are to be left, and where other users have workers, too, a claim is the name of a Unix socket
in the abstract namespace, which all users of the machine share; the kernel releases it in the same way.
"""

import errno
import fcntl
import os
import socket

CORE = "core-"  # begins the name of a core, as GPUs have names of their own


class Claim:
    """A claim on some devices, held until ``close`` is called here and in all forked children."""

    def __init__(self) -> None:
        self.devices: "list[str]" = []
        self._files: "list[int]" = []

    def add(self, folder: "str | None", device: str) -> bool:
        """Try to claim one more device; return False if it is taken. Raises OSError without a usable folder."""
        if folder is None:
            return self._add_name(device)
        file = os.open(os.path.join(folder, device), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self.devices.append(device)
        self._files.append(file)
        return True

    def _add_name(self, device: str) -> bool:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            name.bind("\0muster-claim-{}".format(device))
        except OSError as error:
            name.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        self.devices.append(device)
        self._files.append(name.detach())
        return True

    def close(self) -> None:
        """Release everything."""
        for file in self._files:
            os.close(file)
        self._files = []
        self.devices = []


def claim(folder: "str | None", devices: "list[str]", count: int) -> "Claim | None":
    """Claim ``count`` of ``devices``; return None, and claim nothing, where fewer are free.

    Args:
        folder: the folder with the files of one user's claims; None for claims among all users of the machine.

    Raises:
        OSError: the folder cannot be used.
    """
    taken = Claim()
    if count and folder is not None:
        os.makedirs(folder, 0o700, exist_ok=True)
    for device in devices:
        if len(taken.devices) == count:
            break
        taken.add(folder, device)
    if len(taken.devices) < count:
        taken.close()
        return None
    return taken


def claim_cores(folder: "str | None", cores: "list[int]", wanted: "list[float]") -> "list[Claim]":
    """Claim whole cores for each of several workers; return empty claims for all unless every worker gets its cores.

    If only some of them were pinned, the others would be left with the remaining cores.
    """
    names = ["{}{}".format(CORE, core) for core in cores]
    claims: "list[Claim]" = []
    for count in wanted:
        taken = claim(folder, names, int(count)) if count == int(count) else None
        if taken is None:
            for other in claims:
                other.close()
            return [Claim() for _ in wanted]
        claims.append(taken)
    return claims


def core_numbers(claim: Claim) -> "list[int]":
    """Return the numbers of the cores in a claim."""
    return [int(name[len(CORE) :]) for name in claim.devices]
