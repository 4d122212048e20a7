"""Claims of workers on cores, GPUs and memory, among all users of this machine; those on cores and GPUs are exclusive.

A claim is the name of a Unix socket in the abstract namespace, which all processes of the machine share, whoever's they
are, except for those in containers with a network of their own. It leaves no file, and the kernel releases it with the
last process that holds the socket, so that no claim outlives its holder.
"""

import contextlib
import errno
import os
import re
import socket

CORE = "core-"  # begins the name of a core, as GPUs have names of their own
MEMORY = "memory-"  # begins the name of some memory, of which the bytes follow, and what makes the name unique
CLAIMED_MEMORY = re.compile(r" @muster-claim-memory-(\d{1,15})-[0-9a-f]+$", re.MULTILINE)  # in /proc/net/unix


class Claim:
    """A claim on some devices, held until ``close`` is called here and in all forked children."""

    def __init__(self) -> None:
        self.devices: "list[str]" = []
        self._names: "list[int]" = []

    def add(self, device: str) -> bool:
        """Try to claim one more device; return False if it is taken. Raises OSError."""
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            name.bind("\0muster-claim-{}".format(device))
        except OSError as error:
            name.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        self.devices.append(device)
        self._names.append(name.detach())
        return True

    def close(self) -> None:
        """Release everything."""
        for name in self._names:
            os.close(name)
        self._names = []
        self.devices = []


def claim(devices: "list[str]", count: int) -> "Claim | None":
    """Claim ``count`` of ``devices``; return None, and claim nothing, where fewer are free. Raises OSError."""
    taken = Claim()
    try:
        for device in devices:
            if len(taken.devices) == count:
                break
            taken.add(device)
    except OSError:
        taken.close()
        raise
    if len(taken.devices) < count:
        taken.close()
        return None
    return taken


def claim_cores(cores: "list[int]", wanted: "list[float]") -> "list[Claim]":
    """Claim whole cores for each of several workers; return empty claims for all unless every worker gets its cores.

    If only some of them were pinned, the others would be left with the remaining cores. Raises OSError.
    """
    names = ["{}{}".format(CORE, core) for core in cores]
    claims: "list[Claim]" = []
    try:
        for count in wanted:
            taken = claim(names, int(count)) if count == int(count) else None
            if taken is None:
                break
            claims.append(taken)
    finally:
        if len(claims) < len(wanted):
            for other in claims:
                other.close()
    return claims if len(claims) == len(wanted) else [Claim() for _ in wanted]


def core_numbers(claim: Claim) -> "list[int]":
    """Return the numbers of the cores in a claim."""
    return [int(name[len(CORE) :]) for name in claim.devices]


def claim_memory(amount: int) -> Claim:
    """Claim bytes of memory. There may be claims on more than there is, unlike on devices. Raises OSError."""
    taken = Claim()
    taken.add("{}{}-{}".format(MEMORY, amount, os.urandom(8).hex()))
    return taken


def claimed_memory() -> int:
    """Return the bytes of memory that are claimed by all workers on this machine; 0 where that cannot be seen."""
    with contextlib.suppress(OSError), open("/proc/net/unix", errors="replace") as file:
        return sum(map(int, CLAIMED_MEMORY.findall(file.read())))
    return 0
