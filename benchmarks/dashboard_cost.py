"""Measure what the dashboard costs a notebook's kernel, and the training beside it.

First, one update of the dashboard in a real kernel, with 8, 64 and 1,000 workers (of which it shows 256), after every
worker has made a step, printed a line and used more memory. The CPU time is that of the whole process, including the
thread that sends; the bytes are all that the kernel is given to send. Then the steps per second of LeNet, trained with
Horovod on two workers, with and without the dashboard in turn.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks import training
from benchmarks.measuring import Figure, Target, by_turns, main, private_home

CPU_LIMITS = {8: None, 64: 1.5, 1000: 3.0}  # milliseconds
TICKS = 40
STEPS = 50  # in an epoch; the first epoch is not counted
LIMIT = 0.99


def measure(quick: bool) -> list[Figure]:
    """Measure ticks, then short runs with and without the dashboard by turns."""
    figures = []
    for workers, limit in CPU_LIMITS.items():
        found = in_kernel(f"ticks({workers}, {5 if quick else TICKS})")
        target = Target(limit, "ms") if limit else None
        title = f"a tick of the dashboard, {workers:,} workers"
        figures.append(Figure(f"{title}: CPU", "ms", found["milliseconds"], target=target))
        figures.append(Figure(f"{title}: sent", "kB", found["kilobytes"]))
    options = ["--steps", str(10 if quick else STEPS), "--epochs", str(2 if quick else 5)]
    with private_home():
        taken = by_turns(
            1 if quick else 8,
            {
                "shown": lambda: in_kernel(f"train({options}, dashboard=True)"),
                "hidden": lambda: in_kernel(f"train({options}, dashboard=False)"),
            },
        )
    title = f"training LeNet with Horovod, {training.WORKERS} workers, shown in a notebook"
    shown, hidden = (
        {key: [run[key] for run in taken[name]] for key in ("steps_per_second", "percent")} for name in taken
    )
    floor = "without a dashboard"
    target = Target(LIMIT, at_least=True)
    return [
        *figures,
        Figure(title, "steps/s", shown["steps_per_second"], floor, hidden["steps_per_second"], target),
        Figure(f"{title}: the kernel's CPU", "% of a core", shown["percent"], floor, hidden["percent"]),
    ]


def in_kernel(call: str) -> Any:
    """Call a function of this module in a new kernel, and return what it returns."""
    from jupyter_client.manager import start_new_kernel

    root = str(Path(__file__).parent.parent)
    code = f"""
import sys, json
sys.path.insert(0, {root!r})
from benchmarks.dashboard_cost import *
measured = json.dumps({call})
"""
    manager, client = start_new_kernel(cwd=root, stderr=subprocess.DEVNULL)
    try:
        reply = client.execute_interactive(
            code, output_hook=lambda message: None, user_expressions={"found": "measured"}, timeout=600
        )
        if reply["content"]["status"] != "ok":
            raise RuntimeError("\n".join(reply["content"]["traceback"]))
        return json.loads(eval(reply["content"]["user_expressions"]["found"]["data"]["text/plain"]))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def ticks(workers: int, count: int) -> dict[str, list[float]]:
    """Return the milliseconds of CPU and the kilobytes of each of ``count`` ticks, with news of every worker.

    To be called in the kernel.
    """
    from muster.dashboard.base import Controls
    from muster.dashboard.live import LiveState
    from muster.dashboard.widget import RunWidget

    state = LiveState()
    widget = RunWidget(state, Path, Controls())
    widget._answer(None, {"ask": "snapshot"}, None)  # a browser has asked, so that diffs are sent
    sent = count_bytes()
    found: dict[str, list[float]] = {"milliseconds": [], "kilobytes": []}
    for step in range(count + 5):
        tell_news(state, workers, step)
        bytes_before, before = sent[0], time.process_time()
        widget.tick()
        time.sleep(0.02)  # so that the thread that sends has sent
        if step >= 5:  # the first ones are larger, and warm up
            found["milliseconds"].append(1000 * (time.process_time() - before))
            found["kilobytes"].append((sent[0] - bytes_before) / 1000)
    return found


def count_bytes() -> list[int]:
    """Return a list of one number: the bytes that the kernel sends from now on."""
    from IPython import get_ipython

    session, sent = get_ipython().kernel.session, [0]
    serialize = session.serialize

    def counting(message: Any, ident: Any = None) -> Any:
        parts = serialize(message, ident)
        sent[0] += sum(map(len, parts))
        return parts

    session.serialize = counting
    return sent


def tell_news(state: Any, workers: int, step: int) -> None:
    """Give the dashboard the events of one more step of every worker."""
    from muster.events import Event

    for index in range(workers):
        name, loss = f"worker-{index}", random.random()
        metrics = {"loss": loss, "accuracy": 1 - loss}
        progress = {"rank": index, "step": step, "steps": 1000, "epoch": 1, "epochs": 5, "examples": 32 * step}
        state(Event("progress", name, {**progress, "metrics": metrics}))
        state(Event("usage", name, {"cpu": round(random.random(), 2), "memory": random.randrange(10**9)}))
        state(Event("output", name, {"text": f"step {step} loss {loss:.4f}\n"}))


def train(options: list[str], dashboard: bool) -> dict[str, float]:
    """Return the steps per second of a training run, and the percentage of a core that the kernel needed meanwhile.

    To be called in the kernel.
    """
    import tempfile

    import muster

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        args = [out, *options]
        started, before = time.monotonic(), time.process_time()
        muster.run_cluster(
            training.WORKERS, strategy="horovod", worker_script=training.SCRIPT, args=args, dashboard=dashboard
        )
        busy = (time.process_time() - before) / (time.monotonic() - started)
        return {"steps_per_second": json.loads(out.read_text())["steps_per_second"], "percent": 100 * busy}


if __name__ == "__main__":
    main("dashboard_cost")
