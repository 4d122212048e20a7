"""Images that engines pull from a real registry, and how far the pull is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.errors import MusterError

from tests.platforms import containers_docker
from tests.platforms.container_engine import ContainerEngine
from tests.platforms.registry import Registry
from tests.platforms.test_containers import run
from tests.pools.test_cut_links import Proxy
from tests.support import free_port


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the user's with a script, which is the working directory."""
    (tmp_path / "train.py").write_text("import sys\nprint(sys.executable)\n")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    """A registry that runs."""
    root = None if containers_docker.why_not() else containers_docker.fetch()
    if root is None:
        pytest.skip(containers_docker.why_not() or "Debian's packages of Docker cannot be fetched here")
    registry = Registry(root)
    yield registry
    registry.remove()


def test_an_image_is_pulled_and_how_far_that_is_comes_in_percent(
    either_engine: ContainerEngine, registry: Registry
) -> None:
    """The network is slow until that is seen; the small layer comes first, and is not taken for the whole image."""
    slow = Proxy("127.0.0.1", registry.port, pause=0.02)
    pushed, image = f"{registry.address}/team/python:1", f"127.0.0.1:{slow.port}/team/python:1"
    either_engine.add_layer(either_engine.add_python(), "small", b"soon there", pushed)
    either_engine.run("push", pushed)
    either_engine.run("rmi", pushed, either_engine.add_python())
    percents: list[int] = []

    def observe(event: Any) -> None:
        found = re.search(rf"pulling the image {image}: (\d+) % of \d\d\.\d MB", str(event))
        percents.extend(int(percent) for percent in (found.groups() if found else ()))
        if percents and percents[-1] > 0:
            slow.pause = 0.0

    try:
        found = run("train.py", image=image, observers=[observe])
    finally:
        slow.close()
    assert found.logs("worker-1") == "/usr/bin/python3\n"
    assert percents == sorted(percents)
    assert [percent for percent in percents if 0 < percent < 100], percents
    either_engine.run("rmi", image)


def test_an_image_that_the_registry_does_not_have(either_engine: ContainerEngine, registry: Registry) -> None:
    with pytest.raises(MusterError, match="could not be pulled: the registry has no such image"):
        run("train.py", 1, image=f"{registry.address}/team/nowhere:1")


def test_a_registry_that_does_not_run(either_engine: ContainerEngine) -> None:
    image = f"localhost:{free_port()}/nowhere:1"
    with pytest.raises(MusterError) as raised:
        run("train.py", 1, image=image)
    assert f"{image} could not be pulled: the registry does not answer" in raised.value.message
    assert "Try:" not in raised.value.message
    assert raised.value.advice == "whether this machine reaches it, or image= another name"
    assert raised.value.log is None, "nothing has been written there"
