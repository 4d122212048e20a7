"""The project's files on workers that share none with the session: what goes there, what comes back."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import JobError, PlatformError, ScriptFailed
from muster.events import Event, EventKind
from muster.records import lookup

from tests.plain import Plain
from tests.platforms.apart import Apart, apart
from tests.support import Run, eventually

SCRIPT = """
import os, pathlib, sys
files = sorted(path.as_posix() for path in pathlib.Path(".").rglob("*") if path.is_file())
import helper.inner  # which Python may keep compiled
print(os.path.basename(sys.argv[0]), sys.argv[1:], helper.inner.ANSWER, pathlib.Path("data/räksmörgås").read_text())
print(files)
print(oct(os.stat("tool").st_mode & 0o777), os.readlink("latest"), os.getcwd())
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    files = {
        "train.py": SCRIPT, "helper/inner.py": "ANSWER = 42", "data/räksmörgås": "smörgås", "empty": "", "tool": "#!",
        "ignored.bin": "x" * 1000, ".gitignore": "ignored.bin\n", "kept.log": "y", ".musterignore": "*.log\n",
        "helper/__pycache__/inner.pyc": "z", "env/pyvenv.cfg": "", "env/bin/python": "",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "tool").chmod(0o755)
    (folder / "latest").symlink_to("data")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def platform(run: Run, project: Path, tmp_path: Path) -> Iterator[Apart]:
    platform = apart(project, tmp_path / "cache")
    yield platform
    platform.close()


@pytest.fixture
def launch(platform: Apart) -> Callable[..., muster.Cluster]:
    def launch(script: Any, n: int = 2, **options: Any) -> muster.Cluster:
        options = {"strategy": Plain(), "memory": 0.5, **options}
        cluster: muster.Cluster = muster.run_cluster(n, worker_script=script, platform=platform, **options).cluster
        return cluster

    return launch


def test_the_project_goes_along_and_only_what_has_changed_goes_again(
    launch: Callable[..., muster.Cluster], project: Path, tmp_path: Path
) -> None:
    sent: list[dict[str, int]] = []

    def observe(event: Event) -> None:
        if event.kind == EventKind.TRANSFER:
            sent[-1][str(event.worker)] = event.data["total"]

    for changed in ("", "", "helper/inner.py"):
        if changed:
            (project / changed).write_text("ANSWER = 43")
        sent.append({})
        found = launch("train.py", args=["--fast"], observers=[observe])
        for worker in ("worker-0", "worker-1"):
            said = found.logs(worker).splitlines()
            assert said[0] == f"train.py ['--fast'] {43 if changed else 42} smörgås"
            assert "'.gitignore', '.musterignore', 'data/räksmörgås', 'empty', 'helper/inner.py', 'tool'" in said[1]
            assert "ignored.bin" not in said[1] + said[2]
            assert "kept.log" not in said[1]
            assert "env" not in said[1]
            assert said[2].startswith("0o755 data ")
            assert str(project) not in said[2]
    assert max(sent[0].values()) > 300  # the other finds some of it in the cache of this machine already
    assert sent[1] == {"worker-0": 0, "worker-1": 0}
    assert max(sent[2].values()) == len("ANSWER = 43")
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert "keep the project's files in" in found.explain()
    assert "keep the project's files in" not in launch("calendar", project=[]).explain()


WRITES = """
import os, pathlib, time
worker = os.environ["MUSTER_WORKER"]
for name in ("checkpoints/a/1.h5", "checkpoints/2.h5", "model [1].txt", "other/kept.txt"):
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_text(worker + name)
os.symlink("/etc/passwd", "checkpoints/link")
print("written", flush=True)
"""


def below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


TYPED = """
import os, sys, traceback
sys.path[:0] = {path!r}
import muster
from tests.plain import Plain
from tests.platforms.apart import Apart

def train():
    import inspect
    print(inspect.getsource(train).splitlines()[0])
    raise ValueError("a bad batch")

if __name__ == "__main__":
    platform = Apart(os.getcwd())
    try:
        muster.run_cluster(1, worker_script=train, strategy=Plain(), platform=platform, memory=0.5)
    except muster.RunFailed as error:
        print(error.details)
    platform.close()
    print(muster.open_run().logs("worker-0"))
"""


def test_the_source_of_a_function_goes_along_where_its_file_is_not(project: Path, platform: Apart) -> None:
    """TensorFlow compiles a function from its source, and tracebacks quote it."""
    (project / "typed.py").write_text(TYPED.format(path=sys.path))
    done = subprocess.run([sys.executable, "typed.py"], capture_output=True, text=True, check=True)
    assert done.stdout.count('    raise ValueError("a bad batch")\n') == 2, done.stdout
    assert "\ndef train():\n" in done.stdout


def test_files_are_collected_also_after_a_failure(launch: Callable[..., muster.Cluster], project: Path) -> None:
    (project / "write.py").write_text(WRITES + "raise ValueError('of the script')")
    with pytest.raises(ScriptFailed, match="of the script"):
        launch("write.py", 1, collect=["checkpoints/**", "*.txt", "nothing/here"])  # another is ended before it writes
    folder = lookup.open_run().run_dir / "collected" / "worker-0"
    assert below(folder) == ["checkpoints/2.h5", "checkpoints/a/1.h5", "model [1].txt"]
    assert (folder / "checkpoints/2.h5").read_text() == "worker-0checkpoints/2.h5"
    for pattern in ("/etc/*", "../x", "a/../../b", 7, ["", 3]):
        with pytest.raises(JobError, match="collect"):
            launch("write.py", collect=pattern)


def test_files_are_got_and_put_while_it_runs(
    launch: Callable[..., muster.Cluster], project: Path, tmp_path: Path
) -> None:
    (project / "write.py").write_text(
        WRITES + "while not os.path.exists('in/go'): time.sleep(0.01)\nprint(sorted(os.listdir('in')))"
    )
    cluster = launch("write.py", 1, wait=False)
    try:
        eventually(lambda: "written" in cluster.logs("worker-0"), "it has written")
        assert cluster.get("worker-0", "model [1].txt").read_text() == "worker-0model [1].txt"
        got = cluster.get("worker-0", "checkpoints/", tmp_path / "got")
        assert got == tmp_path / "got" / "checkpoints"
        assert below(got) == ["2.h5", "a/1.h5"]
        with pytest.raises(PlatformError, match=r"worker-0 has no nothing\.h5 in its working directory"):
            cluster.get("worker-0", "nothing.h5")
        for path in ("/etc/passwd", "../../x"):
            with pytest.raises(JobError, match="does not lie in the working directory"):
                cluster.get("worker-0", path)
        with pytest.raises(JobError, match="no worker 'worker-7'"):
            cluster.get("worker-7", "x")
        with pytest.raises(JobError, match="There is no"):
            cluster.put(tmp_path / "nowhere", "worker-0")
        cluster.put(got, "worker-0", "in")
        (tmp_path / "go").write_text("")
        cluster.put(tmp_path / "go", "worker-0", "in/go")
        cluster.wait()
    finally:
        cluster.stop()
    assert cluster.logs("worker-0").splitlines()[-1] == "['2.h5', 'a', 'go']"
    with pytest.raises(JobError, match="is not under way"):
        cluster.get("worker-0", "write.py")


def test_files_of_workers_that_share_this_folder(project: Path, tmp_path: Path) -> None:
    (project / "wait.py").write_text("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n")
    (tmp_path / "go").write_text("on")
    cluster = muster.run_cluster(
        1, worker_script="wait.py", strategy=Plain(), memory=0.5, wait=False, collect="*.py", platform="local"
    ).cluster
    try:
        assert cluster.get("worker-0", "helper", tmp_path).joinpath("inner.py").read_text() == "ANSWER = 42"
        cluster.put(tmp_path / "go", "worker-0")
        cluster.wait()
    finally:
        cluster.stop()
    assert f"the workers write into {project} itself" in cluster.explain()


def test_a_disk_that_is_full_of_what_is_collected_costs_that_alone(
    launch: Callable[..., muster.Cluster],
    project: Path,
    small_disk: Callable[[int], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = small_disk(3000)
    monkeypatch.setenv("MUSTER_HOME", str(home))
    (project / "write.py").write_text("open('large', 'wb').write(bytes(5 << 20)); open('small', 'w').write('here')")
    cluster = launch("write.py", 1, collect=["small", "large"])
    assert cluster.result.status == "succeeded"
    assert (cluster.run_dir / "collected" / "worker-0" / "small").read_text() == "here"
    assert "No space left on device" in cluster.explain()
    assert lookup.open_run().status == "succeeded"
    left = below(cluster.run_dir / "collected")
    assert left == ["worker-0/small"], "half of a file is of no use, and in the way of the record"


def test_a_log_that_finds_no_room_here_is_told(
    launch: Callable[..., muster.Cluster], project: Path, small_disk: Callable[[int], Path], monkeypatch: Any
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(small_disk(1000)))
    (project / "write.py").write_text("print(('x' * 99 + '\\n') * 20_000)")
    cluster = launch("write.py", 1)
    assert cluster.result.status == "succeeded"
    assert re.search(r"The log .*/worker-0.log cannot be written, so it lacks output: No space", cluster.explain())


def test_a_value_that_finds_no_room_here_is_not_taken_for_none(
    launch: Callable[..., muster.Cluster], small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(small_disk(3000)))

    def large() -> bytes:
        import os

        with open(os.environ["MUSTER_RESULTS"] + "/small-" + os.environ["MUSTER_INDEX"], "w") as file:
            file.write("here")
        return bytes(5 << 20)

    cluster = launch(large, 2)
    assert {"small-0", "small-1"} <= {*below(cluster.run_dir / "results")}
    for index in (0, 1):
        lost = (
            rf"Of worker-{index} could not be got: results/.*-{index}\.\w+ \(.*no place here, in {cluster.run_dir}: No"
        )
        assert re.search(lost, cluster.explain())
    for read in (lambda: cluster.result.values, lambda: lookup.open_run().value):
        with pytest.raises(JobError, match=r"What \w+-0 returned could not be got from its worker"):
            read()
