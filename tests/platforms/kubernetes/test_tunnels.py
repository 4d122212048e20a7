"""Sessions that pods cannot dial: their agents come through the cluster's exec. On a real Kubernetes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.platforms.kubernetes.exec_stream import OUTCOME, OUTPUT, ExecStream, open_exec, outcome

from tests.platforms.each_strategy import TENSORFLOW, Training, each_strategy
from tests.platforms.kubernetes.cluster import Cluster, until
from tests.platforms.kubernetes.space import Space

TALKS = "for number in range(30_000): print('x' * 99)\n"
LEAVES = "import os; open(os.path.join(os.environ['MUSTER_RESULTS'], 'model'), 'w').write('y' * 3_000_000)\n"
WAITS = "import time, pathlib\nprint('up', flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)\n"
COUNTS = "import time\nfor step in range(150):\n    print('step', step, flush=True)\n    time.sleep(0.1)\n"
KILLS = (
    "import os\n"
    "for pid in filter(str.isdecimal, os.listdir('/proc')):\n"
    "    words = open('/proc/%s/cmdline' % pid, 'rb').read().split(bytes(1))\n"
    "    if b'/muster/agent/pod_tunnel.py' in words: os.kill(int(pid), 9); print('killed')\n"
    "open('/muster/project/go', 'w').close()\n"
)


def test_two_pods_train_through_the_exec(space: Space) -> None:
    found = space.run(TALKS + LEAVES, tunnel=True)
    for index in range(2):
        assert len(found.logs(f"worker-{index}")) == 3_000_000
    assert (found.run_dir / "results" / "model").stat().st_size == 3_000_000


def test_pods_that_cannot_dial_the_session_find_out_by_themselves(space: Space) -> None:
    with cut_off(space.cluster):
        values = space.run("def main(): return 7\nprint('done')\n", 2).result
    assert values.status == "succeeded"


@pytest.mark.elsewhere  # it takes 16 s
def test_the_doctor_s_workers_find_a_way_back_where_a_policy_lets_none_dial(space: Space) -> None:
    (space.folder / "train.py").write_text("print('trained')\n")
    options: dict[str, Any] = {"memory": 0.5, "cpu": 0.1, "timeout_seconds": 120, "python": space.python}
    with cut_off(space.cluster):
        report = muster.doctor(
            2, strategy="processes", worker_script="train.py", platform="kubernetes", **options, **space.options
        )
    assert report.is_fine, str(report)
    assert "2 workers came up" in str(report)


def test_a_stream_that_breaks_is_made_again(space: Space) -> None:
    running = space.run(WAITS, 1, tunnel=True, wait=False)
    until(lambda: "up" in running.logs("worker-0"), "it has started")
    (pod,) = space.cluster.pods(space.name)
    stream = open_exec(space.cluster.client, space.name, pod["metadata"]["name"], "worker", ["python3", "-c", KILLS])
    assert said(stream) == ("killed\n", "")
    running.wait()
    assert running.result.status == "succeeded"


@pytest.mark.elsewhere  # it takes 20 s
def test_a_run_goes_on_when_the_server_that_carries_its_streams_is_killed_and_comes_back(
    space: Space, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "muster")
    running = space.run(COUNTS, tunnel=True, wait=False)
    until(lambda: "step 9\n" in running.logs("worker-1"), "it trains")
    caplog.clear()  # a stream that came before its pod had the program for it is opened again
    space.cluster.restart_its_server()
    running.wait()
    assert "the stream to the pod" in caplog.text
    for index in range(2):
        assert running.logs(f"worker-{index}").splitlines() == [f"step {number}" for number in range(150)]


def said(stream: ExecStream) -> tuple[str, str]:
    """Return what a program prints, and what becomes of it, once it has ended."""
    printed, ends = bytearray(), []

    def read() -> bool:
        for channel, data in stream.receive():
            if channel == OUTPUT:
                printed.extend(data)
            elif channel == OUTCOME:
                ends.append(outcome(data))
        return bool(ends)

    until(read, "the program has ended")
    stream.close()
    return printed.decode(), ends[0]


@each_strategy
@pytest.mark.elsewhere
@pytest.mark.slow
def test_each_strategy_trains_through_the_exec(space: Space, training: Training) -> None:
    options = {**TENSORFLOW, "cpu": 0.5, **training.options}
    training.check(space.run(training.script, n_ps=training.n_ps, tunnel=True, **options))


@contextlib.contextmanager
def cut_off(cluster: Cluster) -> Iterator[None]:
    """Let nothing through from pods to this machine."""
    if not cluster.node:
        pytest.skip("only a cluster of the tests' own can be cut off")
    network = Path(f"/proc/{cluster.node}/ns/net")
    routes = subprocess.run(["nsenter", f"--net={network}", "ip", "-o", "-4", "addr"], capture_output=True, text=True)
    inside = {words[1]: words[3] for words in map(str.split, routes.stdout.splitlines())}
    rule = ["nsenter", f"--net={network}", "ip", "rule"]
    which = ["iif", "cni0", "to", inside["eth0"], "blackhole"]
    subprocess.run([*rule, "add", *which], check=True)
    try:
        yield
    finally:
        subprocess.run([*rule, "del", *which], check=True)
