"""Fixtures of tests with hosts to log in to, a Slurm, or a Docker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.platforms import containers_docker, slurm_engine
from tests.platforms.container_engine import ContainerEngine
from tests.platforms.containers_docker import Docker
from tests.platforms.hosts_network import Network, can_have_networks
from tests.support import eventually

HOSTS = ("h1", "h2", "h3")


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
def docker_of_tests() -> Iterator[Docker]:
    """Provide a Docker of the tests' own; skip the tests if there can be none."""
    reason = containers_docker.why_not()
    root = None if reason else containers_docker.fetch()
    if root is None:
        pytest.skip(reason or "Debian's packages of Docker cannot be fetched here")
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


@pytest.fixture(params=["engine", "docker"])
def either_engine(request: pytest.FixtureRequest) -> ContainerEngine:
    """Provide Podman and then Docker as the default engine, for tests of messages that each words differently."""
    engine: ContainerEngine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_temporary_folder(leaves_no_folders: None) -> None:
    """Fail tests of this folder that leave a folder of Muster's behind."""
