"""Loopback addresses for workers, and free TCP ports that stay free until a worker's own process takes them.

A held port is a wildcard socket that is bound with ``SO_REUSEADDR`` and never listens. TensorFlow and gRPC, which set
the same option, can still bind to it and listen, while programs that look for a free port get another one.
"""

import os
import socket


def random_loopback_address() -> str:
    """Return a random address of the loopback interface, outside of 127.0.0.0/16, which other programs use."""
    second, third, fourth = os.urandom(3)
    return "127.{}.{}.{}".format(1 + second % 254, third, 1 + fourth % 254)


def free_port(address: str) -> int:
    """Return a TCP port that is free at this address; another program may take it at any time."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class PortHold:
    """A held port, which stays held until ``close``."""

    def __init__(self, number: int, holder: socket.socket, claim: socket.socket) -> None:
        self.number = number
        self._sockets = (holder, claim)

    def close(self) -> None:
        """Release the port."""
        for held in self._sockets:
            held.close()


def hold_ports(count: int, port_range: "tuple[int, int] | None" = None) -> "list[PortHold]":
    """Find ``count`` free ports, within ``port_range`` (first and last) where it is given, and hold them.

    Raises:
        OSError: there are too few.
    """
    held: "list[PortHold]" = []
    for number in _candidates(count, port_range):
        if len(held) == count:
            break
        hold = _hold(number)
        if hold:
            held.append(hold)
    if len(held) < count:
        for hold in held:
            hold.close()
        where = " between {} and {}".format(*port_range) if port_range else ""
        raise OSError("found only {} of {} free ports{}".format(len(held), count, where))
    return held


def _candidates(count: int, port_range: "tuple[int, int] | None") -> "list[int]":
    if port_range is None:
        return [0] * (count + 100)  # 0: the kernel chooses
    import random  # only here, as few agents need it

    numbers = list(range(port_range[0], port_range[1] + 1))
    random.shuffle(numbers)  # so that clusters that start together rarely try the same port
    return numbers


def _hold(number: int) -> "PortHold | None":
    holder = _wildcard_socket()
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", number))
        number = holder.getsockname()[1]
        # SO_REUSEADDR would let two holders share a port. A name in the abstract namespace has only one owner, exists
        # once per network namespace, as ports do, and is released when its process ends.
        claim.bind("\0muster-port-{}".format(number))
    except OSError:
        holder.close()
        claim.close()
        return None
    return PortHold(number, holder, claim)


def _wildcard_socket() -> socket.socket:
    try:
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return both
    except OSError:  # a system without IPv6
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
