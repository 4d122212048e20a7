"""Measure examples per second with ring allreduce and with one or two parameter servers, for 1 to 4 workers.

Every worker and server has a host of its own (``network.py``), with a link of 100 Mbit/s. With Horovod ranks average
their gradients in every step; workers with parameter servers train asynchronously, the faster of their two ways. Both
train the same model, which mostly sends. Baseline: one worker alone, times the number of workers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import Figure, main
from benchmarks.network import Network, network
from benchmarks.network_schemes import BATCH_SIZE

TITLE = "Examples per second of two to four workers, by ring allreduce and with parameter servers"
RATE = "100mbit"
WORKERS = (2, 3, 4)
SERVERS = (1, 2)
LAYERS = 2  # a million parameters
PORT = 2222
RANKS = Path(__file__).parent / "network_ranks.py"


def measure(quick: bool) -> list[Figure]:
    """Measure each number of workers with ring allreduce and with each number of parameter servers."""
    workers, turns, steps = ((2,), 2, 2) if quick else (WORKERS, 5, 4)
    figures = []
    with network(max(workers) + max(SERVERS), RATE) as hosts:
        alone = by_allreduce(hosts, 1, turns, steps)
        for count in workers:
            floor = [count * rate for rate in alone]
            ways = {"ring allreduce": by_allreduce(hosts, count, turns, steps)}
            for servers in SERVERS:
                ways[title(servers)] = by_parameter_servers(hosts, servers, count, turns, steps)
            figures += [
                Figure(f"{count} workers, {way}", "examples/s", rates, f"{count} times one alone", floor)
                for way, rates in ways.items()
            ]
    return figures


def title(servers: int) -> str:
    """Return the label of a number of parameter servers."""
    return f"{servers} parameter server{'s' * (servers > 1)}"


def by_allreduce(hosts: Network, workers: int, turns: int, steps: int) -> list[float]:
    """Return the examples per second of all ranks together, for each turn, with ring allreduce."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "measured.json"
        numbers = map(str, (LAYERS, turns, steps))
        command = [sys.executable, str(RANKS), "time", str(out), *numbers, "dense"]
        hosts.wait(hosts.start_ranks(workers, command, folder))
        hosts.stop()
        return [workers * BATCH_SIZE / turn["seconds"] for turn in json.loads(out.read_text())["dense"]]


def by_parameter_servers(hosts: Network, servers: int, workers: int, turns: int, steps: int) -> list[float]:
    """Return the same with parameter servers; a turn is ``steps`` steps of every worker."""
    addresses = [f"{address}:{PORT}" for address in hosts.addresses]
    spec = json.dumps({"ps": addresses[:servers], "worker": addresses[servers : servers + workers]})
    tasks = [("ps", index) for index in range(servers)] + [("worker", index) for index in range(workers)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "measured"
        script, numbers = [sys.executable, "-m", "benchmarks.network_tasks"], (str(LAYERS), str(turns * steps))
        processes = [
            hosts.start(host, [*script, spec, job, str(index), str(out), *numbers], {}, folder)
            for host, (job, index) in enumerate(tasks)
        ]
        hosts.wait(processes[servers:])
        hosts.stop()
        taken = [json.loads(Path(f"{out}-{index}.json").read_text()) for index in range(workers)]
    return [
        sum(steps * BATCH_SIZE / sum(seconds[turn * steps : (turn + 1) * steps]) for seconds in taken)
        for turn in range(turns)
    ]


def summary(result: dict[str, Any]) -> str:
    """Return the table of the figures in docs/figures.md, a row for each number of workers."""
    rates = {figure["what"]: figure["median"] for figure in result["figures"]}
    ways = ["ring allreduce", *map(title, SERVERS)]
    lines = [f"| workers | {' | '.join(ways)} |", "|---:|" + "---:|" * len(ways)]
    for count in WORKERS:
        if f"{count} workers, {ways[0]}" in rates:
            cells = [f"{rates[f'{count} workers, {way}']:.3g}" for way in ways]
            lines.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main("network_servers")
