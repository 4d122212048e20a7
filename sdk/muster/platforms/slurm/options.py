"""The options of Slurm's jobs: those that the user gives, and those that the cluster makes necessary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from muster.job import Resources
from muster.platforms.slurm import script
from muster.platforms.slurm.nodes import (
    USUAL,
    Node,
    Partition,
    check_fits,
    chosen,
    nodes_in,
    partition_for,
    partitions,
    selection_in,
    selection_of,
    with_features,
    with_limits,
    workers_per_node,
)
from muster.platforms.slurm.site import Site

GIVEN = (  # options of sbatch that are options of the platform
    "partition", "account", "qos", "constraint", "gres", "reservation", "nodelist", "exclude", "nodes", "time"
)  # fmt: skip
NODES_SECONDS = 60.0  # for which the partitions and their limits are cached


class SlurmOptions:
    """The options of all jobs and steps of one platform object.

    Args:
        site: the machine that submits them.
        asked: sbatch's options by name, as the user gives them; None for one that is not given.
        raw: further options of sbatch, each in one word.
    """

    def __init__(self, site: Site, asked: Mapping[str, str | None], raw: Sequence[str]) -> None:
        self._site = site
        self._asked = asked
        self._raw = raw
        self._known_at = float("-inf")
        self._partitions: dict[str, Partition] = {}
        self._selection = USUAL
        self._variables: Mapping[str, str] = {}  # of the environment there

    def given(self, name: str) -> str | None:
        """Return an option as the user gives it, here or to sbatch by a variable of the environment there."""
        return self._asked[name] or self._variables.get(script.VARIABLES[name])

    def flags(self) -> dict[str, str]:
        """Return the options that the user gives here, as sbatch takes them. Raises JobError."""
        time_limit = self._asked["time"]
        named = {**self._asked, "time": script.time_of(time_limit) if time_limit else None}
        return {name: value for name, value in named.items() if value}

    def chosen_partitions(self) -> list[Partition]:
        """Return the partitions that the job may go to, as they were some seconds ago; within a job all.

        Raises:
            PlatformError: Slurm does not answer.
        """
        if time.monotonic() > self._known_at + NODES_SECONDS:
            what = "Slurm's configuration could not be read"
            shown = self._site.ask("scontrol", "-a", "-o", "show", "partition", what=what)
            self._partitions = with_limits(partitions(self._site), shown)
            self._selection = selection_of(self._site.ask("scontrol", "show", "config", what=what))
            self._variables = self._site.variables()
            self._known_at = time.monotonic()
        return chosen(self._partitions, None if self._site.allocation else self.given("partition"))

    def nodes_now(self) -> list[Node]:
        """Return the nodes of the partitions that jobs go to, in their present states."""
        there = chosen(partitions(self._site), self.given("partition"))
        return [node for partition in there for node in partition.nodes]

    def check_fits(self, wanted: Sequence[tuple[str, Resources]]) -> None:
        """Raise ResourceError or JobError for workers, with their names, that could never run."""
        there = self.chosen_partitions()
        selection = selection_in(there, self._selection)
        check_fits(there, wanted, self.given("time"), self._asked["nodes"], selection, self.given("constraint"))

    def of_workers(self, wanted: Sequence[Resources], queue_seconds: float | None = None) -> script.SiteOptions:
        """Return the options of a job for these workers, which may be queued for so many seconds.

        Raises:
            JobError, ResourceError: no job can be asked for as the user wants it.
            PlatformError: Slurm does not answer.
        """
        there = self.chosen_partitions()
        fitting = with_features(there, self.given("constraint"))
        selection = selection_in(there, self._selection)
        nodes = nodes_in(fitting)
        has_memory = all(node.memory > 1 for node in nodes)
        parts = script.parts_of(wanted)
        needs_numbers = has_memory and selection.counts_memory and self._has_whole_nodes(there)
        per_node = {
            each: number
            for count, each in (parts if needs_numbers else [])
            if (number := workers_per_node(count, each, nodes, selection, self._asked["nodes"])) is not None
        }
        own: dict[Resources, str] = {}
        if len(parts) > 1 and len(there) > 1 and self.given("partition"):
            limit = self.given("time")
            own = {each: partition_for(count, each, fitting, limit, self._selection) for count, each in parts}
        return script.SiteOptions(
            partitions=own,
            flags={
                **self.flags(),
                **({"partition": str(self.given("partition"))} if own else {}),
                **script.deadline_of(queue_seconds, self._asked["time"]),
            },
            raw=self._raw,
            has_memory=has_memory,
            has_gpus_per_task=selection.has_gpus_per_task,
            per_node=per_node,
        )

    def _has_whole_nodes(self, there: Sequence[Partition]) -> bool:
        """Return whether a job in these partitions has its nodes for itself."""
        by_site = self._selection.has_whole_nodes or any(partition.has_whole_nodes for partition in there)
        return by_site or script.asks_for_whole_nodes(self._raw, self._variables)
