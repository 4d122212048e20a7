"""The programs in the guides are run as they stand there."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import muster
import pytest
from muster.dashboard.replay import replay

from tests.support import DOCS, eventually
from tests.support import guide_program as program


def test_a_sweep_finds_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    alive: list[int] = []
    start = muster.Cluster.start

    def counted(cluster: muster.Cluster) -> muster.Cluster:
        started = start(cluster)
        alive.append(sum(run.status == "running" for run in muster.list_runs()))
        return started

    monkeypatch.setattr(muster.Cluster, "start", counted)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(program("sweeps.md", "sweep"), names)
    assert names["best"] == {"learning_rate": 0.1, "layers": 1}
    assert names["value"] == {"loss": 1.0}
    assert len(names["results"]) == len(muster.list_runs()) == 6  # type: ignore[arg-type]
    assert max(alive) <= 2
    assert all(run.status == "succeeded" for run in muster.list_runs())


SCRIPT = """
import argparse
from muster.training import report
parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float)
report(loss=parser.parse_args().learning_rate)
"""


def test_a_sweep_with_a_script_has_its_metrics_and_an_error_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    names: dict[str, Any] = {"muster": muster, "MusterError": muster.MusterError}
    exec(program("sweeps.md", "sweep-script"), names)
    assert names["one_of_script"]({"learning_rate": 0.5}) == ({"learning_rate": 0.5}, {"loss": 0.5})
    _, error = names["one_of_script"]({"unknown": 1})
    assert isinstance(error, muster.MusterError)


def test_runs_of_a_sweep_may_reuse_what_the_first_has_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = program("sweeps.md", "sweep").replace("wait=False", "wait=False, reuse=True")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(text, names)
    assert names["best"] == {"learning_rate": 0.1, "layers": 1}


def test_what_a_function_is_given_and_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(program("usage.md", "arguments"), names)
    assert names["values"] == [{"rank": 0, "loss": 0.2}, {"rank": 1, "loss": 0.2}]


def test_the_table_of_arguments_is_that_of_run_cluster() -> None:
    text = (DOCS / "usage.md").read_text()
    table = text.partition("<!-- arguments of run_cluster -->\n")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    told = {name.strip("`"): (kind, default.strip("`"), what) for name, kind, default, what, _ in rows}
    parameters = [p for p in inspect.signature(muster.run_cluster).parameters.values() if p.name != "options"]
    assert [*told] == [parameter.name for parameter in parameters]
    for parameter in parameters:
        kind, default, what = told[parameter.name]
        assert default == ("" if parameter.default is parameter.empty else repr(parameter.default).replace("'", '"'))
        assert sorted(re.split(", | or ", kind)) == sorted(_in_words(parameter.annotation))
        assert what


def _in_words(annotation: str) -> list[str]:
    """The types of an annotation as the table has them, each once."""
    plain = re.sub(r"(Sequence|Iterable)\[[^|]*(\| Path)?\]", "list", annotation)
    plain = re.sub(r"Mapping\[[^|]*\]", "dict", plain)
    plain = re.sub(r"Callable\[[^|]*\]", "function", plain).replace("tuple[int, int]", "tuple")
    return plain.split(" | ")


def test_every_error_is_in_the_table_of_what_to_try() -> None:
    told = (DOCS / "faults.md").read_text().partition("## My training hangs")[0]
    known = [kind for kind in vars(muster.errors).values() if isinstance(kind, type)]
    leaves = {kind.__name__ for kind in known if issubclass(kind, muster.MusterError) and not kind.__subclasses__()}
    assert len(leaves) > 20
    assert {name for name in leaves if f"`{name}`" not in told} == set()


def test_a_script_goes_on_where_its_checkpoint_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fault = "step == 7 and os.environ['MUSTER_ATTEMPT'] == '1' and os.kill(os.getpid(), 9)"
    text = program("restarts.md", "restarts")
    assert "...  # the training" in text
    (tmp_path / "train.py").write_text(text.replace("...  # the training", fault))
    cluster = muster.run_cluster(1, strategy="processes", worker_script="train.py", restarts=1).cluster
    assert cluster.logs("worker-0").splitlines() == [
        "attempt 1 begins at step 0",
        "--- attempt 2 ---",
        "attempt 2 begins at step 7",
    ]


@pytest.mark.slow
@pytest.mark.horovod
def test_a_training_with_keras_goes_on_in_the_middle_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fault = """
class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if os.environ["MUSTER_ATTEMPT"] == "1" and checkpoint.position == (2, 5, 25) and horovod.rank() == 1:
            os.kill(os.getpid(), 9)


model.fit("""
    text = program("restarts.md", "horovod-restarts").replace("model.fit(", fault)
    text = text.replace("every=5)]", "every=5), Fault()]")
    (tmp_path / "train.py").write_text(text)
    arguments: dict[str, Any] = {"strategy": "horovod", "worker_script": "train.py", "run_timeout": 200}
    for attempts, last in ((2, "attempt 2 begins at epoch 2, step 5"), (1, "attempt 1 begins at epoch 7, step 10")):
        cluster = muster.run_cluster(2, **arguments, restarts=attempts - 1).cluster
        lines = cluster.logs("worker-1").splitlines()
        assert [line for line in lines if line.startswith("attempt")][-1] == last
        assert lines[-1].startswith("rank 1: weight 2.9")


# Kills what `HITS` says for its attempt, once that rank has come so far: itself, or another process of its worker.
STRIKES = """
def child_of(parent, words):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat, command = (open(f"/proc/{pid}/{name}").read() for name in ("stat", "cmdline"))
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == parent and words in command:
            return int(pid)


def pid_of(part):
    agent = os.getppid()
    return {
        "rank": os.getpid,
        "agent": lambda: agent,
        "sshd": lambda: child_of(agent, "sshd_config"),
        "rendezvous": lambda: child_of(agent, "horovod_rendezvous.py"),
        "horovodrun": lambda: child_of(int(os.environ["SESSION"]), "horovod_launcher.py"),
    }[part]()


class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        hits = json.loads(os.environ.get("HITS", "[]"))[int(os.environ["MUSTER_ATTEMPT"]) - 1 :]
        if hits and horovod.rank() == hits[0]["rank"] and list(checkpoint.position[:2]) >= hits[0]["at"]:
            os.kill(pid_of(hits[0]["part"]), 9)
            time.sleep(600)


model.fit("""


class Hit(NamedTuple):
    """A process that is killed: the rank that does it, its epoch and step, and how the record tells what ended."""

    part: str
    rank: int
    at: tuple[int, int]
    told: str


@pytest.mark.slow
@pytest.mark.elsewhere  # only because it takes long
@pytest.mark.parametrize(
    ("launcher", "hits"),
    [
        (
            "horovodrun",
            [
                Hit("rank", 0, (1, 3), "rank 0 (worker-0) was ended by signal 9"),
                Hit("agent", 1, (2, 7), "worker-1 was lost"),
                Hit("sshd", 0, (4, 5), "worker-0 was lost"),
                Hit("horovodrun", 1, (5, 2), "horovodrun itself failed"),
            ],
        ),
        (
            "agents",
            [
                Hit("rank", 1, (1, 3), "rank 1 (worker-1) was ended by signal 9"),
                Hit("agent", 0, (3, 7), "worker-0 was lost"),
                Hit("rendezvous", 0, (4, 5), "rendezvous on worker-0 itself failed"),
            ],
        ),
    ],
)
def test_a_training_with_horovod_any_part_of_which_is_killed_ends_with_the_very_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, hits: list[Hit]
) -> None:
    text = program("restarts.md", "horovod-restarts").replace("import os\n", "import json\nimport os\nimport time\n")
    text = text.replace("model.fit(", STRIKES).replace("every=5)]", "every=5), Fault()]")
    text = text.replace("horovod.init()", "horovod.init()\nkeras.utils.set_random_seed(7)")
    text += "print('weights', model.weights[0].numpy().tobytes().hex(), model.weights[1].numpy().tobytes().hex())\n"
    learnt = []
    with muster.pool(2) as pool:  # for its warm starts: the ranks that are killed are as any others
        for struck in ([], hits):
            folder = tmp_path / ("struck" if struck else "uninterrupted")
            folder.mkdir()
            monkeypatch.chdir(folder)
            (folder / "train.py").write_text(text)
            cluster = pool.run_cluster(
                strategy="horovod", worker_script="train.py", run_timeout=300, restarts=len(hits), launcher=launcher,
                env={"HITS": json.dumps([hit._asdict() for hit in struck]), "SESSION": str(os.getpid())},
            ).cluster  # fmt: skip
            attempts = replay(muster.open_run()).attempts
            assert len(attempts) == len(struck) + 1
            for hit, attempt in zip(struck, attempts, strict=False):
                assert hit.told in attempt.ended_by
                assert attempt.furthest is not None
                assert attempt.furthest.epoch == hit.at[0] + 1
            lost = sum(attempt.lost or 0.0 for attempt in attempts)
            assert cluster.result.timings.get("lost", 0.0) == pytest.approx(lost, abs=0.1)
            learnt.append([cluster.logs(f"worker-{rank}").rpartition("weights ")[2] for rank in range(2)])
    assert learnt[0] == learnt[1]
    assert learnt[0][0]


def test_results_arrive_in_the_folder_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(program("files.md", "results"))
    cluster = muster.run_cluster(2, strategy="processes", worker_script="train.py").cluster
    for rank in range(2):
        assert (cluster.run_dir / "results" / f"history-{rank}.csv").read_text().endswith("1,0.5\n")


@pytest.mark.slow
@pytest.mark.horovod
def test_a_training_reads_its_share_of_tfrecord_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("make_data.py", "train.py"):
        (tmp_path / name).write_text(program("training.md", f"tfrecords: {name}"))
    subprocess.run([sys.executable, "make_data.py"], check=True, capture_output=True)
    cluster = muster.run_cluster(2, strategy="horovod", worker_script="train.py", run_timeout=200).cluster
    lines = [cluster.logs(f"worker-{rank}").splitlines()[-1] for rank in range(2)]
    weights = [float(line.rpartition("weight ")[2]) for line in lines]
    assert weights[0] == weights[1] == pytest.approx(3, abs=0.5)
    assert not [event for event in muster.open_run().events() if event.kind == "note"]


@pytest.mark.slow
@pytest.mark.horovod
def test_all_ranks_stop_early_after_the_same_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(program("training.md", "early stopping"))
    cluster = muster.run_cluster(2, strategy="horovod", worker_script="train.py", run_timeout=200).cluster
    first, second = (cluster.logs(f"worker-{rank}").splitlines()[-1] for rank in range(2))
    assert first == second
    assert 2 < int(first.split()[2]) < 100


@functools.cache
def python_with_torch() -> str:
    """Return an interpreter with PyTorch: this one, or that of Debian's python3-torch; empty where there is none."""
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
                return python
    return ""


@pytest.mark.slow
def test_pytorch_learns_on_ranks_that_average_their_gradients_cold_and_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not python_with_torch():
        pytest.skip("PyTorch is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the tests' own sitecustomize.py would keep everything cold
    (tmp_path / "train.py").write_text(program("other-frameworks.md", "pytorch"))
    with muster.pool(2) as pool:
        for _ in ("cold", "warm"):
            cluster = pool.run_cluster(
                strategy="processes", worker_script="train.py", python=python_with_torch(), run_timeout=200
            ).cluster
            log = cluster.logs("worker-0")
            assert "attempt 1: weight 3.0" in log
            assert "starts cold" not in log
            (tmp_path / "checkpoint.pt").unlink()
            eventually(lambda: "importing" not in repr(pool), "the imports for the next run", timeout=120)
            assert "warm>" in repr(pool)


@pytest.mark.slow
def test_the_coordinator_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(program("cluster-coordinator.md", "coordinator"))
    cluster = muster.run_cluster(2, n_ps=1, worker_script="train.py", run_timeout=120).cluster
    assert 1 < float(cluster.logs("chief-0").rpartition("weight ")[2]) < 3.5
    assert cluster.result.metrics["loss"] < 3
