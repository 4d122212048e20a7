"""The nodes and limits of Slurm's partitions, and checks that workers could run there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.errors import JobError, ResourceError
from muster.job import Resources
from muster.platforms.slurm.commands import Commands
from muster.platforms.slurm.script import MEBIBYTE, cores_of, memory_per_core, parts_of
from muster.platforms.slurm.words import minutes_of
from muster.text.arguments import Argument, ArgumentText

MEMORY = "GB of memory"
LIMITS = ("State", "MaxNodes", "MaxMemPerNode", "MaxMemPerCPU", "MaxCPUsPerNode", "AllowAccounts", "AllowQos", "QoS")
NO_LIMIT = ("UNLIMITED", "ALL", "N/A", "UP")  # in these fields
MOST_OUT = 5  # nodes that are out of service which are named
OUT_OF_SERVICE = ("down", "drain", "fail", "maint", "reboot", "reserved", "unknown")  # beginnings of sinfo's words


@dataclass(frozen=True)
class Node:
    """A node of a partition; its memory in MiB, which is 1 where the site has not configured it.

    Attributes:
        features: what it has, by which ``constraint`` chooses nodes.
    """

    name: str
    address: str
    cpus: int
    memory: int
    gpus: int
    state: str
    features: frozenset[str] = frozenset()

    @property
    def is_out_of_service(self) -> bool:
        """True if it takes no jobs for now, as it is drained, for example."""
        return self.state.startswith(OUT_OF_SERVICE)


@dataclass(frozen=True)
class Partition:
    """A partition, with its nodes.

    Attributes:
        minutes: time limit of its jobs; None for no limit.
        has_whole_nodes: whether each of its jobs has its nodes for itself.
        said: what ``scontrol show partition`` says of it, by field.
    """

    name: str
    is_default: bool
    minutes: float | None
    nodes: tuple[Node, ...]
    has_whole_nodes: bool = False
    said: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """The way in which Slurm gives out nodes, as its configuration has it.

    Attributes:
        has_whole_nodes: whether each job has its nodes for itself.
        has_gpus_per_task: whether Slurm gives each task its own GPUs, rather than a job a number of them on each node.
        counts_memory: whether the memory of a node that some jobs have asked for is not there for others.
    """

    has_whole_nodes: bool = False
    has_gpus_per_task: bool = True
    counts_memory: bool = True


USUAL = Selection()


def selection_of(configuration: str) -> Selection:
    """Return how Slurm gives out nodes, from what ``scontrol show config`` prints.

    >>> selection_of("SelectType = select/linear\\nSelectTypeParameters = CR_MEMORY\\n")
    Selection(has_whole_nodes=True, has_gpus_per_task=False, counts_memory=True)
    """
    said = dict(re.findall(r"^(SelectType\w*)\s*=\s*(\S+)", configuration, re.MULTILINE))
    plugin = said.get("SelectType", "")
    return Selection(
        has_whole_nodes=plugin == "select/linear",
        # The other selections of nodes, of which Slurm has cons_res up to 23.02, know GPUs only as resources of a node.
        has_gpus_per_task=plugin not in ("select/linear", "select/cons_res"),
        counts_memory="MEMORY" in said.get("SelectTypeParameters", MEMORY).upper(),
    )


def selection_in(partitions: Sequence[Partition], selection: Selection) -> Selection:
    """Return how Slurm gives out nodes in partitions, which may have parameters of their own for that.

    Memory counts where all of them count it.
    """
    own = [partition.said.get("SelectTypeParameters", "NONE").upper() for partition in partitions]
    counts = [selection.counts_memory if said == "NONE" else "MEMORY" in said for said in own]
    return replace(selection, counts_memory=all(counts))


def partitions(commands: Commands) -> dict[str, Partition]:
    """Return the partitions that this user sees, with their nodes. Raises PlatformError."""
    command = ("sinfo", "-a", "-h", "-N", "-o", "%P|%l|%h|%N|%o|%c|%m|%T|%G|%f")
    out = commands.ask(*command, what="The nodes could not be listed")
    found: dict[str, Partition] = {}
    for line in out.splitlines():
        if line.count("|") < 8:
            continue
        word, limit, sharing, name, address, cpus, memory, state, gres, *features = line.split("|", 9)
        has = frozenset("".join(features).split(",")) - {"", "(null)"}
        node = Node(name, address, _whole(cpus), _whole(memory), gpus_of(gres), state, has)
        partition = word.rstrip("*")
        known = found.get(partition)
        nodes = (*known.nodes, node) if known else (node,)
        found[partition] = Partition(
            partition, word.endswith("*"), minutes_of(limit), nodes, has_whole_nodes=sharing == "EXCLUSIVE"
        )
    return found


def with_limits(found: Mapping[str, Partition], shown: str) -> dict[str, Partition]:
    """Return partitions with what ``scontrol -o show partition`` prints of them."""
    told = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in shown.splitlines()]
    by_name = {said["PartitionName"]: said for said in told if "PartitionName" in said}
    return {name: replace(partition, said=by_name.get(name, {})) for name, partition in found.items()}


def with_features(partitions: Sequence[Partition], constraint: str | None) -> list[Partition]:
    """Return partitions with those of their nodes that a constraint allows: ``a``, ``a&b`` or ``a|b``.

    All nodes stay where it says more than that, such as numbers of nodes, and where it allows none, which sbatch tells.
    """
    parts = re.split(r"([&|])", constraint or "")
    names, joined = parts[::2], set(parts[1::2])
    if not all(re.fullmatch(r"[\w.+:-]+", name) for name in names) or len(joined) > 1:
        return [*partitions]
    has = any if "|" in joined else all
    found = [
        replace(
            partition, nodes=tuple(node for node in partition.nodes if has(name in node.features for name in names))
        )
        for partition in partitions
    ]
    return found if nodes_in(found) else [*partitions]


def limits_in_words(partition: Partition) -> str:
    """Return, in words, what a partition has and what it allows.

    >>> limits_in_words(Partition("gpu", False, 240.0, (Node("n1", "", 64, 256000, 4, "drained"),)))
    'partition gpu: 1 node, the largest with 64 cores, 268.43 GB and 4 GPUs; a job may take 240 minutes; n1 is drained'
    """
    nodes, said = partition.nodes, partition.said
    memory = max((node.memory for node in nodes), default=0)
    gpus = max((node.gpus for node in nodes), default=0)
    largest = [
        f"{max((node.cpus for node in nodes), default=0)} cores",
        *([f"{_as_given(MEMORY, memory, math.floor)} GB"] if memory > 1 else []),
    ]
    largest += [f"{gpus} GPU{'s' if gpus > 1 else ''}"] if gpus else []
    many = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}, the largest with "
    parts = [f"{many}{' and '.join([', '.join(largest[:-1]), largest[-1]]) if largest[1:] else largest[0]}"]
    parts.append(
        "a job may take any time" if partition.minutes is None else f"a job may take {partition.minutes:g} minutes"
    )
    if (usual := minutes_of(said.get("DefaultTime", "NONE"))) is not None:
        parts.append(f"one without a time limit gets {usual:g}")
    parts += [f"Slurm says {name} {said[name]}" for name in LIMITS if said.get(name, "UNLIMITED") not in NO_LIMIT]
    out = [f"{node.name} is {node.state}" for node in nodes if node.is_out_of_service]
    parts += out[:MOST_OUT] + ([f"{len(out) - MOST_OUT} more are out of service"] if out[MOST_OUT:] else [])
    return f"partition {partition.name}: {'; '.join(parts)}"


def nodes_in(partitions: Sequence[Partition]) -> list[Node]:
    """Return the nodes of partitions, each once, as a node may be in several."""
    return [*{node.name: node for partition in partitions for node in partition.nodes}.values()]


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
    partitions: Sequence[Partition],
    wanted: Sequence[tuple[str, Resources]],
    time: str | None,
    spread: str | None = None,
    selection: Selection = USUAL,
    constraint: str | None = None,
) -> None:
    """Raise an error, with the number that does not fit, unless these partitions could run the workers.

    Args:
        partitions: the partitions.
        wanted: the name, or words for it, and the resources of each worker, in launch order.
        time: their time limit, as the user gave it.
        spread: the number of nodes, as the user gave it.
        selection: how Slurm gives out the nodes.
        constraint: the features that nodes must have, as the user gave them.

    Raises:
        ResourceError: the workers are too large, or too many.
        JobError: the time limit is too long.
    """
    nodes = nodes_in(with_features(partitions, constraint))
    names = ", ".join(partition.name for partition in partitions) + (f" with {constraint}" if constraint else "")
    there = _amounts_there(nodes)
    for name, resources in wanted:
        asked = _amounts_asked(resources)
        for what, amounts in there.items():
            if asked[what] > max(amounts, default=0):
                raise ResourceError(
                    f"{name} asks for {_as_given(what, asked[what], math.ceil)} {what}; the largest node that this "
                    f"platform has ({names}) has {_as_given(what, max(amounts, default=0), math.floor)}.",
                    worker=name if name.rpartition("-")[2].isdecimal() else None,
                    advice=ArgumentText("smaller workers, or another ", Argument("partition", "")),
                )
    all_wanted = [resources for _, resources in wanted]
    shared = {what: amounts for what, amounts in there.items() if selection.counts_memory or what != MEMORY}
    _check_sums(all_wanted, shared, names)
    least = [
        max(_least_nodes(count, each, nodes, selection), _numbers_of_nodes(count, spread)[0])
        for count, each in parts_of(all_wanted)
    ]
    _check_parts(least, len(nodes), names)
    asked_minutes = minutes_of(time) if time else None
    allowed = [partition.minutes for partition in partitions]
    if asked_minutes and None not in allowed:
        longest = max(minutes for minutes in allowed if minutes is not None)
        if asked_minutes > longest:
            raise JobError(
                f"time is {time}, {asked_minutes:g} minutes; {names} allows {longest:g}.",
                advice=ArgumentText("a shorter ", Argument("time", ""), ", or another partition"),
            )


def partition_for(
    count: int, each: Resources, partitions: Sequence[Partition], time: str | None, selection: Selection = USUAL
) -> str:
    """Return which of these partitions workers of this size go to, where a job can be sent to one only.

    It is the first that could run them; for workers without GPUs the first of those with the fewest on their nodes.
    """

    def could_run(partition: Partition) -> bool:
        try:
            check_fits([partition], [("", each)] * count, time, selection=selection_in([partition], selection))
        except (ResourceError, JobError):
            return False
        return True

    able = [partition for partition in partitions if could_run(partition)] or [*partitions]
    if each.gpu:
        return able[0].name
    return min(able, key=lambda partition: max((node.gpus for node in partition.nodes), default=0)).name


def _amounts_asked(each: Resources) -> dict[str, int]:
    """Return what Slurm counts for a worker, by kind; of memory the MiB, its agent's among them."""
    return {"cores": cores_of(each), "GPUs": each.gpu, MEMORY: cores_of(each) * memory_per_core(each)}


def _as_given(what: str, amount: int, rounded: Callable[[float], int]) -> str:
    """Return an amount as users give it: memory, of which Slurm counts the MiB, in GB.

    >>> _as_given(MEMORY, 8648, math.ceil), _as_given("cores", 4, math.ceil)
    ('9.07', '4')
    """
    return f"{rounded(amount * MEBIBYTE / 1e7) / 100:.10g}" if what == MEMORY else str(amount)


def _amounts_there(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Return what the nodes have, by kind; memory only where the site has configured it for all of them."""
    found = {"cores": [node.cpus for node in nodes], "GPUs": [node.gpus for node in nodes]}
    memory = [node.memory for node in nodes]
    return {**found, MEMORY: memory} if all(amount > 1 for amount in memory) else found


def _check_sums(wanted: Sequence[Resources], there: Mapping[str, Sequence[int]], names: str) -> None:
    """Raise ResourceError if workers ask for more together than all nodes have."""
    for what, amounts in there.items():
        together = sum(_amounts_asked(resources)[what] for resources in wanted)
        if together > sum(amounts):
            raise ResourceError(
                f"{len(wanted)} workers ask for {_as_given(what, together, math.ceil)} {what} together; all nodes that "
                f"this platform has ({names}) have {_as_given(what, sum(amounts), math.floor)}.",
                advice=ArgumentText("fewer or smaller workers, or another ", Argument("partition", "")),
            )


def _check_parts(least: Sequence[int], there: int, names: str) -> None:
    """Raise ResourceError if there are too few nodes for workers of several sizes: each size takes other nodes."""
    if len(least) > 1 and sum(least) > there:
        raise ResourceError(
            f"Workers of {len(least)} sizes ask for {' + '.join(map(str, least))} nodes, as Slurm takes other nodes "
            f"for each size; this platform ({names}) has {there}.",
            advice=ArgumentText(
                "the same resources for parameter servers as for workers, or another ", Argument("partition")
            ),
        )


def _numbers_of_nodes(count: int, spread: str | None) -> tuple[int, int]:
    """Return the least and the largest number of nodes that this many workers may be on, as the user gave it.

    >>> _numbers_of_nodes(4, "2"), _numbers_of_nodes(4, "2-8"), _numbers_of_nodes(4, None)
    ((2, 2), (2, 4), (1, 4))
    """
    said = re.fullmatch(r"(\d+)(?:-(\d+))?", spread or f"1-{count}")
    least, most = (int(said[1]), int(said[2] or said[1])) if said else (1, count)
    return max(min(least, count), 1), max(min(most, count), 1)


def _held(node: Node, each: Resources, selection: Selection) -> int:
    """Return the number of workers of a size that a node holds."""
    asked = _amounts_asked(each)
    held = [node.cpus // asked["cores"]]
    if selection.counts_memory and node.memory > 1:
        held.append(node.memory // asked[MEMORY])
    if each.gpu:
        by_gpus = node.gpus // each.gpu
        held.append(by_gpus if selection.has_gpus_per_task else min(by_gpus, 1))
    return min(held)


def _least_nodes(count: int, each: Resources, nodes: Sequence[Node], selection: Selection) -> int:
    """Return the least number of nodes that this number of workers needs, on those that hold the most."""
    return math.ceil(count / max([1, *(_held(node, each, selection) for node in nodes)]))


def workers_per_node(
    count: int, each: Resources, nodes: Sequence[Node], selection: Selection, spread: str | None
) -> int | None:
    """Return how many workers a job asks for on each of its nodes, which no other job is on; None to have Slurm count.

    On such a node Slurm counts the memory that is asked for with each core for all of its cores, used or not, and
    takes no node that has less. So where that is too much for a node that holds workers, the job asks for a number of
    them on each node, and for their memory: for the number for which most nodes do, as all of them may not be as large.

    Args:
        count: the number of workers.
        each: their size.
        nodes: the nodes that they may be on.
        selection: how Slurm gives out the nodes.
        spread: the number of nodes, as the user gave it.
    """
    held = {node.name: _held(node, each, selection) for node in nodes}
    if all(node.cpus * memory_per_core(each) <= node.memory for node in nodes if held[node.name]):
        return None

    def worth(number: int) -> tuple[int, int, int]:
        able = sum(most >= number for most in held.values())
        return min(number * able, count), able, number

    least, most = _numbers_of_nodes(count, spread)
    best = max((min(number, count) for number in held.values() if number), key=worth)
    return min(max(best, math.ceil(count / most)), math.ceil(count / least))
