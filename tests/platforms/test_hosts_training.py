"""Every strategy, on three hosts that share nothing but the network between them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import muster
import pytest

from tests.mpi.conftest import Installed, adds_up
from tests.notebooks.test_notebooks import NOTEBOOKS, Executed
from tests.platforms.each_strategy import ADDS_UP
from tests.platforms.hosts_network import Network
from tests.support import QUICK_KERAS

pytestmark = pytest.mark.slow

THREE = ["h1:1", "h2:1", "h3:1"]


@pytest.fixture
def train(hosts: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., muster.Cluster]]:
    """Trains on the hosts; what TensorFlow's own imports leave there for the user is removed."""
    monkeypatch.chdir(tmp_path)
    quick = shutil.copytree(QUICK_KERAS, tmp_path / QUICK_KERAS.name)  # the hosts see nothing of this project
    monkeypatch.setenv("PYTHONPATH", f"{quick}{os.pathsep}{os.environ['PYTHONPATH']}")

    def run(n: int, script: Any, **options: Any) -> muster.Cluster:
        options = {"memory": 2, "timeout_seconds": 240, "hosts": THREE, **options}
        cluster: muster.Cluster = muster.run_cluster(n, worker_script=script, platform="hosts", **options).cluster
        return cluster

    yield run
    hosts.remove_what_tensorflow_leaves()


def test_the_notebook_trains_there_once_one_cell_is_changed(
    train: Callable[..., muster.Cluster], tmp_path: Path
) -> None:
    (tmp_path / "drawing.py").symlink_to(NOTEBOOKS / "drawing.py")
    where = {"platform": "hosts", "hosts": THREE, "launcher": "horovodrun"}  # whose command it prints
    notebook = Executed("other_machines", tmp_path, where=where, epochs=3)
    (table,) = notebook.markdown
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["0", "h1", "466"], ["1", "h2", "466"], ["2", "h3", "466"]]
    assert len({row[3] for row in rows}) == 1
    assert len(notebook.drawings) == 1
    assert "horovodrun" in notebook.printed


def test_horovod_whose_ranks_agents_start(train: Callable[..., muster.Cluster]) -> None:
    def total() -> tuple[str, float]:
        import os

        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        return os.uname().nodename, float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum))

    values = train(3, total, strategy="horovod", launcher="agents").result.values
    assert [tuple(value) for value in values] == [("h1", 6.0), ("h2", 6.0), ("h3", 6.0)]


def test_parameter_servers(train: Callable[..., muster.Cluster], tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(ADDS_UP)
    found = train(3, "task.py", n_ps=2, strategy="parameter_server", hosts=["h1:2", "h2:2", "h3:1"])
    ends = [found.logs(f"worker-{index}").rstrip().rpartition("\n")[2] for index in range(3)]
    assert ends == ["all have added h2 2", "all have added h2 2", "all have added h3 2"], "servers come first, on h1"


def test_multi_worker_mirrored(train: Callable[..., muster.Cluster]) -> None:
    def total() -> float:
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()

        def rank() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, context.replica_id_in_sync_group + 1)

        return float(strategy.run(rank))

    assert train(3, total, strategy="multi_worker").result.values == [6.0, 6.0, 6.0]


def test_agents_start_the_ranks_where_a_firewall_keeps_the_launcher_from_port_2222(
    train: Callable[..., muster.Cluster], hosts: Network
) -> None:
    def rank_and_host() -> tuple[int, str]:
        import os

        import horovod.tensorflow as hvd

        hvd.init()
        return hvd.rank(), os.uname().nodename

    far = hosts.hosts["h2"]
    deny = f"INPUT -s {hosts.hosts['h1'].address} -p tcp --dport 2222 -j REJECT --reject-with tcp-reset"
    far.run(f"iptables -A {deny}")
    try:
        cluster = train(3, rank_and_host, strategy="horovod")
    finally:
        far.run(f"iptables -D {deny}")
    assert [tuple(value) for value in cluster.result.values] == [(0, "h1"), (1, "h2"), (2, "h3")]
    (note,) = [note for note in cluster.plan.notes if "agents" in note]
    assert f"port 2222 of {far.address} cannot be reached from worker-0: connection refused" in note


def test_mpi(train: Callable[..., muster.Cluster], mpi: Installed) -> None:
    adds_up(train(3, mpi.program, strategy=mpi.strategy(), wait=False), 3)


def test_processes_meet(train: Callable[..., muster.Cluster]) -> None:
    def meet() -> tuple[str, list[str]]:
        import os
        import socket
        import time

        own, place = os.uname().nodename, (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if os.environ["RANK"] == "0":
            with socket.create_server(place) as server:
                peers = [server.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
                return own, sorted(peer.makefile().readline() for peer in peers)
        while True:
            try:
                with socket.create_connection(place) as peer:
                    peer.sendall(own.encode())
                return own, []
            except ConnectionRefusedError:  # rank 0 does not listen yet
                time.sleep(0.05)

    values = train(3, meet, strategy="processes").result.values
    assert [tuple(value) for value in values] == [("h1", ["h2", "h3"]), ("h2", []), ("h3", [])]
