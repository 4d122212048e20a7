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
    """A network of three hosts; skips where this user can make none."""
    if not can_have_networks():
        pytest.skip("hosts need root, ip, unshare and sshd")
    network = Network(HOSTS)
    yield network
    network.remove()


@pytest.fixture
def hosts(network: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """The network, whose hosts ``ssh`` and ``MUSTER_HOSTS`` know now; fails where something is left on them."""
    monkeypatch.setenv("PATH", network.path)
    monkeypatch.setenv("MUSTER_HOSTS", ",".join(f"{name}:2" for name in HOSTS[:2]))
    yield network
    network.expect_nothing_left()


@pytest.fixture(scope="session")
def slurm_of_tests() -> Iterator[slurm_engine.Engine]:
    """A Slurm of two nodes; skips where there can be none."""
    reason = slurm_engine.why_not()
    root = None if reason else slurm_engine.fetch()
    if root is None:
        pytest.skip(reason or "Debian's packages of Slurm cannot be fetched here")
    engine = slurm_engine.Engine(root)
    yield engine
    engine.remove()


@pytest.fixture
def slurm(slurm_of_tests: slurm_engine.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[slurm_engine.Engine]:
    """The Slurm whose commands are on the search path now; fails where a test leaves jobs of its own."""
    monkeypatch.setenv("PATH", slurm_of_tests.path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    yield slurm_of_tests
    slurm_of_tests.clean()


@pytest.fixture(scope="session")
def docker_of_tests() -> Iterator[Docker]:
    """A Docker of the tests' own; skips where there can be none."""
    reason = containers_docker.why_not()
    root = None if reason else containers_docker.fetch()
    if root is None:
        pytest.skip(reason or "Debian's packages of Docker cannot be fetched here")
    daemon = Docker(root)
    yield daemon
    daemon.remove()


@pytest.fixture
def docker(docker_of_tests: Docker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    """The Docker that is used by default; fails the test where something is left on it."""
    monkeypatch.setenv("DOCKER_HOST", docker_of_tests.url)
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_of_tests.folder))
    yield docker_of_tests
    eventually(lambda: docker_of_tests.left_behind() == [], "nothing is left on the engine", timeout=60)


@pytest.fixture(params=["engine", "docker"])
def either_engine(request: pytest.FixtureRequest) -> ContainerEngine:
    """Podman and then Docker, as the engine that is used by default, for what each says in its own words."""
    engine: ContainerEngine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_temporary_folder(leaves_no_folders: None) -> None:
    """Tests of this folder fail where they leave a folder of Muster's behind."""
