"""Fixtures that all tests share."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.by_agents import horovod_as_asked, pytest_addoption, pytest_runtest_call
from tests.engines import (
    docker,
    docker_of_tests,
    engine,
    hosts,
    login,
    login_of_tests,
    network,
    only_here,
    podman,
    slurm,
    slurm_of_tests,
    workers_anywhere,
    workers_elsewhere,
)
from tests.lanes import pytest_collection_modifyitems, pytest_runtest_protocol, pytest_xdist_make_scheduler
from tests.platforms.kubernetes.space import kubernetes_of_tests, space
from tests.serve.service import Service, serving
from tests.support import QUICK_KERAS, Run, StubSession, eventually, guards_and_logins
from tests.workbench.session import WorkbenchSession

__all__ = [
    "docker",
    "docker_of_tests",
    "engine",
    "horovod_as_asked",
    "hosts",
    "kubernetes_of_tests",
    "login",
    "login_of_tests",
    "network",
    "only_here",
    "podman",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_runtest_call",
    "pytest_runtest_protocol",
    "pytest_xdist_make_scheduler",
    "slurm",
    "slurm_of_tests",
    "space",
    "workers_anywhere",
    "workers_elsewhere",
]

# Fixtures that provide an engine of containers or of a cluster, or hosts to log in to.
ENGINES = frozenset({"podman", "docker_of_tests", "either_engine", "slurm_of_tests", "network", "space"})
KNOWN_BUILDS = "horovod-has-gloo"
FOLDERS_SECONDS = 30.0  # time in which guards remove all folders of sessions that tests kill

# Shells make processes that they start in the background ignore interrupts, and all children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Make Keras start quickly here, and in interpreters that get their PYTHONPATH from this environment or from sys.path.
runpy.run_path(str(QUICK_KERAS / "sitecustomize.py"))
sys.path.append(str(QUICK_KERAS))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of many processes would compile all its imports again
sys.dont_write_bytecode = False
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(QUICK_KERAS), os.environ.get("PYTHONPATH")]))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test as slow if it needs an engine, which takes long to start."""
    if not ENGINES.isdisjoint(getattr(item, "fixturenames", ())):
        item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Leave what has been imported and collected out of garbage collections: there is much of it, and it stays."""
    gc.freeze()


@pytest.fixture(scope="session")
def known_builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that remembers whether this interpreter's Horovod has gloo, which takes seconds to find out."""
    return tmp_path_factory.mktemp("known") / KNOWN_BUILDS


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return paths of homes, one for each test. They are counted here: pytest would look through all there are."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def muster_home(known_builds: Path, homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test its own home of Muster's, so that it sees neither other tests' runs nor the developer's."""
    home = next(homes)
    home.mkdir(0o700)
    (home / KNOWN_BUILDS).symlink_to(known_builds)
    monkeypatch.setenv("MUSTER_HOME", str(home))
    monkeypatch.setenv("MUSTER_DASHBOARD", "off")
    return home


@pytest.fixture
def other_python() -> str:
    """Return an interpreter of another version than this one; skip the test if there is none."""
    candidates = [f"python3.{minor}" for minor in range(6, 16) if minor != sys.version_info.minor]
    found = [path for path in map(shutil.which, candidates) if path]
    found += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")) if is_other(path)]
    usable = [path for path in found if "shims" not in path]
    if not usable:
        pytest.skip("no interpreter of another version is here")
    return usable[0]


def is_other(python: Path) -> bool:
    """Return whether a pyenv interpreter is of another minor version than this one."""
    return python.parts[-3].split(".")[:2] != [str(part) for part in sys.version_info[:2]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Provide a run for tests that launch workers without a cluster; fail the test if anything of it is left behind."""
    run = Run(tmp_path)
    yield run
    left: list[str] = []

    def is_gone() -> bool:
        left[:] = run.left_behind()
        return not left

    try:
        eventually(is_gone, f"nothing left of {run.id}", timeout=20)
    except AssertionError:
        pytest.fail(f"20 s after the test there still is, of {run.id}: {'; '.join(left)}")
    finally:
        run.remove()


@pytest.fixture
def ends_its_guards() -> Iterator[None]:
    """Fail a test that leaves a guard or a login running, unless it ran before, such as for all tests of a file."""
    before = guards_and_logins().keys()
    yield
    left: dict[int, str] = {}

    def has_ended() -> bool:
        left.clear()
        left.update({pid: command for pid, command in guards_and_logins().items() if pid not in before})
        return not left

    try:
        eventually(has_ended, "all guards and logins have ended", 30)
    except AssertionError:
        pytest.fail(f"left running: {left}")


class UsualFolder:
    """A plugin that makes fixtures which tests share in the usual temporary folder, not in that of the first test.

    It is a plugin because hooks of this file are not called for fixtures of the whole session.
    """

    def __init__(self) -> None:
        self._usual = os.environ.get("TMPDIR")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Make a fixture, in the usual temporary folder if it outlives a test."""
        if fixturedef.scope == "function":
            return (yield)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", None)
            if self._usual is None:
                patch.delenv("TMPDIR", raising=False)
            else:
                patch.setenv("TMPDIR", self._usual)
            return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin, and let Hypothesis's examples take as long as a busy machine needs."""
    config.pluginmanager.register(UsualFolder())
    settings.register_profile("muster", deadline=None)
    settings.load_profile("muster")


@pytest.fixture
def leaves_no_folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a test its own temporary folder, and fail the test if it leaves a folder of Muster's there."""
    folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # short, as sockets' paths must be
    folder.chmod(0o1777)  # some tests run as another user
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    left: list[str] = []

    def is_empty() -> bool:
        left.clear()
        for path in folder.glob("muster-*"):
            with contextlib.suppress(FileNotFoundError):  # it is being removed
                left.append(f"{path.name}: {sorted(os.listdir(path))}")
        return not left

    try:
        eventually(is_empty, "no folder is left", FOLDERS_SECONDS)
    except AssertionError:
        pytest.fail(f"left in the temporary folder: {'; '.join(left)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Provide a function that mounts a disk of a number of KiB, and returns its folder; skip if it is not allowed."""
    folders: list[Path] = []

    def make(size: int) -> Path:
        folder = tmp_path / f"disk-{len(folders)}"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("only root may mount a disk, and not everywhere")
        folders.append(folder)
        return folder

    yield make
    for folder in folders:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def stub_session() -> Iterator[StubSession]:
    """Provide a stand-in for a session, which agents can connect to."""
    session = StubSession()
    yield session
    session.close()


@pytest.fixture(scope="module")
def workbench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Provide the tests of a file with a workbench, which is ``muster serve`` with a home of its own."""
    project = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_HOME", str(project / ".muster"))
        with serving(project) as service:
            yield service


@pytest.fixture
def workbench_session(workbench: Service, monkeypatch: pytest.MonkeyPatch) -> WorkbenchSession:
    """Return a new session on the workbench, and give this process its environment."""
    session = WorkbenchSession.new(workbench.url, workbench.key)
    for name, value in session.environment.items():
        monkeypatch.setenv(name, value)
    return session
