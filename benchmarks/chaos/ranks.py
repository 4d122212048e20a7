"""The script of the ranks: in each step a rank sends its neighbours a block and receives one from each.

    ranks.py ORDERS

ORDERS is JSON: ``folder`` (where the ranks meet), ``topology`` (``ring``, ``all``, ``servers``,
``allreduce`` by Horovod, ``coordinator`` of TensorFlow's own servers), ``steps``, ``pause`` (seconds of
sleep in each), ``reaction`` (how a rank reacts to the loss of a neighbour), ``faults`` (by rank: ``kind`` and
``step``), ``relayed`` (pairs of ranks, the first of which connects to the second through a relay),
``has_addresses`` (whether a rank listens at the address of its machine's name, not at one of loopback),
``awaits`` (whether there are faults from outside, after which the harness makes ``all-struck``).
A rank that is about to fail makes ``struck-RANK``, whose time says when; one that has met the others, ``ready-RANK``.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any

Peers = tuple[list[socket.socket], list[socket.socket]]

BLOCK = b"g" * 4096
PATIENCE = 60.0  # seconds
MORE_STEPS = 20  # after the last fault from outside


def main(orders: dict[str, Any]) -> None:
    """Take all steps of one rank, and cause its fault when its step has come."""
    rank, size = rank_and_size()
    fault = orders["faults"].get(str(rank), {})
    strike_at(orders, rank, fault, "start")
    if orders["topology"] in OTHERS:
        OTHERS[orders["topology"]](orders, rank, fault)
        return
    peers = meet(orders, rank, size)
    note(orders, "ready", rank)
    is_server = orders["topology"] == "servers" and rank == 0
    for step in range(orders["steps"]):
        strike_at(orders, rank, fault, step)
        step_with(peers, orders["reaction"], is_server)
        time.sleep(orders["pause"])
    if wait_for_strikes(orders):
        for _ in range(MORE_STEPS):
            step_with(peers, orders["reaction"], is_server)
    strike_at(orders, rank, fault, "end")
    if orders["topology"] == "servers":
        step_with(peers, orders["reaction"], is_server)
    part(peers)
    if is_server:  # parameter servers run until they are ended
        time.sleep(PATIENCE)


def rank_and_size() -> tuple[int, int]:
    """Return this process's rank or number, and the number of processes."""
    for number, size in (("HOROVOD_RANK", "HOROVOD_SIZE"), ("CHAOS_NUMBER", "CHAOS_SIZE")):
        if number in os.environ:
            return int(os.environ[number]), int(os.environ[size])
    return int(os.environ.get("MUSTER_RANK", 0)), int(os.environ.get("MUSTER_WORLD_SIZE", 1))


def step_with(peers: Peers, reaction: str, is_server: bool) -> None:
    """Exchange blocks with all neighbours, and react to the loss of one."""
    try:
        exchange(peers, reaction, is_server)
    except ConnectionError as error:
        react(reaction, error)


def reduce_all(orders: dict[str, Any], rank: int, fault: dict[str, Any]) -> None:
    """Do as ``main`` does, with Horovod's collectives, which fail by themselves when a rank is gone."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    note(orders, "ready", rank)
    for step in range(orders["steps"]):
        strike_at(orders, rank, fault, step)
        hvd.allreduce(tf.ones(100))
        time.sleep(orders["pause"])
    if wait_for_strikes(orders):
        hvd.allreduce(tf.ones(100))
    strike_at(orders, rank, fault, "end")


def coordinate(orders: dict[str, Any], rank: int, fault: dict[str, Any]) -> None:
    """Do as ``main`` does, as the coordinator of TensorFlow's parameter servers."""
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def add() -> None:
        total.assign_add(1.0)

    note(orders, "ready", rank)
    for step in range(orders["steps"]):
        strike_at(orders, rank, fault, step)
        coordinator.schedule(add)
        coordinator.join()
        time.sleep(orders["pause"])
    if wait_for_strikes(orders):
        coordinator.schedule(add)
        coordinator.join()
    strike_at(orders, rank, fault, "end")


OTHERS = {"allreduce": reduce_all, "coordinator": coordinate}


def meet(orders: dict[str, Any], rank: int, size: int) -> Peers:
    """Connect to all neighbours; return the connections to those that this rank sends to, and from its senders."""
    if orders["topology"] == "ring":
        targets, sources = [(rank + 1) % size], [(rank - 1) % size]
    elif orders["topology"] == "servers":
        targets = sources = [*range(1, size)] if rank == 0 else [0]
    else:
        targets = sources = [other for other in range(size) if other != rank]
    own = socket.gethostbyname(socket.gethostname()) if orders.get("has_addresses") else address_of_rank(rank)
    listener = socket.create_server((own, 0))
    listener.settimeout(PATIENCE)
    path = os.path.join(orders["folder"], f"address-{rank}")
    with open(path + ".part", "w") as file:
        file.write("{} {}".format(*listener.getsockname()))
    os.rename(path + ".part", path)
    outgoing = [
        socket.create_connection(address_of(orders, rank, target), source_address=(own, 0)) for target in targets
    ]
    incoming = [listener.accept()[0] for _ in sources]
    listener.close()
    for connection in incoming + outgoing:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return outgoing, incoming


def address_of(orders: dict[str, Any], rank: int, target: int) -> tuple[str, int]:
    """Wait for the address of another rank, or of the relay between it and this one, and return it."""
    relayed = os.path.join(orders["folder"], f"relay-{rank}-{target}")
    wanted = relayed if [rank, target] in orders.get("relayed", ()) else None
    path = wanted or os.path.join(orders["folder"], f"address-{target}")
    deadline = time.monotonic() + PATIENCE
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {target} was never there")
        time.sleep(0.002)
    with open(path) as file:
        host, port = file.read().split()
    return host, int(port)


def address_of_rank(rank: int) -> str:
    """Return a rank's own address on loopback, by which the link between two ranks can be cut."""
    return f"127.0.100.{rank + 1}"


def exchange(peers: Peers, reaction: str, is_server: bool) -> None:
    """Send a block to each neighbour, and receive one from each; a server receives before it sends."""
    outgoing, incoming = peers
    if is_server:
        take(incoming, reaction)
    for connection in outgoing:
        connection.sendall(BLOCK)
    if not is_server:
        take(incoming, reaction)


def take(incoming: list[socket.socket], reaction: str) -> None:
    """Receive a block from each neighbour; with the reaction ``short``, unpack even one that is cut short."""
    for connection in incoming:
        missing = len(BLOCK)
        while missing:
            data = connection.recv(missing)
            if not data and reaction == "short":
                struct.unpack("!Q", data)
            if not data:
                raise ConnectionResetError(104, "Connection reset by peer")
            missing -= len(data)


def part(peers: Peers) -> None:
    """Close the connections, once the neighbours have received everything and have closed theirs."""
    outgoing, incoming = peers
    for connection in outgoing:
        connection.shutdown(socket.SHUT_WR)
    for connection in incoming:
        while connection.recv(4096):
            pass


def react(reaction: str, error: Exception) -> None:
    """React to the loss of a neighbour in one of the ways of scripts, frameworks and C libraries."""
    if reaction in ("raise", "short"):
        raise error
    if reaction == "eof":
        raise EOFError("the neighbour has gone") from error
    if reaction == "wrapped":
        raise RuntimeError("the gradients could not be exchanged") from error
    if reaction == "framework":
        raise RuntimeError("[pair.cc:598] Connection closed by peer [127.0.0.1]:4711") from None
    if reaction == "truncated":
        struct.unpack("!Q", b"")
    if reaction == "abort":
        os.abort()
    if reaction == "exit":
        sys.stderr.write("lost a neighbour\n")
        sys.stderr.flush()
        os._exit(1)
    signal.signal(int(reaction), signal.SIG_DFL)  # as in programs that are not Python
    os.kill(os.getpid(), int(reaction))


def strike_at(orders: dict[str, Any], rank: int, fault: dict[str, Any], now: int | str) -> None:
    """Cause this rank's fault, if ``now`` is its step."""
    if fault.get("step") == now:
        note(orders, "struck", rank)
        strike(fault["kind"])


def wait_for_strikes(orders: dict[str, Any]) -> bool:
    """Wait for faults from outside, which may come late on a busy machine; return whether there are any."""
    path, deadline = os.path.join(orders["folder"], "all-struck"), time.monotonic() + PATIENCE
    while orders["awaits"] and not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(orders["awaits"])


def note(orders: dict[str, Any], what: str, rank: int) -> None:
    """Make a file whose time says when something happened, by the kernel's clock, whatever clock the process sees."""
    with open(os.path.join(orders["folder"], f"{what}-{rank}"), "w"):
        pass


def strike(kind: str) -> None:
    """Cause a fault of this kind."""
    what, _, which = kind.partition(" ")
    if what == "raise":
        raise_it(which)
    elif what == "_exit":
        os._exit(int(which))
    elif what == "exit":
        sys.exit(int(which) if which.isdecimal() else which)
    elif what == "exit-from-c":
        ctypes.CDLL(None).exit(int(which))
    elif what == "exit-in-thread":
        threading.Thread(target=ctypes.CDLL(None)._exit, args=(int(which),)).start()
        time.sleep(60)
    elif what == "crash":
        ctypes.string_at(0)
    elif what == "abort":
        os.abort()
    elif what == "signal":
        os.kill(os.getpid(), int(which))
        time.sleep(60)
    elif what == "hang":
        while True:
            time.sleep(0.05)
    elif what == "memory":
        hoard = []
        while True:
            hoard.append(bytearray(b"x") * (16 << 20))
            time.sleep(0.002)
    elif what == "disk":
        with open("/dev/full", "wb") as file:
            file.write(BLOCK)
    else:
        raise AssertionError(kind)


def raise_it(name: str) -> None:
    """Raise an exception as a script would."""
    if name == "KeyError":
        nothing: dict[str, float] = {}
        print(nothing["learning_rate"])
    elif name == "ZeroDivisionError":
        print(1 // 0)
    elif name == "FileNotFoundError":
        os.stat("no/such/file")
    elif name == "UnicodeDecodeError":
        b"\xff".decode()
    elif name == "RecursionError":
        raise_it(name)
    elif name == "Custom":
        raise type("DivergedError", (Exception,), {})("the loss is not finite")
    elif name == "ConnectionRefusedError":  # as by a database of the script's, not by another rank
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            address = nobody.getsockname()
        socket.create_connection(address)
    else:
        raise getattr(builtins, name)("bad luck")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
