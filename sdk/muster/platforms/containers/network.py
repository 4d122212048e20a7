"""The network of a platform's containers, and the address at which they reach the session."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from muster.errors import PlatformUnsupported
from muster.platforms.containers.engine import Engine
from muster.platforms.containers.refusals import asking
from muster.text.arguments import Argument, ArgumentText

POOL = ipaddress.ip_network("10.0.0.0/8")
PREFIX = 24  # bits, for about 250 containers
TRIES = 100
NO_NETWORK = "none"  # for Docker a network's name, for Podman a word of its own


@dataclass(frozen=True)
class Network:
    """A network that containers are attached to.

    Attributes:
        name: its name in the engine.
        subnet, gateway: its addresses; of a network that the user has named, the subnet is empty.
        is_own: whether it is made for these workers, and removed with them.
        is_closed: whether the engine lets no packets from other networks of its own into it.
    """

    name: str
    subnet: str
    gateway: str
    is_own: bool
    is_closed: bool = False


def plan_network(engine: Engine, asked: str | None, owner: str) -> Network:
    """Return the description of the workers' network, without making it.

    Args:
        engine: the engine.
        asked: name of an existing network; None for a new one, or for the one of the session's own container.
        owner: suffix of the name of a new one.

    Raises:
        PlatformError: there is no network of that name.
        PlatformUnsupported: no network has such a name, it connects containers with nobody, or there is no room for a
            new one.
    """
    if asked and ("/" in asked or asked in (".", "..")):  # it would be another path of the engine's interface
        raise PlatformUnsupported(
            f"{asked!r} is no name that a network can have.",
            advice=ArgumentText(Argument("network", ""), " one that docker network ls lists, or leave it out"),
        )
    asked = asked or next(iter(_of_session(engine)), None)
    if asked == NO_NETWORK:
        raise PlatformUnsupported(
            "The containers would have no network at all: their agents could not reach this session.",
            advice=ArgumentText("leave ", Argument("network"), " out, and the run gets one of its own"),
        )
    if asked:
        with asking(engine, f"The network {asked!r} cannot be used"):
            described = engine.client.inspect_network(asked)
        configs = (described.get("IPAM") or {}).get("Config") or [{}]
        gateway = str(configs[0].get("Gateway") or "").partition("/")[0]
        is_closed = engine.product == "Docker" and described.get("Driver") == "bridge"
        return Network(described["Name"], "", gateway, False, is_closed)
    with asking(engine, "The networks could not be listed"):
        networks = engine.client.networks()
    configs = [config for network in networks for config in (network.get("IPAM") or {}).get("Config") or []]
    subnet = free_subnet([*(str(config.get("Subnet", "")) for config in configs), *_routes()])
    return Network(f"muster-{owner}", str(subnet), str(subnet.network_address + 1), True)


def make_network(engine: Engine, network: Network, labels: dict[str, str]) -> None:
    """Make a network that ``plan_network`` has described. Raises PlatformError."""
    from docker.types import IPAMConfig, IPAMPool

    ipam = IPAMConfig(pool_configs=[IPAMPool(subnet=network.subnet, gateway=network.gateway)])
    # Podman takes the first name that is free, makes the bridge later, and gives one that is there then no address:
    # where another Podman had the same name in mind, containers would not reach the session.
    options = {"com.docker.network.bridge.name": f"muster-{secrets.token_hex(4)}"}
    with asking(engine, "The network of the workers could not be made"):
        engine.client.create_network(network.name, driver="bridge", ipam=ipam, labels=labels, options=options)


def free_subnet(taken: Iterable[str]) -> ipaddress.IPv4Network:
    """Return a random private subnet that overlaps with none of ``taken``. Raises PlatformUnsupported."""
    networks = [ipaddress.ip_network(text, strict=False) for text in taken if ":" not in text and text]
    wide = [network for network in networks if network.version == 4 and network.prefixlen]
    for _ in range(TRIES):
        start = int(POOL.network_address) + (secrets.randbelow(1 << (PREFIX - POOL.prefixlen)) << (32 - PREFIX))
        subnet = ipaddress.ip_network((start, PREFIX))
        if isinstance(subnet, ipaddress.IPv4Network) and not any(subnet.overlaps(other) for other in wide):
            return subnet
    raise PlatformUnsupported(
        "No private subnet is free for the workers.", advice=ArgumentText(Argument("network", ""), " one that is there")
    )


def _routes() -> list[str]:
    """Return the networks that this machine has routes to."""
    try:
        rows = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    except OSError:
        return []
    return [f"{_address(row[1])}/{bin(int(row[7], 16)).count('1')}" for row in rows if len(row) > 7]


def _address(hexadecimal: str) -> str:
    return socket.inet_ntoa(int(hexadecimal, 16).to_bytes(4, "little"))


def session_address(engine: Engine, network: Network) -> str:
    """Return the address at which containers of a network reach the session.

    It is the gateway's where the engine runs on this machine as root.

    Raises:
        PlatformUnsupported: they do not reach it, or its address is not known.
    """
    of_session = _of_session(engine)
    if network.name in of_session:
        return of_session[network.name]
    if of_session and network.is_closed:
        raise PlatformUnsupported(
            f"Containers in the network {network.name!r} do not reach this session, which is in a container in "
            f"{', '.join(map(repr, of_session))}: Docker lets no packets pass from one network to another.",
            advice=ArgumentText(
                "leave ",
                Argument("network"),
                " out, for the session's own, or ",
                Argument("session_address", "host:port"),
            ),
        )
    if engine.is_here and not engine.is_rootless and network.gateway:
        return network.gateway
    remote = "" if engine.url.startswith("unix") else urlsplit(engine.url).hostname
    address = own_address(remote or "192.0.2.1")
    if address.startswith("127."):
        raise PlatformUnsupported(
            f"The address at which containers of {engine} reach this session is not known.",
            advice=ArgumentText(Argument("session_address", "host:port")),
        )
    return address


def _of_session(engine: Engine) -> Mapping[str, str]:
    """Return the session's address on each network of its container, by name; empty where it is in none."""
    return engine.around.addresses if engine.around else {}


def own_address(other: str) -> str:
    """Return the address that this machine shows to ``other``; a loopback address where it has no route there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))  # sends nothing; the kernel only chooses a route
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
