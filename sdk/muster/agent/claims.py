"""Exclusive claims of workers on cores and GPUs, among all users of this machine.

A claim is the name of a Unix socket in the abstract namespace, which all processes of the machine share, whoever's they
are, except for those in containers with a network of their own. It leaves no file, and the kernel releases it with the
last process that holds the socket, so that no claim outlives its holder.
"""

import errno
import os
import socket

CORE = "core-"  # begins the name of a core, as GPUs have names of their own


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
