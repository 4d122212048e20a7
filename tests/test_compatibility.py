"""Scripts as they were written for the workbench, with nothing changed but what they import; run as real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from muster import cdsw
from muster.agent import linux

from tests.support import environment, eventually

# Workers report to a session that listens on its own address, and are found and stopped by their ids.
SOCKETS = """
import muster.cdsw as cdsw
import socket, threading

server = socket.socket()
server.bind(("0.0.0.0", 0))
server.listen(2)
code = '''
import os, socket
sock = socket.create_connection((os.environ["CDSW_MASTER_IP"], int(os.environ["PORT"])))
sock.sendall((os.environ["CDSW_ENGINE_ID"] + " " + os.environ["GREETING"] + "\\\\n").encode())
sock.recv(1)
'''
workers = cdsw.launch_workers(2, 0.2, 0.5, 0, "python3", "", code, {"PORT": str(server.getsockname()[1]),
                                                                  "GREETING": "hello"})
running = cdsw.await_workers(workers, wait_for_completion=False)
assert len(running["workers"]) == 2 and running["failures"] == []
assert all(worker["ip_address"] != "unknown" for worker in running["workers"])
connections = [server.accept()[0] for worker in workers]
heard = sorted(connection.makefile().readline().split() for connection in connections)
assert heard == sorted([worker["id"], "hello"] for worker in workers)
late = cdsw.await_workers([worker["id"] for worker in workers], timeout_seconds=0.2)
assert len(late["failures"]) == 2
connections[0].send(b".")
cdsw.stop_workers()
statuses = {worker["status"] for worker in cdsw.await_workers(workers)["failures"]}
print("statuses", statuses, [worker["id"] for worker in cdsw.list_workers()] == [worker["id"] for worker in workers])
"""
# As an engine runs it: an IPython kernel, for which a line with an exclamation mark is a shell command.
SHELL_LINES = """
from muster.cdsw import *
code = \"\"\"
!echo from the shell > shell.txt
files = !ls
print(sorted(files))
open("python.txt", "w").write("from Python")
\"\"\"
workers = launch_workers(1, 0.5, 1, code=code, env={"A": "B"})
done = await_workers(workers, True, 60)
assert not done["failures"], done
print(open("shell.txt").read(), open("python.txt").read())
"""
SCRIPT_AND_FAILURES = """
import muster.cdsw as cdsw
workers = cdsw.launch_workers(n=2, cpu=0.2, memory=0.5, script="work.py", code="never run", kernel="python3")
done = cdsw.await_workers(workers, wait_for_completion=True)
print(len(done["workers"]), len(done["failures"]))
"""
TRAINING = """
import tensorflow as tf

def run(cluster, server, task_index):
    assert cluster.as_dict().keys() == {"ps", "worker"}
    with open("task-%d" % task_index, "w") as file:
        file.write(server.target)
"""
WITH_SCRIPT = """
from muster.cdsw_tensorflow_utils import *
cluster_spec, session_addr = run_cluster(2, 1, 0.5, 1, 0, "train")
assert (cluster_spec, session_addr) == (None, None)
print("trained")
"""
SERVERS_ONLY = """
import muster.cdsw as cdsw
from muster import cdsw_tensorflow_utils
import tensorflow as tf

cluster_spec, session_addr = cdsw_tensorflow_utils.run_cluster(n_workers=1, n_ps=1, cpu=0.5, memory=1)
tf.compat.v1.disable_eager_execution()
with tf.device("/job:ps/task:0"):
    total = tf.constant(40) + tf.constant(2)
with tf.compat.v1.Session(session_addr) as session:
    print("computed", session.run(total))
print(sorted(cluster_spec), [worker["status"] for worker in cdsw.list_workers()])
cdsw.stop_workers()
cdsw.await_workers(cdsw.list_workers())
print({worker["status"] for worker in cdsw.list_workers()})
"""


HARDWARE = """
import warnings
import muster.cdsw as cdsw
with warnings.catch_warnings(record=True) as warned:
    launched = cdsw.launch_workers(1, 0.2, 0.5, 0, "python3", "", "pass", 7, None, 2, {"A": "B"}, "mine")
print(warned[0].message, launched[0]["id"], cdsw.await_workers(launched)["failures"])
"""


def run(program: str, folder: Path) -> str:
    """Run a script whose processes must all be gone after it; return what it prints."""
    (folder / "main.py").write_text(program)
    mark = str(folder)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=folder, capture_output=True, text=True, timeout=120,
        env=environment(MUSTER_HOME=str(folder / "home"), MARK=mark, TF_CPP_MIN_LOG_LEVEL="3"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    eventually(lambda: not linux.marked("MARK", mark), "nothing left of the script")
    return done.stdout


def test_workers_report_to_their_session_and_are_stopped_all_at_once(tmp_path: Path) -> None:
    assert "statuses {'stopped'} True" in run(SOCKETS, tmp_path)


def test_code_runs_as_in_a_notebook(tmp_path: Path) -> None:
    assert run(SHELL_LINES, tmp_path) == "from the shell\n from Python\n"


def test_a_script_wins_over_code(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import os\ntry:\n    os.mkdir('first')\nexcept OSError:\n    raise SystemExit(3)\n"
    )
    assert run(SCRIPT_AND_FAILURES, tmp_path) == "1 1\n"


@pytest.mark.slow
def test_the_tensorflow_helper_runs_a_script_on_every_worker(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    assert "trained" in run(WITH_SCRIPT, tmp_path)
    assert {path.name for path in tmp_path.glob("task-*")} == {"task-0", "task-1"}
    assert (tmp_path / "task-1").read_text().startswith("grpc://")


@pytest.mark.slow
def test_the_tensorflow_helper_starts_servers_for_the_session(tmp_path: Path) -> None:
    output = run(SERVERS_ONLY, tmp_path)
    assert "computed 42" in output
    assert "['ps', 'worker'] ['running', 'running']" in output
    assert output.rstrip().endswith("{'stopped'}")


def test_hardware_of_the_workbench_is_ignored_with_a_warning(tmp_path: Path) -> None:
    output = run(HARDWARE, tmp_path)
    assert "hardware: accelerator_label_id, resource_group_id" in output
    assert ".mine-" in output
    assert output.endswith("[]\n")


def test_the_names_are_those_of_the_originals() -> None:
    from muster import cdsw_tensorflow_utils

    assert cdsw.__all__ == ["await_workers", "launch_workers", "list_workers", "stop_workers"]
    assert cdsw_tensorflow_utils.__all__ == ["run_cluster", "tensorboard"]
