"""The return value of ``run_cluster`` (ClusterAddress)."""

from __future__ import annotations

import difflib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from muster.records.result import Result
from muster.run.cluster import Cluster
from muster.text.shown import duration

if TYPE_CHECKING:
    from muster.records.runs import Run

OTHER_NAMES = {
    "stop": "cancel kill terminate shutdown abort end close",
    "run_dir": "folder path dir directory root",
    "run_id": "id",
    "seconds": "time duration elapsed runtime took",
    "status": "state",
}  # names in other tools, by Muster's name
RARE = {
    "ask_to_stop", "check", "count", "from_dict", "index", "interrupt", "of", "start", "subscribe", "to_dict",
    "what_became", "when_over",
}  # fmt: skip
OUTPUT = ("output", "outputs", "out", "stdout", "stderr", "log", "text", "returned", "return_value", "results")


class ClusterAddress(tuple[Any, Any]):
    """The return value of ``run_cluster``: the pair ``(cluster_spec, session_address)``, with the Cluster behind it.

    Both are None if a script was run to its end, since the servers are gone then. ``.cluster`` is the Cluster. The
    public attributes of the cluster and of its ``result`` are attributes of the pair, too: ``.values``,
    ``.logs("worker-0")``, ``.stop()``. The pair can be awaited like the cluster.
    """

    cluster: Cluster
    _is_shown: bool  # whether the metrics are below the cell already

    def __new__(
        cls, spec: dict[str, list[str]] | None, session: str | None, cluster: Cluster, is_shown: bool = False
    ) -> ClusterAddress:
        """Make the pair for a cluster."""
        address = super().__new__(cls, (spec, session))
        address.cluster, address._is_shown = cluster, is_shown
        return address

    def __getattr__(self, name: str) -> Any:
        if name in _public(Cluster):
            return getattr(self.cluster, name)
        if name in _public(Result):
            return getattr(self.cluster.result, name)
        text = f"what run_cluster returns has no attribute {name!r}{self._instead_of(name)}"
        # Without the object: with it Python would append a suggestion of its own to the message.
        raise AttributeError(text, name=name, obj=None)

    def _instead_of(self, name: str) -> str:
        """Return the end of an error message that suggests what a missing attribute may have meant."""
        if name.startswith("_") or name == "cluster":  # while it is being copied there is no cluster yet
            return ""
        script = self.cluster.job.script
        result = recorded(self.cluster).result if self.cluster.run_id else None
        if name in ((result or {}).get("metrics") or {}):
            return f": it is a metric, .metrics[{name!r}]"
        if name in OUTPUT:
            return ": what workers print is .logs(), what a function returned .values"
        meant = [right for right, others in OTHER_NAMES.items() if name in others.split()]
        known = [*_public(Cluster), *_public(Result)]
        near = meant or difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if not near and script is not None and script.kind == "function":
            return ": what the function returned is .values, what it reported .metrics"
        return f": is it .{near[0]}?" if near else ""

    def __dir__(self) -> list[str]:
        """Return the names for completion, without those of a tuple, and others that few users need."""
        return sorted({*super().__dir__(), *_public(Cluster), *_public(Result)} - RARE)

    def __await__(self) -> Generator[Any, None, Result]:
        """Wait for the end of the run, like ``await`` of the cluster."""
        return self.cluster.__await__()

    def __repr__(self) -> str:
        """Return the pair as long as servers listen, else the state or outcome of the run: two Nones would say less."""
        is_running = self.cluster.is_running
        if not self.cluster.run_id or (is_running and self[0]):
            return super().__repr__()
        if is_running:
            return f"<run {self.cluster.run_id} is running; it has wait(), stop(), logs(), stacks()>"
        run = recorded(self.cluster)
        known = (run.result or {}).get("metrics") or {}
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in known.items() if isinstance(value, (int, float)))
        told = f"{run.status} in {duration(run.seconds)}{f': {metrics}' if metrics and not self._is_shown else ''}"
        has = "result, values, " if run.status == "succeeded" else ""  # which raise what went wrong, if something did
        return f"<run {run.run_id} {told}; it has {has}logs() and explain()>"


def recorded(cluster: Cluster) -> Run:
    """Return the recorded run of a cluster."""
    from muster.records.runs import Run

    return Run(cluster.run_dir)


def _public(kind: type) -> set[str]:
    """Return the names of a class's public attributes."""
    return {name for name in (*dir(kind), *kind.__annotations__) if not name.startswith("_")}
