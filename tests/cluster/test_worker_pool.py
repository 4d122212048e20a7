"""Pools of workers: several runs one after the other, whose ranks are forks of a template, and never the wrong code."""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import psutil
import pytest
from muster.agent import linux
from muster.errors import JobError, LaunchRefused, PlatformUnsupported, RunStopped, ScriptFailed, WorkerOutOfMemory
from muster.platforms.guard_process import GuardProcess
from muster.platforms.kept import kept_for, shared
from muster.run.address import ClusterAddress
from muster.strategies.mpi import MPI
from muster.worker_pool import Pool

from tests.support import IMPORT_PATH, eventually, free_of, is_gone, needs_horovod

HEAVY = """
import os, tempfile
tempfile.gettempdir()
VERSION, IMPORTED_BY = {version}, os.getpid()
"""
# Says whether its package was there already, and everything that must be of this run.
SAYS = """
import heavy
import json, os, random, signal, sys, tempfile
import helper

signals = [signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD)]
files = sorted(os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) < 3)
said = {
    "warm": heavy.IMPORTED_BY != os.getpid(), "version": heavy.VERSION, "helper": helper.VALUE, "script": 1,
    "argv": sys.argv[1:], "path": sys.path, "cwd": os.getcwd(), "temp": tempfile.gettempdir(),
    "given": os.environ.get("GIVEN"), "run": os.environ["MUSTER_RUN_ID"], "random": random.random(),
    "shown": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"), "name": __name__, "file": __file__,
    "signals": [str(known) for known in signals], "files": files, "session": os.getsid(0) == os.getpid(),
    "open": len([name for name in os.listdir("/proc/self/fd")]), "limits": os.sched_getaffinity(0).__len__(),
}
unflushed = open(f"said-{os.environ['MUSTER_WORKER']}.json", "w")
unflushed.write(json.dumps(said))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's folder, with a script, a module of its own and an installed package."""
    package = tmp_path / "site-packages" / "heavy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(HEAVY.format(version=1))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(SAYS)
    (tmp_path / "project" / "helper.py").write_text("VALUE = 1\n")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PYTHONPATH", f"{IMPORT_PATH.split(os.pathsep)[0]}{os.pathsep}{package.parent}")
    return tmp_path / "project"


@pytest.fixture
def pool(here: Path) -> Iterator[Pool]:
    """A pool of two workers."""
    with muster.pool(2, memory=0.5) as made:
        yield made


def said_by(pool: Pool, script: Any = "train.py", **options: Any) -> dict[str, Any]:
    """Run the script, wait until the pool is ready for the next, and return what the first worker said."""
    given = {"strategy": "processes", "dashboard": False, **options}
    cluster = pool.run_cluster(worker_script=script, **given).cluster
    assert cluster.result.status == "succeeded"
    eventually(lambda: "importing" not in repr(pool), "the imports for the next run")
    found: dict[str, Any] = json.loads(Path("said-worker-0.json").read_text())
    assert found["run"] == cluster.run_id
    return found


def test_the_second_run_has_its_packages_and_everything_else_is_its_own(pool: Pool, here: Path) -> None:
    cold, warm = said_by(pool, args=["a"]), said_by(pool, args=["b"])
    assert (cold["warm"], warm["warm"]) == (False, True)
    assert "warm>" in repr(pool)
    assert (cold["argv"], warm["argv"]) == (["a"], ["b"])
    assert cold["random"] != warm["random"]
    assert cold["temp"] != warm["temp"]
    for facts in (cold, warm):  # but for the names of what belongs to one run
        folder, *rest = facts["path"]
        assert folder == str(here)
        facts["path"] = rest[1:]
        assert facts["shown"][2] == f"{rest[0]}/runner.py"
        facts["shown"] = [*facts["shown"][:2], *facts["shown"][3:-1]]
        assert facts["temp"].endswith("/worker-0/tmp")
    of_a_run = ("warm", "argv", "random", "temp", "run", "files")
    assert {**cold, **dict.fromkeys(of_a_run)} == {**warm, **dict.fromkeys(of_a_run)}


@pytest.mark.slow
@needs_horovod
@pytest.mark.horovod
def test_ranks_of_horovod_are_forks_too(pool: Pool) -> None:
    assert said_by(pool, strategy="horovod")["warm"] is False
    assert said_by(pool, strategy="horovod")["warm"] is True


def test_a_module_that_came_after_the_imports_is_found(pool: Pool, here: Path) -> None:
    """Also where its folder's time does not tell: file systems have coarse clocks, and importlib remembers folders."""
    folder = here.parent / "site-packages" / "heavy"
    (folder / "first.py").touch()
    (here / "finds.py").write_text(
        "import heavy\nimport heavy.first\nimport os\nwarm = heavy.IMPORTED_BY != os.getpid()\n"
        "if os.path.exists('more'):\n    import heavy.later\nprint('warm', warm, flush=True)\n"
    )
    said = []
    for number in range(2):
        cluster = pool.run_cluster(worker_script="finds.py", strategy="processes", dashboard=False).cluster
        said.append(cluster.logs("worker-0").split("\n")[:-1])
        eventually(lambda: "importing" not in repr(pool), "the imports for the next run")
        if not number:
            before = folder.stat().st_mtime_ns
            (folder / "later.py").touch()
            os.utime(folder, ns=(before, before))
            (here / "more").touch()
    assert said == [["warm False"], ["warm True"]]


@pytest.mark.slow
def test_a_gpu_is_for_others_between_two_runs(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine with one, of which a program that stands in for ``nvidia-smi`` tells."""
    gpu = f"GPU-{os.getpid()}-of-a-pool"  # which no other test claims at the same time
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\n[ "$1" = -L ] && echo "GPU 0: Tesla T4 (UUID: {gpu})"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    (here / "train.py").write_text(
        "import heavy\nimport os\nimport time\n"
        "print(os.environ['CUDA_VISIBLE_DEVICES'], heavy.IMPORTED_BY != os.getpid(), flush=True)\n"
        "while os.path.exists('waits'):\n    time.sleep(0.05)\n"
    )
    options: dict[str, Any] = {"strategy": "processes", "worker_script": "train.py", "dashboard": False}

    def alone(**more: Any) -> ClusterAddress:
        address: ClusterAddress = muster.run_cluster(1, nvidia_gpu=1, memory=0.5, **options, **more)
        return address

    with muster.pool(1, memory=0.5, nvidia_gpu=1) as pool:

        def pooled(**more: Any) -> ClusterAddress:
            return pool.run_cluster(**options, **more)

        assert pooled().cluster.logs("worker-0") == f"{gpu} False\n"
        eventually(lambda: "warm>" in repr(pool), "the template is there")
        assert alone().cluster.logs("worker-0") == f"{gpu} False\n"
        (here / "waits").touch()
        for run, other in ((pooled, alone), (alone, pooled)):
            cluster = run(wait=False).cluster
            eventually(lambda: gpu in cluster.logs("worker-0"), "it has the GPU")  # noqa: B023
            with pytest.raises(LaunchRefused, match="GPU"):
                other()
            cluster.stop()
        (here / "waits").unlink()
        assert pooled().cluster.logs("worker-0") == f"{gpu} True\n"


@needs_horovod
@pytest.mark.slow
@pytest.mark.elsewhere
@pytest.mark.horovod
def test_ranks_that_train_with_keras_and_horovod_are_forks_that_have_imported_both(pool: Pool, here: Path) -> None:
    (here / "fit.py").write_text(
        "import sys\n"
        "before = [name in sys.modules for name in ('keras', 'tensorflow', 'horovod.tensorflow')]\n"
        "import horovod.tensorflow as hvd\n"
        "import keras\n"
        "import tensorflow as tf\n"
        "hvd.init()\n"
        "model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer='zeros')])\n"
        "model.compile(optimizer='sgd', loss='mse')\n"
        "model.fit(tf.ones((4, 1)), tf.ones((4, 1)), verbose=0)\n"
        "print(before, float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)), flush=True)\n"
    )
    said = []
    for _ in range(2):
        found = pool.run_cluster(worker_script="fit.py", strategy="horovod", dashboard=False).cluster
        said.append([found.logs(f"worker-{index}").splitlines()[-1] for index in range(2)])
        eventually(lambda: "importing" not in repr(pool), "the imports for the next run", timeout=120)
    assert said == [["[False, False, False] 2.0"] * 2, ["[True, True, True] 2.0"] * 2]


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_ranks_that_mpiexec_asks_for_are_forks_too(pool: Pool, flavour: str) -> None:
    mpiexec = shutil.which(f"mpiexec.{flavour}")
    if mpiexec is None:
        pytest.skip(f"{flavour} is not installed")
    strategy = MPI(mpiexec=mpiexec)
    assert [said_by(pool, strategy=strategy)["warm"] for _ in range(2)] == [False, True]
    launchers = [event.data["launcher"] for event in muster.open_run().events() if event.kind == "run_phase"]
    assert Path(mpiexec).name in launchers


@pytest.mark.slow
def test_what_a_fork_shares_with_its_template_counts_as_its_workers_memory(here: Path) -> None:
    """It counts half for the fork, by what the kernel says, and half for the template, which this worker alone uses."""
    package = here.parent / "site-packages" / "heavy" / "__init__.py"
    package.write_text(HEAVY.format(version=1) + "HELD = bytearray(160_000_000)\n")
    (here / "takes.py").write_text(
        "import heavy\nimport os, time\nprint('warm', heavy.IMPORTED_BY != os.getpid(), flush=True)\n"
        "if os.path.exists('more'):\n    more = b'x' * 100_000_000\n    time.sleep(10)\n"
    )
    options: dict[str, Any] = {"worker_script": "takes.py", "strategy": "processes", "dashboard": False}
    with muster.pool(1, memory=0.22) as pool:
        for _ in ("cold", "warm"):
            pool.run_cluster(**options)
            eventually(lambda: "importing" not in repr(pool), "the imports for the next run")
        assert "warm True" in muster.open_run().logs("worker-0")
        assert pool.memory > 160e6
        (here / "more").touch()
        with pytest.raises(WorkerOutOfMemory):
            pool.run_cluster(**options)
        assert "warm True" in muster.open_run().logs("worker-0")


@pytest.mark.slow
def test_a_notebook_is_told_once_how_the_next_run_starts_sooner(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("muster.api.is_notebook", lambda: True)
    monkeypatch.setattr("muster.api._cold", [])
    monkeypatch.setattr("muster.api.LONG_IMPORTS", 0.5)
    said = []
    for number in range(6):
        if number == 2:  # after two that have imported for no time at all
            package = here.parent / "site-packages" / "heavy" / "__init__.py"
            package.write_text("import time\ntime.sleep(1.5)\n" + package.read_text())
        muster.run_cluster(1, strategy="processes", worker_script="train.py", dashboard=False, memory=0.5)
        said.append("reuse=True" in capsys.readouterr().out)
    assert said == [False, False, False, True, False, False]


def test_an_edited_script_and_an_edited_module_are_seen(pool: Pool, here: Path) -> None:
    assert said_by(pool)["warm"] is False
    (here / "helper.py").write_text("VALUE = 22\n")
    edited = said_by(pool)
    assert (edited["warm"], edited["helper"], edited["script"]) == (True, 22, 1)
    (here / "train.py").write_text(SAYS.replace('"script": 1', '"script": 22'))
    edited = said_by(pool)
    assert (edited["warm"], edited["helper"], edited["script"]) == (True, 22, 22)


def test_what_a_script_does_before_its_imports_is_seen(pool: Pool, here: Path) -> None:
    assert said_by(pool)["warm"] is False
    (here / "train.py").write_text("import os\nos.environ['GIVEN'] = 'before'\n" + SAYS)
    assert said_by(pool)["warm"] is False  # what its packages see when they are imported is not what they saw


def test_another_environment_variable_is_seen(pool: Pool, here: Path) -> None:
    assert said_by(pool)["warm"] is False
    given = said_by(pool, env={"GIVEN": "yes"})
    assert (given["warm"], given["given"]) == (False, "yes")
    assert said_by(pool, env={"GIVEN": "yes"})["warm"] is True


@pytest.mark.slow
def test_an_upgraded_package_is_seen(pool: Pool, here: Path) -> None:
    assert said_by(pool)["warm"] is False
    (here.parent / "site-packages" / "heavy" / "__init__.py").write_text(HEAVY.format(version=22))
    upgraded = said_by(pool)
    assert (upgraded["warm"], upgraded["version"]) == (False, 22)
    assert said_by(pool)["warm"] is True
    (here / "heavy.py").write_text(HEAVY.format(version=333))  # of the project, in front of the installed one
    assert said_by(pool)["version"] == 333


# Leaves a daemon (a fork that has not exec'd anything), a port, a file, a variable and a module that is patched.
LEAVES = """
import heavy
import os, socket, sys, time, tempfile
from multiprocessing import shared_memory
if sys.argv[1] == "leave":
    heavy.VERSION, os.environ["LEFT"] = "patched", "yes"
    open(os.path.join(tempfile.gettempdir(), "left"), "w").close()
    memory = shared_memory.SharedMemory(create=True, size=1000)
    open(f"memory-{os.environ['MUSTER_WORKER']}", "w").write(memory.name.lstrip("/"))
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
    listener.set_inheritable(True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(f"daemon-{os.environ['MUSTER_WORKER']}", "w").write(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.wait()
    while not os.path.exists(f"daemon-{os.environ['MUSTER_WORKER']}"):
        time.sleep(0.01)
else:
    assert heavy.VERSION == 1 and "LEFT" not in os.environ, "left behind"
    assert not os.listdir(tempfile.gettempdir())
    socket.create_server(("127.0.0.1", int(sys.argv[2]))).close()
"""


# Has work left for its end in a thread, exit functions, objects and open files of its own and of a module.
ENDS = """
import heavy
import atexit, os, threading, time, weakref
import ending

class Thing:
    pass

def finish():
    time.sleep(0.3)
    ending.note("thread")

def complain():
    raise ValueError("an exit function")

atexit.register(ending.note, "exit function")
atexit.register(complain)
thing = Thing()
weakref.finalize(thing, ending.note, "finalizer")
own = ending.Noted("script")
heavy.VERSION = "of the script"
text = open("text", "w")
text.write("x" * 10)
binary = open("binary", "ab+")
binary.write(b"y" * 10)
threading.Thread(target=finish).start()
ending.note("warm" if heavy.IMPORTED_BY != os.getpid() else "cold")
"""
ENDING = """
def note(text):
    with open("noted", "a") as file:
        file.write(text + ",")

class Noted:
    def __init__(self, name):
        self.name, self.itself, self.note = name, self, note

    def __del__(self):
        import heavy
        self.note(self.name + " with heavy " + heavy.VERSION)

text = open("text-of-module", "w")
text.write("z" * 10)
"""


@pytest.mark.slow
def test_a_fork_ends_as_an_interpreter_does(pool: Pool, here: Path) -> None:
    (here / "train.py").write_text(ENDS)
    (here / "ending.py").write_text(ENDING)
    left = []
    for start in ("cold", "warm"):
        pool.run_cluster(1, strategy="processes", worker_script="train.py", dashboard=False)
        eventually(lambda: "importing" not in repr(pool), "the imports for the next run")
        files = [Path(name) for name in ("noted", "text", "binary", "text-of-module")]
        noted, *texts = [path.read_text() for path in files]
        assert noted.startswith(f"{start},thread,")
        left.append([sorted(noted.split(",")[1:]), *texts])
        for path in files:
            path.unlink()
    cold, warm = left
    assert warm == cold
    assert cold == [
        ["", "exit function", "finalizer", "script with heavy of the script", "thread"],
        "x" * 10,
        "y" * 10,
        "z" * 10,
    ]


@pytest.mark.slow
def test_a_fork_writes_what_writers_of_summaries_still_have(here: Path) -> None:
    tensorflow = pytest.importorskip("tensorflow")
    (here / "train.py").write_text(
        "import os\nimport tensorflow as tf\n"
        "folder = os.environ['MUSTER_RUN_ID']\n"
        "own = tf.summary.create_file_writer(f'own-{folder}')\n"
        "tf.summary.create_file_writer(f'default-{folder}').set_as_default()\n"
        "for step in range(20):\n"
        "    tf.summary.scalar('loss', 1.0, step=step)\n"
        "    with own.as_default():\n"
        "        tf.summary.scalar('loss', 1.0, step=step)\n"
    )
    with muster.pool(1, memory=2) as pool:
        for _ in ("cold", "warm"):
            cluster = pool.run_cluster(1, strategy="processes", worker_script="train.py", dashboard=False).cluster
            eventually(lambda: "importing" not in repr(pool), "the imports for the next run", timeout=120)
            for writer in ("own", "default"):
                (written,) = map(str, (here / f"{writer}-{cluster.run_id}").iterdir())
                assert len(list(tensorflow.data.TFRecordDataset(written))) == 21  # and what the file begins with
        assert "warm>" in repr(pool)


def test_nothing_of_a_run_reaches_the_next(pool: Pool, here: Path) -> None:
    (here / "leaves.py").write_text(LEAVES)
    port = next(number for number in range(21000, 22000) if free_of(number))
    for words in (["leave", port], ["leave", port], ["look", port]):  # of a rank that starts cold, and of a fork
        cluster = pool.run_cluster(
            1, worker_script="leaves.py", strategy="processes", args=words, dashboard=False
        ).cluster
        assert cluster.result.status == "succeeded"
        assert free_of(port)
        assert not linux.marked("MUSTER_RUN_ID", cluster.run_id)
        assert is_gone(int((here / "daemon-worker-0").read_text()))
        assert not Path("/dev/shm", (here / "memory-worker-0").read_text()).exists()
        eventually(lambda: "importing" not in repr(pool), "the imports for the next run")


@pytest.mark.slow
def test_a_script_that_fails_fails_as_ever(pool: Pool, here: Path) -> None:
    (here / "fails.py").write_text(
        "import heavy, sys\nsys.stdout.write('half a line')\nraise ValueError(heavy.VERSION)"
    )
    for _ in range(2):
        with pytest.raises(ScriptFailed, match="ValueError: 1"):
            pool.run_cluster(worker_script="fails.py", strategy="processes", dashboard=False)
        eventually(lambda: "importing" not in repr(pool), "the imports for the next run")
    (here / "exits.py").write_text("import heavy, os, sys\nsys.exit(7)")
    with pytest.raises(ScriptFailed, match="status 7"):
        pool.run_cluster(worker_script="exits.py", strategy="processes", dashboard=False)


def test_what_may_not_be_forked_starts_cold_and_says_why(pool: Pool, here: Path) -> None:
    package = here.parent / "site-packages" / "heavy" / "__init__.py"
    package.write_text(
        HEAVY.format(version=1)
        + "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    assert said_by(pool)["warm"] is False
    assert "cold, as its imports leave a thread" in repr(pool)
    assert said_by(pool)["warm"] is False


def test_an_empty_entry_of_the_python_path_is_the_working_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}")
    with muster.pool(2, memory=0.5) as pool:
        cold, warm = said_by(pool), said_by(pool)
        assert (cold["warm"], warm["warm"]) == (False, True)
        assert [path for path in cold["path"] if "muster-" not in path] == [
            path for path in warm["path"] if "muster-" not in path
        ]
        (here / "heavy.py").write_text(HEAVY.format(version=333))
        assert said_by(pool)["version"] == 333


@pytest.mark.slow
def test_whatever_makes_it_cold_is_said(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = here.parent / "site-packages" / "heavy" / "__init__.py"

    def log() -> str:
        return muster.open_run().logs("worker-0")

    with monkeypatch.context() as relative, muster.pool(2, memory=0.5) as pool:
        relative.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}lib")
        assert said_by(pool)["warm"] is False
        assert "cold, as its PYTHONPATH names folders by relative paths" in repr(pool)
        assert "starts cold: its PYTHONPATH names folders by relative paths" in log()
    with muster.pool(2, memory=0.5) as pool:
        (here / "bare.py").write_text("print('bare')\n")
        pool.run_cluster(worker_script="bare.py", strategy="processes", dashboard=False)
        assert "cold, as the script begins with no imports of packages" in repr(pool)
        assert "starts cold" not in log(), "it would not start sooner"
        said_by(pool)
        package.write_text(HEAVY.format(version=22))
        assert said_by(pool)["warm"] is False
        assert f"starts cold: {package} has changed" in log()
    with muster.pool(
        2, memory=0.5, idle_minutes=0.02
    ) as pool:  # not above: between two runs on a slow machine it is long
        said_by(pool)
        eventually(lambda: "cold, as it was not used for 0.02 minutes" in repr(pool), "it is idle")


def test_the_stacks_of_a_fork_are_those_of_the_script(pool: Pool, here: Path) -> None:
    (here / "waits.py").write_text(
        "import heavy\nimport os, time\nprint('warm', heavy.IMPORTED_BY != os.getpid(), flush=True)\n"
        f"while not os.path.exists({str(here / 'go')!r}):\n    time.sleep(0.01)\n"
    )
    (here / "go").touch()
    pool.run_cluster(1, worker_script="waits.py", strategy="processes", dashboard=False)
    eventually(lambda: "importing" not in repr(pool), "the imports for the next run")
    (here / "go").unlink()
    running = pool.run_cluster(1, worker_script="waits.py", strategy="processes", dashboard=False, wait=False).cluster
    eventually(lambda: "warm True" in running.logs("worker-0"), "the fork")
    (stack,) = running.stacks().values()
    (here / "go").touch()
    running.wait()
    assert "waits.py" in str(stack)
    assert "runner.py" not in str(stack)
    assert "template.py" not in str(stack)


# In a template: waits until it may go on, and tells which version it is by then.
SLOW = """
import os, sys, time
VERSION, IMPORTED_BY = {version}, os.getpid()
if "_muster_agent" in sys.modules:
    open({go!r} + ".begun", "w").close()
    while not os.path.exists({go!r}):
        time.sleep(0.01)
"""


def test_a_package_that_is_changed_while_it_is_imported_is_imported_again(pool: Pool, here: Path) -> None:
    package, go = here.parent / "site-packages" / "heavy" / "__init__.py", here / "go"
    package.write_text(SLOW.format(version=1, go=str(go)))
    assert pool.run_cluster(worker_script="train.py", strategy="processes", dashboard=False).cluster.result
    eventually(Path(f"{go}.begun").exists, "the imports")
    package.write_text(SLOW.format(version=22, go=str(go)))  # longer: Python itself goes by the second and the size
    go.touch()
    edited = said_by(pool)
    assert (edited["warm"], edited["version"]) == (False, 22)
    assert said_by(pool)["warm"] is True


def test_a_template_that_may_not_be_used_ends_with_all_that_its_imports_have_started(pool: Pool, here: Path) -> None:
    package, child = here.parent / "site-packages" / "heavy" / "__init__.py", here / "child"
    package.write_text(
        HEAVY.format(version=1)
        + "import subprocess, sys, threading\n"
        + "if '_muster_agent' in sys.modules:\n"
        + "    nowhere = dict.fromkeys(['stdin', 'stdout', 'stderr'], subprocess.DEVNULL)\n"
        + f"    open({str(child)!r}, 'w').write(str(subprocess.Popen(['sleep', '600'], **nowhere).pid))\n"
        + "    import atexit; atexit.register(threading.Event().wait)\n"
    )
    assert said_by(pool)["warm"] is False
    assert "cold, as its imports leave a process" in repr(pool)
    eventually(lambda: pool.memory == 0, "the end of the template")
    eventually(lambda: is_gone(int(child.read_text())), "the end of what it has started")


def test_a_pool_whose_guard_is_killed_begins_again(pool: Pool) -> None:
    assert said_by(pool)["warm"] is False
    (guard,) = guards_here()
    os.kill(guard, signal.SIGKILL)
    eventually(lambda: is_gone(guard), "the end of the guard")
    assert said_by(pool)["warm"] is False
    assert said_by(pool)["warm"] is True


def test_a_run_that_waits_for_the_template_is_interrupted_at_once_and_a_closed_pool_leaves_nothing(
    here: Path,
) -> None:
    package = here.parent / "site-packages" / "heavy" / "__init__.py"
    package.write_text(SLOW.format(version=1, go=str(here / "never")))
    with muster.pool(1, memory=0.5) as pool:
        options: dict[str, Any] = {"worker_script": "train.py", "strategy": "processes", "dashboard": False}
        pool.run_cluster(**options)
        eventually(lambda: "importing" in repr(pool), "the imports")
        waiting = threading.Timer(0.5, _thread.interrupt_main)
        waiting.start()
        began_at = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            pool.run_cluster(**options)
        assert time.monotonic() - began_at < 10
        assert "importing" in repr(pool)

        def run_late() -> None:
            with contextlib.suppress(RunStopped):  # as it is, once it has begun
                pool.run_cluster(**options)

        late = threading.Thread(target=run_late)
        late.start()
        eventually(lambda: pool._location.arguments["reuse"]._runs == 1, "it has begun")
    late.join()
    eventually(lambda: not guards_here(), "the end of its guard")


def guards_here() -> list[int]:
    """The guards of this process."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "guard" in child.cmdline():
                found.append(child.pid)
    return found


def test_polls_do_not_grow_with_the_number_of_runs(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, answers = GuardProcess.ask, []

    def ask(guard: GuardProcess, request: str, **fields: Any) -> dict[str, Any]:
        answer = exchange(guard, request, **fields)
        if request == "poll":
            answers.append(len(answer["workers"]))
        return answer

    monkeypatch.setattr(GuardProcess, "ask", ask)
    for _ in range(2):
        said_by(pool, warm=False)
    assert max(answers) == pool.n_workers


def test_warm_is_turned_off_and_the_pool_is_exact_about_what_it_has(pool: Pool) -> None:
    assert said_by(pool, warm=False)["warm"] is False
    assert repr(pool) == "<Pool of 2 workers on this machine, 1 core, 0.5 GB each: cold>"
    with muster.pool(1, memory=0.5) as one:
        assert repr(one).startswith("<Pool of 1 worker on")
    with pytest.raises(JobError, match="The pool has 2 workers, fewer than 3"):
        pool.run_cluster(3, worker_script="train.py")
    with pytest.raises(JobError, match="have cpu already"):
        pool.run_cluster(worker_script="train.py", cpu=2)
    with pytest.raises(JobError, match="cannot be detached"):
        pool.run_cluster(worker_script="train.py", detach="1h")
    pool.close()
    assert "closed" in repr(pool)
    with pytest.raises(JobError, match="closed"):
        pool.run_cluster(worker_script="train.py")


def test_only_runs_of_a_session_on_this_machine_keep_workers_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"strategy": "processes", "worker_script": "train.py", "dashboard": False}
    elsewhere: dict[str, Any] = {"platform": "hosts", "hosts": ["h1"]}
    with pytest.raises(PlatformUnsupported, match="workers on this machine"):
        muster.run_cluster(1, reuse=True, **elsewhere, **options)
    with pytest.raises(JobError, match="A detached run keeps nothing"):
        muster.run_cluster(1, reuse=True, detach="5m", **options)
    monkeypatch.setenv("MUSTER_REUSE", "1")  # which is for runs where that is possible, and refuses none
    assert kept_for(None, None, False) is shared()
    assert kept_for(None, "hosts", False) is None
    assert kept_for(None, None, True) is None


SESSION = """
import muster, sys, time
muster.run_cluster(1, strategy="processes", worker_script="train.py", dashboard=False, memory=0.5, reuse=True)
from muster.platforms.kept import shared
while shared().warmth["state"] == "importing":
    time.sleep(0.01)
muster.run_cluster(1, strategy="processes", worker_script="train.py", dashboard=False, memory=0.5, reuse=True)
print(shared().warmth["pid"], flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_nothing_stays_of_a_session_that_is_killed(here: Path) -> None:
    session = subprocess.Popen([sys.executable, "-c", SESSION], stdout=subprocess.PIPE, text=True)
    assert session.stdout is not None
    template = int(session.stdout.readline())
    assert '"warm": true' in (here / "said-worker-0.json").read_text()
    assert not is_gone(template)
    os.kill(session.pid, signal.SIGKILL)
    session.wait()
    session.stdout.close()
    eventually(lambda: is_gone(template), "the template goes with its session")


def test_an_idle_pool_lets_go_of_everything(here: Path) -> None:
    with muster.pool(1, memory=0.5, idle_minutes=0.01) as pool:
        assert said_by(pool)["warm"] is False
        eventually(lambda: "cold" in repr(pool), "the end of the idle time")
        assert said_by(pool)["warm"] is False
