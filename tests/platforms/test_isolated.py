"""Whole runs on workers that share no files with the session: what they need is sent, what they leave is got.

Each strategy's own tests run a second time on such workers (``workers_anywhere``).
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.agent.places import is_symbolic
from muster.checkup import examine
from muster.errors import ScriptFailed, WorkerLost
from muster.events import Event, EventKind
from muster.job import Resources, SessionAddress, WorkerSpec
from muster.records import lookup
from muster.run.cluster import Cluster
from muster.run.request import RunRequest

from tests.plain import Plain
from tests.platforms.isolated import Isolated, isolated
from tests.pools.test_cut_links import Proxy
from tests.support import Run, eventually, shell


@pytest.fixture
def platform(run: Run) -> Iterator[Isolated]:
    platform = isolated()
    yield platform
    platform.close()


@pytest.fixture
def cluster(platform: Isolated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., muster.Cluster]:
    monkeypatch.chdir(tmp_path)

    def run(script: Any, n: int = 2, **options: Any) -> muster.Cluster:
        options = {"strategy": Plain(), "memory": 0.5, **options}
        cluster: muster.Cluster = muster.run_cluster(n, worker_script=script, platform=platform, **options).cluster
        return cluster

    return run


def test_output_that_ends_within_a_character_comes_byte_for_byte(
    cluster: Callable[..., muster.Cluster], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import os; os.write(1, b'\\xff no line end \\xe2\\x82')")
    found = cluster("train.py", 1)
    assert (found.run_dir / "logs" / "worker-0.log").read_bytes() == b"\xff no line end \xe2\x82"


def test_workers_do_not_see_the_sessions_folders(platform: Isolated, run: Run) -> None:
    (run.scratch / "secret").write_text("secret")
    worker = platform.launch([run.spec(process=shell(f"ls {run.scratch}"))])[0]
    eventually(lambda: platform.poll([worker.id])[0].status.is_final, "it has ended")
    assert list(platform.logs(worker.id)) == ["worker-0"]


def test_values_results_and_logs_come_over_the_wire(cluster: Callable[..., muster.Cluster]) -> None:
    def leave() -> str:
        import os
        from pathlib import Path

        worker = os.environ["MUSTER_WORKER"]
        assert not list(Path(os.environ["HOMES"]).glob("runs/*/*")), "the run's folder can be seen"
        print("a line of", worker, flush=True)
        sys.stdout.buffer.write(b"no text: \xff\xfe\n")
        Path(os.environ["MUSTER_RESULTS"], worker + ".bin").write_bytes(worker.encode() * 100_000)
        events = Path(os.environ["MUSTER_TENSORBOARD"], worker)
        events.mkdir(parents=True)
        (events / "events.out").write_text("events")
        return worker

    found = cluster(leave, env={"HOMES": os.environ["MUSTER_HOME"]})
    assert found.result.values == ["worker-0", "worker-1"]
    for worker in ("worker-0", "worker-1"):
        assert (found.run_dir / "results" / f"{worker}.bin").read_bytes() == worker.encode() * 100_000
        assert (found.run_dir / "tensorboard" / worker / "events.out").read_text() == "events"
        log = found.run_dir / "logs" / f"{worker}.log"
        assert log.read_bytes() == f"a line of {worker}\n".encode() + b"no text: \xff\xfe\n"
        assert log.stat().st_mode & 0o777 == 0o600
    assert not list(found.run_dir.rglob("*.part"))


def test_what_is_launched_holds_no_path_of_the_sessions(
    platform: Isolated, cluster: Callable[..., muster.Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[WorkerSpec] = []
    submit = platform.submit

    def noting(specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        submitted.extend(specs)
        return submit(specs, run_key)

    monkeypatch.setattr(platform, "submit", noting)
    (tmp_path / "train.py").write_text("import os; print(os.getcwd(), __file__)")
    found = cluster("train.py", 1)
    project = found.logs("worker-0").split()[0]
    assert found.logs("worker-0") == f"{project} {project}/train.py\n"
    assert not project.startswith(str(tmp_path))
    (spec,) = submitted
    assert not spec.places
    assert is_symbolic(str(spec.scratch))
    assert is_symbolic(spec.cwd)
    assert is_symbolic(spec.env["MUSTER_RESULTS"])
    for text in (str(spec.scratch), spec.cwd, *spec.env.values()):
        assert str(tmp_path) not in text
        assert str(found.run_dir) not in text
        assert tempfile.gettempdir() not in text
    plan = (found.run_dir / "plan.json").read_text()
    assert "<project>/train.py" in plan
    assert str(tmp_path) not in plan


def test_a_script_from_outside_the_project_is_sent(
    cluster: Callable[..., muster.Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "scripts" / "train.py").write_text("import os; print(os.getcwd(), __file__)")
    monkeypatch.chdir(tmp_path / "project")
    found = cluster(tmp_path / "scripts" / "train.py", 1, project=".")
    folder, script = found.logs("worker-0").split()
    assert folder.endswith("/project")
    assert script.endswith("/library/scripts/train.py")


def test_logs_are_exact_and_are_rotated(
    cluster: Callable[..., muster.Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MUSTER_LOG_CAP", "500000")
    (tmp_path / "talk.py").write_text("for number in range(100_000): print(number)")
    found = cluster("talk.py", 1)
    log = found.run_dir / "logs" / "worker-0.log"
    assert log.stat().st_size <= 500_000
    kept = (log.with_name("worker-0.log.1").read_text() + log.read_text()).split()
    assert kept[-1] == "99999"
    assert [int(line) for line in kept[1:]] == list(range(int(kept[1]), 100_000))


class Cut(Isolated):
    """The same, with a link to the session that can be cut."""

    proxy: Proxy

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        address = specs[0].session
        assert address is not None
        self.proxy = Proxy(address.host, address.port)
        return super().submit([replace(spec, session=self._through_proxy(spec)) for spec in specs], run_key)

    def _through_proxy(self, spec: WorkerSpec) -> SessionAddress:
        assert spec.session is not None
        return replace(spec.session, port=self.proxy.port)


@pytest.mark.slow
def test_a_link_that_is_cut_while_results_come(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolated()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path(os.environ['MUSTER_RESULTS'], 'large').write_bytes(os.urandom(1 << 20) * 64)\n"
    )
    platform = Cut()
    cuts = []

    def cut_while_it_comes() -> None:
        folder = Path(os.environ["MUSTER_HOME"]) / "runs"
        eventually(
            lambda: any(path.stat().st_size > 1 << 22 for path in folder.glob("*/results/.muster-*.part")),
            "it comes",
            40,
        )
        platform.proxy.cut()
        (part,) = folder.glob("*/results/.muster-*.part")
        cuts.append(part.stat().st_size)
        time.sleep(0.3)
        platform.proxy.restore()

    cutting = threading.Thread(target=cut_while_it_comes)
    cutting.start()
    try:
        cluster = muster.run_cluster(
            1, worker_script="large.py", strategy=Plain(), memory=0.5, platform=platform
        ).cluster
        assert (cluster.run_dir / "results" / "large").stat().st_size == 64 << 20
        assert 1 << 22 <= cuts[0] < 64 << 20, "the link was cut in the middle"
    finally:
        cutting.join()
        platform.close()
        platform.proxy.close()


def test_what_a_script_raised_is_told_with_its_log_and_results_come_all_the_same(
    cluster: Callable[..., muster.Cluster], tmp_path: Path
) -> None:
    (tmp_path / "fail.py").write_text(
        "import os, pathlib\nprint('before')\n"
        "pathlib.Path(os.environ['MUSTER_RESULTS'], 'kept.txt').write_text('kept')\nopen('data/train.csv')\n"
    )
    with pytest.raises(ScriptFailed, match="FileNotFoundError") as raised:
        cluster("fail.py", 1)
    assert "in a copy of the project" in str(raised.value.advice)
    assert raised.value.log is not None
    assert "before" in raised.value.log.read_text()
    assert (lookup.open_run().run_dir / "results" / "kept.txt").read_text() == "kept"


def test_results_whose_names_lead_out_are_not_followed(cluster: Callable[..., muster.Cluster], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link.py").write_text(
        "import os\n"
        "os.chdir(os.environ['MUSTER_RESULTS'])\n"
        f"os.symlink({str(tmp_path / 'secret')!r}, 'link')\nos.symlink({str(tmp_path)!r}, 'folder')\n"
        "os.mkfifo('pipe')\nopen('good', 'w').close()\n"
    )
    found = cluster("link.py", 1)
    assert [path.name for path in (found.run_dir / "results").iterdir()] == ["good"]


def test_a_worker_that_is_killed_while_it_trains(cluster: Callable[..., muster.Cluster], tmp_path: Path) -> None:
    (tmp_path / "kill.py").write_text(
        "import os, signal\nprint('about to', flush=True)\n"
        "if os.environ['MUSTER_WORKER'] == 'worker-1': os.kill(os.getppid(), signal.SIGKILL)\n"
        "signal.pause()\n"
    )
    with pytest.raises(WorkerLost) as raised:
        cluster("kill.py")
    assert raised.value.worker == "worker-1"


def test_results_can_be_got_while_it_runs(cluster: Callable[..., muster.Cluster], tmp_path: Path) -> None:
    (tmp_path / "go_on.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path(os.environ['MUSTER_RESULTS'], 'so-far').write_text('1')\n"
        "print('written', flush=True)\ntime.sleep(60)\n"
    )
    running = cluster("go_on.py", 1, wait=False)
    eventually(lambda: "written" in running.logs("worker-0"), "it has written")
    running.collect()
    assert (running.run_dir / "results" / "so-far").read_text() == "1"
    running.stop()


def test_the_doctor_looks_at_workers_that_share_nothing(platform: Isolated, tmp_path: Path) -> None:
    platform.python = sys.executable  # as if it were theirs
    (tmp_path / "train.py").write_text("pass")
    request = RunRequest(
        script=tmp_path / "train.py", n_workers=2, resources=Resources(1, 0.5), strategy="processes", platform=platform
    )
    report = str(examine(Cluster.of(request)))
    assert "2 workers came up" in report
    assert "✗" not in report
    assert "the workers have the packages of this session" in report


@pytest.mark.slow
def test_horovod_by_agents(cluster: Callable[..., muster.Cluster]) -> None:
    def total() -> float:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        return float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum))

    found = cluster(total, strategy="horovod", launcher="agents", memory=2, timeout_seconds=120)
    assert found.result.values == [3.0, 3.0]


@pytest.mark.slow
def test_a_link_that_is_cut_while_the_project_goes_along(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated()
    monkeypatch.chdir(tmp_path)
    for number in range(40):
        (tmp_path / f"data{number}").write_bytes(os.urandom(1 << 20))
    (tmp_path / "count.py").write_text(
        "import os\nprint(sum(os.path.getsize(name) for name in os.listdir('.')) >> 20)\n"
    )
    platform = Cut()
    totals: list[int] = []
    cutting: list[threading.Thread] = []

    def observe(event: Event) -> None:
        if event.kind == EventKind.TRANSFER:
            totals.append(event.data["total"])
            if not cutting:
                cutting.append(platform.proxy.cut_after(platform.proxy.carried + (16 << 20), 0.3))

    try:
        found = muster.run_cluster(
            1, worker_script="count.py", strategy=Plain(), memory=0.5, platform=platform, observers=[observe]
        ).cluster
        cutting[0].join()
        assert found.logs("worker-0") == "40\n"
        assert totals[-1] < totals[0], "what had come before was not sent again"
    finally:
        platform.close()
        platform.proxy.close()
