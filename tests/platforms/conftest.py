"""Fixtures that tests of platforms share."""

from __future__ import annotations

import pytest

from tests.mpi.conftest import installed, mpi
from tests.platforms.container_engine import ContainerEngine

__all__ = ["installed", "mpi"]


@pytest.fixture(params=["engine", "docker"])
def either_engine(request: pytest.FixtureRequest) -> ContainerEngine:
    """Provide Podman and then Docker as the default engine, for tests of messages that each words differently."""
    engine: ContainerEngine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_temporary_folder(leaves_no_folders: None) -> None:
    """Fail tests of this folder that leave a folder of Muster's behind."""
