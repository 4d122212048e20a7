"""The nodes and limits of Slurm's partitions, and checks that workers could run there."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.errors import JobError, ResourceError
from muster.job import Resources
from muster.platforms.slurm.commands import Commands
from muster.platforms.slurm.script import AGENT_MEMORY, MEBIBYTE, nodes_of, parts_of
from muster.platforms.slurm.words import minutes_of
from muster.text.arguments import Argument, ArgumentText

OUT_OF_SERVICE = ("down", "drain", "fail", "maint", "reboot", "reserved", "unknown")  # beginnings of sinfo's words


@dataclass(frozen=True)
class Node:
    """A node of a partition; its memory in MiB, which is 1 where the site has not configured it."""

    name: str
    address: str
    cpus: int
    memory: int
    gpus: int
    state: str

    @property
    def is_out_of_service(self) -> bool:
        """True if it takes no jobs for now, as it is drained, for example."""
        return self.state.startswith(OUT_OF_SERVICE)


@dataclass(frozen=True)
class Partition:
    """A partition, with its nodes.

    Attributes:
        minutes: time limit of its jobs; None for no limit.
    """

    name: str
    is_default: bool
    minutes: float | None
    nodes: tuple[Node, ...]


def partitions(commands: Commands) -> dict[str, Partition]:
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
    """Return the partitions with these names, separated by commas, or the default one without names.

    Raises:
        JobError: there is no partition of one of these names.
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


def check_fits(
    partitions: list[Partition], wanted: Sequence[tuple[str, Resources]], time: str | None, spread: str | None = None
) -> None:
    """Raise an error, with the number that does not fit, unless these partitions could run the workers.

    Args:
        partitions: the partitions.
        wanted: the name, or words for it, and the resources of each worker, in launch order.
        time: their time limit, as the user gave it.
        spread: the number of nodes, as the user gave it.

    Raises:
        ResourceError: the workers are too large, or too many.
        JobError: the time limit is too long.
    """
    nodes = {node.name: node for partition in partitions for node in partition.nodes}.values()
    names = ", ".join(partition.name for partition in partitions)
    there = _amounts([*nodes])
    for name, resources in wanted:
        asked = _asked(resources)
        for what, amounts in there.items():
            if asked[what] > max(amounts, default=0):
                raise ResourceError(
                    f"{name} asks for {asked[what]} {what}; the largest node that this platform has ({names}) has "
                    f"{max(amounts, default=0)}.",
                    worker=name if name.rpartition("-")[2].isdecimal() else None,
                    advice=ArgumentText("smaller workers, or another ", Argument("partition", "")),
                )
    all_wanted = [resources for _, resources in wanted]
    _check_sums(all_wanted, there, names)
    _check_parts(all_wanted, [*nodes], names, spread)
    asked_minutes = minutes_of(time) if time else None
    allowed = [partition.minutes for partition in partitions]
    if asked_minutes and None not in allowed:
        longest = max(minutes for minutes in allowed if minutes is not None)
        if asked_minutes > longest:
            raise JobError(
                f"time is {time}, {asked_minutes:g} minutes; {names} allows {longest:g}.",
                advice=ArgumentText("a shorter ", Argument("time", ""), ", or another partition"),
            )


def _asked(each: Resources) -> dict[str, int]:
    """Return what Slurm counts for a worker, by kind."""
    memory = each.memory_bytes / MEBIBYTE + AGENT_MEMORY
    return {"cores": max(math.ceil(each.cpu), 1), "GPUs": each.gpu, "MiB of memory": math.ceil(memory)}


def _amounts(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Return what the nodes have, by kind; memory only where the site has configured it for all of them."""
    found = {"cores": [node.cpus for node in nodes], "GPUs": [node.gpus for node in nodes]}
    memory = [node.memory for node in nodes]
    return {**found, "MiB of memory": memory} if all(amount > 1 for amount in memory) else found


def _check_sums(wanted: Sequence[Resources], there: Mapping[str, Sequence[int]], names: str) -> None:
    """Raise ResourceError if workers ask for more together than all nodes have."""
    for what, amounts in there.items():
        together = sum(_asked(resources)[what] for resources in wanted)
        if together > sum(amounts):
            raise ResourceError(
                f"{len(wanted)} workers ask for {together} {what} together; all nodes that this platform has ({names}) "
                f"have {sum(amounts)}.",
                advice=ArgumentText("fewer or smaller workers, or another ", Argument("partition", "")),
            )


def _check_parts(wanted: list[Resources], nodes: list[Node], names: str, spread: str | None) -> None:
    """Raise ResourceError if there are too few nodes for workers of several sizes: each size takes other nodes."""
    parts = parts_of(wanted)
    if len(parts) < 2:
        return
    needed = [max(least_nodes(count, each, nodes), _said(count, spread)) for count, each in parts]
    if sum(needed) > len(nodes):
        raise ResourceError(
            f"Workers of {len(parts)} sizes ask for {' + '.join(map(str, needed))} nodes, as Slurm takes other nodes "
            f"for each size; this platform ({names}) has {len(nodes)}.",
            advice=ArgumentText(
                "the same resources for parameter servers as for workers, or another ", Argument("partition")
            ),
        )


def _said(count: int, spread: str | None) -> int:
    least = nodes_of(count, spread or "1").partition("-")[0]
    return int(least) if least.isdecimal() else 1


def least_nodes(count: int, each: Resources, nodes: list[Node]) -> int:
    """Return the least number of nodes that this number of workers needs, on the largest nodes."""
    memory = each.memory_bytes / MEBIBYTE + AGENT_MEMORY
    most = 1
    for node in nodes:
        fit = [node.cpus // max(math.ceil(each.cpu), 1)]
        fit += [int(node.memory // memory)] if node.memory > 1 else []
        fit += [node.gpus // each.gpu] if each.gpu else []
        most = max(most, min(fit))
    return math.ceil(count / most)
