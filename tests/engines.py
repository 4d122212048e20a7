"""Fixtures that provide hosts to log in to, a Slurm, a Podman or a Docker, and that run a test on workers of each."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import muster
import pytest
from muster.platforms.local import LocalPlatform

from tests.platforms import containers_docker, containers_podman, slurm_engine, slurm_login
from tests.platforms.containers_docker import Docker
from tests.platforms.containers_podman import Podman
from tests.platforms.hosts_network import Network, can_have_networks
from tests.platforms.isolated import Isolated, isolated
from tests.platforms.kubernetes.space import Space
from tests.platforms.slurm_login import LoginMachine
from tests.support import eventually

HOSTS = ("h1", "h2", "h3")


@contextlib.contextmanager
def the_only_one(module: ModuleType) -> Iterator[None]:
    """Fail where another tests' process has an engine of this module: two would choose the same names of bridges."""
    with open(str(module.__file__), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.fail("Another process of the tests has this engine: its files belong in one group (lanes.py).")
        yield


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    """Provide a network of three hosts; skip the tests if this user can make none."""
    if not can_have_networks():
        pytest.skip("hosts need root, ip, unshare and sshd")
    network = Network(HOSTS)
    yield network
    network.remove()


@pytest.fixture
def hosts(network: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """Make the network's hosts known to ``ssh`` and in ``MUSTER_HOSTS``; fail the test if anything is left on them."""
    monkeypatch.setenv("PATH", network.path)
    monkeypatch.setenv("MUSTER_HOSTS", ",".join(f"{name}:2" for name in HOSTS[:2]))
    yield network
    network.expect_nothing_left()


@pytest.fixture(scope="session")
def slurm_of_tests() -> Iterator[slurm_engine.Engine]:
    """Provide a Slurm of two nodes; skip the tests if there can be none."""
    reason = slurm_engine.why_not()
    root = None if reason else slurm_engine.fetch()
    if root is None:
        pytest.skip(reason or "Debian's packages of Slurm cannot be fetched here")
    engine = slurm_engine.Engine(root)
    yield engine
    engine.remove()


@pytest.fixture
def slurm(slurm_of_tests: slurm_engine.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[slurm_engine.Engine]:
    """Put the commands of the tests' Slurm on the search path; fail the test if it leaves a job."""
    monkeypatch.setenv("PATH", slurm_of_tests.path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    yield slurm_of_tests
    slurm_of_tests.expect_nothing_left()


@pytest.fixture(scope="session")
def login_of_tests(slurm_of_tests: slurm_engine.Engine) -> Iterator[LoginMachine]:
    """Provide a login node of the tests' Slurm; skip the tests if there can be none."""
    if slurm_login.why_not():
        pytest.skip(slurm_login.why_not())
    machine = LoginMachine(slurm_of_tests)
    yield machine
    machine.remove()


@pytest.fixture
def login(login_of_tests: LoginMachine, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoginMachine]:
    """Make the login node known to ``ssh``; fail the test if it leaves a job, or anything on the login node."""
    monkeypatch.setenv("PATH", login_of_tests.path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    yield login_of_tests
    try:
        login_of_tests.expect_nothing_left()
    finally:
        login_of_tests.engine.expect_nothing_left()


@pytest.fixture(scope="session")
def docker_of_tests() -> Iterator[Docker]:
    """Provide a Docker of the tests' own; skip the tests if there can be none."""
    reason = containers_docker.why_not()
    root = None if reason else containers_docker.fetch()
    if root is None:
        pytest.skip(reason or "Debian's packages of Docker cannot be fetched here")
    with the_only_one(containers_docker):
        daemon = Docker(root)
        yield daemon
        daemon.remove()


@pytest.fixture
def docker(docker_of_tests: Docker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    """Make the tests' Docker the default engine; fail the test if anything is left on it."""
    monkeypatch.setenv("DOCKER_HOST", docker_of_tests.url)
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_of_tests.folder))
    yield docker_of_tests
    eventually(lambda: docker_of_tests.left_behind() == [], "nothing is left on the engine", timeout=60)


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Provide a Podman of the tests' own; skip the tests if there can be none."""
    if containers_podman.why_not():
        pytest.skip(containers_podman.why_not())
    with the_only_one(containers_podman):
        podman = Podman()
        yield podman
        podman.remove()


@pytest.fixture
def engine(podman: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    """Make the tests' Podman the default container engine; fail the test if anything is left on it."""
    monkeypatch.setenv("CONTAINER_HOST", podman.url)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    yield podman
    eventually(lambda: podman.left_behind() == [], "nothing is left on the engine", timeout=30)


def share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give workers on this machine a view of the files in which the session's and the run's folders are empty."""
    isolated()
    for name in ("storage", "lease_seconds"):
        monkeypatch.setattr(LocalPlatform, name, getattr(Isolated, name))


def elsewhere(name: str, fixture: str, words: str = "") -> Any:
    """Return the parameter of a place that needs an engine: a platform's name, and the fixture that provides it."""
    return pytest.param((name, fixture), id=f"on {name}{words}", marks=[pytest.mark.elsewhere, pytest.mark.slow])


# Places whose workers share nothing with the session, and then all that need an engine.
SHARING_NOTHING = [
    elsewhere("hosts", "hosts"),
    elsewhere("containers", "engine"),
    elsewhere("containers", "docker", " of Docker"),
]
HOSTS_AND_CONTAINERS = SHARING_NOTHING[:2]
ELSEWHERE = [*SHARING_NOTHING, elsewhere("slurm", "slurm"), elsewhere("kubernetes", "space")]


@pytest.fixture(params=["shared files", "no shared files", *ELSEWHERE])
def workers_anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test with workers that share files with the session, as on this machine, and with some that do not.

    ``make elsewhere`` also runs it on hosts, in containers, on Slurm and on Kubernetes. Returns where it is.
    """
    if request.param == "no shared files":
        share_nothing(monkeypatch)
    with placed(request, monkeypatch) as place:
        yield place


@pytest.fixture(params=["shared files", *ELSEWHERE])
def workers_elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test on this machine; with ``make elsewhere`` on hosts, in containers, on Slurm and on Kubernetes, too."""
    with placed(request, monkeypatch) as place:
        yield place


@contextlib.contextmanager
def placed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make the platform that a fixture's parameter names the default, and yield its name, or else the parameter."""
    if isinstance(request.param, str):
        yield request.param
        return
    platform, fixture = request.param
    provided = request.getfixturevalue(fixture)
    monkeypatch.chdir(request.getfixturevalue("tmp_path"))  # which is the project that is sent
    if isinstance(provided, Network):
        monkeypatch.setenv("MUSTER_HOSTS", f"{HOSTS[0]}:1,{HOSTS[1]}:3")  # so that two workers are on two hosts
    if isinstance(provided, Space):
        options = {"platform": platform, "python": provided.python, "cpu": 0.5, **provided.options}
        monkeypatch.setattr(muster, "run_cluster", partial(muster.run_cluster, **options))
    else:
        monkeypatch.setenv("MUSTER_PLATFORM", platform)
    try:
        yield platform
    finally:
        if isinstance(provided, Network):
            provided.remove_what_tensorflow_leaves()


@pytest.fixture
def only_here(request: pytest.FixtureRequest) -> None:
    """Skip a test elsewhere, as what it needs is on this machine alone."""
    if request.node.get_closest_marker("elsewhere"):
        pytest.skip("what it needs is on this machine alone")
