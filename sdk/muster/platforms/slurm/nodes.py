"""The nodes and limits of Slurm's partitions, and what could never run there."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from muster.errors import JobError, ResourceError
from muster.job import Resources
from muster.platforms.slurm import commands
from muster.platforms.slurm.script import AGENT_MEMORY, MEBIBYTE
from muster.platforms.slurm.words import minutes_of
from muster.text.arguments import Argument, ArgumentText


@dataclass(frozen=True)
class Node:
    """A node of a partition; memory in MiB, 1 where the site has not said."""

    name: str
    address: str
    cpus: int
    memory: int
    gpus: int
    state: str


@dataclass(frozen=True)
class Partition:
    """A partition, with its nodes.

    Attributes:
        minutes: the longest that a job may take; None for any time.
    """

    name: str
    is_default: bool
    minutes: float | None
    nodes: tuple[Node, ...]


def partitions() -> dict[str, Partition]:
    """Return the partitions that this user sees. Raises PlatformError."""
    out = commands.ask("sinfo", "-a", "-h", "-N", "-o", "%P|%l|%N|%o|%c|%m|%T|%G", what="The nodes could not be listed")
    found: dict[str, Partition] = {}
    for line in out.splitlines():
        if line.count("|") < 7:
            continue
        word, limit, name, address, cpus, memory, state, gres = line.split("|", 7)
        node = Node(name, address, _whole(cpus), _whole(memory), gpus_of(gres), state)
        partition = word.rstrip("*")
        known = found.get(partition)
        nodes = (*known.nodes, node) if known else (node,)
        found[partition] = Partition(partition, word.endswith("*"), minutes_of(limit), nodes)
    return found


def _whole(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def gpus_of(gres: str) -> int:
    """Return the number of GPUs among a node's generic resources.

    >>> gpus_of("gpu:a100:4(S:0-1),gpu:2,nic:1"), gpus_of("(null)")
    (6, 0)
    """
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres))


def chosen(found: Mapping[str, Partition], names: str | None) -> list[Partition]:
    """Return the partitions that are meant: those with these names, or the default one.

    Raises:
        JobError: there is no such partition.
    """
    if not names:
        return [partition for partition in found.values() if partition.is_default] or list(found.values())
    unknown = [name for name in names.split(",") if name not in found]
    if unknown:
        raise JobError(
            f"There is no partition {unknown[0]!r}.",
            advice=ArgumentText(Argument("partition", ""), f" one of {', '.join(sorted(found)) or 'none'}"),
        )
    return [found[name] for name in names.split(",")]


def check_fits(places: list[Partition], wanted: Mapping[str, Resources], time: str | None) -> None:
    """Refuse what could never run in any of these partitions, with the number that does not fit.

    Raises:
        ResourceError: workers that are too large, or too many.
        JobError: a time limit that is too long.
    """
    nodes = {node.name: node for place in places for node in place.nodes}.values()
    names = ", ".join(place.name for place in places)
    for name, resources in wanted.items():
        worker = name if name.rpartition("-")[2].isdecimal() else None
        memory = resources.memory_bytes / MEBIBYTE + AGENT_MEMORY
        most = {
            "cores": (resources.cpu, max((node.cpus for node in nodes), default=0)),
            "GPUs": (resources.gpu, max((node.gpus for node in nodes), default=0)),
        }
        if all(node.memory > 1 for node in nodes):
            most["MiB of memory"] = (math.ceil(memory), max((node.memory for node in nodes), default=0))
        for what, (asked, there) in most.items():
            if asked > there:
                raise ResourceError(
                    f"{name} asks for {asked:g} {what}; the largest node that this platform has ({names}) has {there}.",
                    worker=worker,
                )
    _check_sum([*wanted.values()], sum(node.cpus for node in nodes), names)
    asked_minutes = minutes_of(time) if time else None
    allowed = [place.minutes for place in places]
    if asked_minutes and None not in allowed:
        longest = max(minutes for minutes in allowed if minutes is not None)
        if asked_minutes > longest:
            raise JobError(
                f"time is {time}, {asked_minutes:g} minutes; {names} allows {longest:g}.",
                advice=ArgumentText("a shorter ", Argument("time", ""), ", or another partition"),
            )


def _check_sum(wanted: list[Resources], there: int, names: str) -> None:
    together = sum(max(math.ceil(resources.cpu), 1) for resources in wanted)
    if together > there:
        raise ResourceError(
            f"{len(wanted)} workers ask for {together} cores together; all nodes that this platform has ({names}) have "
            f"{there}."
        )
