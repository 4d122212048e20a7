"""The container engines that benchmarks measure: the tests' own Podman and Docker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from benchmarks.measuring import Unavailable
from tests.platforms import containers_docker, containers_podman
from tests.platforms.container_engine import ContainerEngine


def engines() -> Iterator[ContainerEngine]:
    """Yield each engine that can be had here while it runs, one after the other.

    Raises:
        Unavailable: there is none.
    """
    without_podman = containers_podman.why_not()
    packages = None if containers_docker.why_not() else containers_docker.fetch()
    if without_podman and packages is None:
        raise Unavailable(without_podman)
    if not without_podman:
        with removed(containers_podman.Podman()) as podman:
            yield podman
    if packages is not None:
        with removed(containers_docker.Docker(packages)) as docker:
            yield docker


@contextlib.contextmanager
def removed(engine: ContainerEngine) -> Iterator[ContainerEngine]:
    """Remove an engine afterwards, with its containers."""
    try:
        yield engine
    finally:
        engine.remove()


def name_of(engine: ContainerEngine) -> str:
    """Return the name of an engine's command: ``podman`` or ``docker``."""
    return engine.command()[0]


@contextlib.contextmanager
def bare_network(engine: ContainerEngine) -> Iterator[str]:
    """Make a network for bare containers, as Muster's have one, and yield its name; remove it with all containers."""
    engine.run("network", "create", "bare")
    try:
        yield "bare"
    finally:
        remove_containers(engine)
        engine.run("network", "rm", "bare")


@contextlib.contextmanager
def default_network(engine: ContainerEngine) -> Iterator[str]:
    """Yield the network that bare containers get by default; for the tests' Docker, which has none, one like it."""
    if name_of(engine) == "podman":
        yield "podman"
        return
    with bare_network(engine) as network:
        yield network


def remove_containers(engine: ContainerEngine) -> None:
    """Remove all of an engine's containers at once, running ones too."""
    if found := engine.run("ps", "--all", "--quiet").split():
        engine.run("rm", *engine.at_once, *found)
