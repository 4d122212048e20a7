"""Cores and GPUs that are taken by one worker only, among all clusters of a user on this machine.

Each has a file in a common folder, and whoever holds the lock on it has the device. The kernel releases a lock with
the last process that holds the file open, so nothing can stay claimed by the dead. The files themselves stay: removing
one would let two hold "the same" lock.

On a host where no files are to be left, and where others have workers, too, the name of a device is a Unix socket's in
the abstract namespace, which belongs to all users of the machine; the kernel releases it in the same way.
"""

import errno
import fcntl
import os
import socket

CORE = "core-"  # begins the name of a core, as GPUs have names of their own


class Claim:
    """Some devices, held until ``close``, and in forked children until theirs."""

    def __init__(self) -> None:
        self.devices: "list[str]" = []
        self._files: "list[int]" = []

    def add(self, folder: "str | None", device: str) -> bool:
        """Try to take one more device. Returns whether nobody else has it. Raises OSError without a usable folder."""
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
    """Take ``count`` of ``devices``; None, and nothing taken, where fewer are free.

    Args:
        folder: has the files of one user's claims; None for claims among all users of the machine.

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
    """Cores of its own for each of several workers; empty claims where they do not get whole ones, every one of them.

    Pinning only some of them would leave the others what is left.
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
    """The numbers of the cores in a claim."""
    return [int(name[len(CORE) :]) for name in claim.devices]
