"""Measure one session with 100,000 workers, whose agents share the connections of 100 relays.

No platform starts such relays: this shows what the session itself takes, through the seam that they would use
(``relays.py``). As with 10,000 workers (``thousand_agents.py``), relays and agents are simulated and the session is a
real one, with a cluster's journal; each agent reports as often as the session asks for. In the end one of them fails,
and all are stopped.
"""

from __future__ import annotations

from muster.pools.endpoint import REPORTS_PER_SECOND

from benchmarks.measuring import Figure, Target, fresh, main, private_home
from benchmarks.simulated_agents import PROGRESS
from benchmarks.thousand_agents import LIMIT, TOLD_SECONDS, muster


def measure(quick: bool) -> list[Figure]:
    """Measure one session once, as it takes minutes."""
    workers, relays, seconds = (1000, 10, 1) if quick else (100_000, 100, 20)
    with private_home():
        taken = fresh(muster, workers, seconds, PROGRESS, relays)
    title = f"{workers:,} workers behind {relays} relays"
    per_second = min(workers, REPORTS_PER_SECOND)

    def figure(what: str, unit: str, value: float, target: Target | None = None) -> Figure:
        return Figure(f"{title}: {what}", unit, [value], target=target)

    return [
        figure("all connected", "s", taken["ready"]),
        figure("CPU of the session until then, for each worker", "ms", 1000 * taken["started"] / workers),
        figure(f"a core's share, for {per_second} progress reports a second", "%", taken["cpu"], Target(LIMIT, "%")),
        figure("memory that the session has gained, for each worker", "kB", 1000 * taken["memory"] / workers),
        figure("one fails: until an event says which", "s", taken["told"], Target(TOLD_SECONDS, "s")),
        figure("one fails: until all others have been told to stop", "s", taken["stopped"]),
        figure("one fails: until the error that names it is raised", "s", taken["raised"]),
    ]


if __name__ == "__main__":
    main("relayed_agents")
