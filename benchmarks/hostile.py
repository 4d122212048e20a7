"""Measure a notebook's session, and ``muster serve``, while hostile clients attack their ports.

The clients know the port, but no key. Each attack lasts some seconds. Measured are the attacked process's CPU time,
memory and descriptors; how late a real worker's output arrives, or the answer to a client with a key; and whether the
error still names the right rank after one is killed. With ``--beside CHECKOUT`` another checkout of Muster is attacked
in turn. Only loopback is attacked, and only processes that the benchmark has started.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import requests

from benchmarks.hostile_clients import ON_SERVICE, ON_SESSION, Attack, attacking
from benchmarks.measuring import (
    HERE,
    Figure,
    by_turns,
    commit_of,
    environment_of,
    main,
    other_checkout,
    significant,
)

SECONDS = 5.0  # length of an attack
SAMPLE_SECONDS = 0.05
PATIENCE = 10.0  # seconds after which an answer counts as not given
TITLE = "Hostile clients"


@dataclass
class Use:
    """Resources that a process uses while it is attacked: samples of memory (MB) and descriptors, and CPU (percent)."""

    process: psutil.Process
    memory: list[float] = field(default_factory=list)
    descriptors: list[float] = field(default_factory=list)
    cpu: float = 0.0

    @contextlib.contextmanager
    def sampled(self, attack: Attack, port: int) -> Iterator[None]:
        """Attack the process, and sample its use of resources, for as long as the block takes."""
        over = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(over,))
        sampler.start()
        try:
            with attacking(port, attack):
                yield
        finally:
            over.set()
            sampler.join()

    def _sample(self, over: threading.Event) -> None:
        before, began = self.process.cpu_times(), time.monotonic()
        with contextlib.suppress(psutil.Error):  # it has ended
            while not over.wait(SAMPLE_SECONDS):
                self.memory.append(self.process.memory_info().rss / 1e6)
                self.descriptors.append(self.process.num_fds())
                now = self.process.cpu_times()
                used = now.user + now.system - before.user - before.system
                self.cpu = 100 * used / (time.monotonic() - began)

    def told(self) -> dict[str, float]:
        """Return the most memory and descriptors seen, and the CPU in percent of a core."""
        return {"memory": max(self.memory), "descriptors": max(self.descriptors), "cpu": self.cpu}


def measure(quick: bool) -> list[Figure]:
    """Attack this checkout, and by turns another one if ``--beside`` names it."""
    other = other_checkout()
    sides = {"after": HERE} | ({"before": other} if other else {})
    figures = []
    targets = ("session", ON_SESSION, attack_session), ("service", ON_SERVICE, attack_service)
    for target, attacks, attacked in targets[:1] if quick else targets:
        for attack in attacks[:2] if quick else attacks:
            print(f"  {target}: {attack.what}", file=sys.stderr, flush=True)
            contenders = {side: partial(attacked, checkout, attack) for side, checkout in sides.items()}
            taken = by_turns(1 if quick else 3, contenders)
            for key, unit in UNITS[target].items():
                values = {side: [one[key] for one in found] for side, found in taken.items()}
                beside = (commit_of(sides["before"]), values["before"]) if "before" in values else ("", ())
                figures.append(Figure(f"{target}|{attack.what}|{key}", unit, values["after"], *beside))
    return figures


UNITS = {
    "session": {"memory": "MB", "descriptors": "", "cpu": "%", "up": "s", "delay": "ms", "told": "s"},
    "service": {"memory": "MB", "descriptors": "", "cpu": "%", "delay": "ms", "log": "kB"},
}
COLUMNS = {
    "memory": "memory, MB",
    "descriptors": "descriptors",
    "cpu": "CPU, % of a core",
    "up": "two agents in after, s",
    "delay": "an agent's line or a client's answer, ms: most",
    "told": "a killed rank told after, s",
    "log": "log, kB",
}


def attack_session(checkout: Path, attack: Attack) -> dict[str, float]:
    """Attack the session of a notebook while its cluster comes up, works, and loses a rank."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with _home() as home:
        command = [sys.executable, str(Path(__file__).with_name("hostile_session.py")), str(port), str(SECONDS)]
        with (home / "errors").open("wb") as errors:
            notebook = subprocess.Popen(
                command, env=environment_of(checkout, home), cwd=home, stdout=subprocess.PIPE, stderr=errors
            )
        use = Use(psutil.Process(notebook.pid))
        with _ended(notebook), use.sampled(attack, port):
            output, _ = notebook.communicate(timeout=240)
        told = json.loads(output)
    is_right = told["error"].startswith("WorkerKilled")
    return {
        **use.told(),
        "up": told["up"] or PATIENCE,
        "delay": 1000 * min(max(told["delays"], default=PATIENCE), PATIENCE),
        "told": told["told"] if is_right else PATIENCE,
    }


def attack_service(checkout: Path, attack: Attack) -> dict[str, float]:
    """Attack ``muster serve`` while a client with a key asks for the list of workers."""
    with _home() as home:
        environment = environment_of(checkout, home)
        serve = (sys.executable, "-m", "muster", "serve")
        log = home / "log"
        with log.open("wb") as errors:
            service = subprocess.Popen(
                [*serve, "--port", "0", "--project", str(home)], env=environment, stdout=subprocess.PIPE, stderr=errors
            )
        with _ended(service):
            assert service.stdout is not None
            line = next(line.decode() for line in service.stdout if line.startswith(b"Serving "))
            port = line.split(" on ")[-1].split(",")[0].rpartition(":")[2]
            printed = shlex.join([*serve, "--print-env", "--port", port])
            done = subprocess.run(
                ["bash", "-c", f'eval "$({printed})" && env -0'],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            variables = dict(line.split("=", 1) for line in done.stdout.split("\0") if line.startswith("CDSW_"))
            use, delays = Use(psutil.Process(service.pid)), []
            with use.sampled(attack, int(port)):
                over = time.monotonic() + SECONDS
                while time.monotonic() < over:
                    delays.append(_answer_seconds(variables))
                    time.sleep(0.05)
        return {**use.told(), "delay": 1000 * max(delays), "log": log.stat().st_size / 1e3}


def _answer_seconds(variables: Mapping[str, str]) -> float:
    began = time.monotonic()
    try:
        url, key = variables["CDSW_ENGINE_URL"] + "/workers", variables["CDSW_API_KEY"]
        answer = requests.get(url, auth=(key, ""), timeout=PATIENCE)
        return time.monotonic() - began if answer.status_code == 200 else PATIENCE
    except requests.RequestException:
        return PATIENCE


def summary(result: Mapping[str, Any]) -> str:
    """Return a table of the figures for each target: a row for each attack, before and after in each cell."""
    rows: dict[str, dict[str, dict[str, str]]] = {}
    others = {figure["floor"]["what"] for figure in result["figures"] if figure["floor"]}
    for figure in result["figures"]:
        target, attack, key = figure["what"].split("|")
        before = f"{_short(figure['floor']['median'], figure['unit'])} → " if figure["floor"] else ""
        cell = f"{before}{_short(figure['median'], figure['unit'])}"
        rows.setdefault(target, {}).setdefault(attack, {})[key] = cell
    texts = []
    for target, attacks in rows.items():
        keys = list(next(iter(attacks.values())))
        lines = [
            f"| the {target}, beside | {' | '.join(COLUMNS[key] for key in keys)} |",
            "|---|" + "---:|" * len(keys),
        ]
        lines += [f"| {attack} | {' | '.join(cells[key] for key in keys)} |" for attack, cells in attacks.items()]
        texts.append("\n".join(lines))
    texts.append(
        f"{''.join(f'Commit {other} → this one. ' for other in others)}Medians of the most that was seen in each turn, "
        f"{SECONDS:g} s each; {PATIENCE:g} s ({PATIENCE * 1000:,.0f} ms) stands for never, or told wrong."
    )
    return "\n\n".join(texts)


def _short(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit in ("ms", "", "kB", "MB", "%") else f"{significant(value):.2g}"


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="muster-hostile-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main("hostile")
