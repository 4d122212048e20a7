"""Fixtures of the fault suite."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.strategies.horovod_launcher import remember_gloo, remembers_gloo

from tests.engines import placed
from tests.faults.scene import HERE, POOL, Scene
from tests.mpi.conftest import installed, mpi
from tests.support import IMPORT_PATH

__all__ = ["installed", "mpi", "scene"]


@pytest.fixture(params=HERE)
def scene(
    request: pytest.FixtureRequest, known_builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """Provide a scene with a temporary folder of its own; fail the test if anything of a run is left there.

    Its workers are on this machine, unless a test is marked ``anywhere``. ``make elsewhere`` makes all runs of the test
    on one pool as well, before and after which others run there.
    """
    temp = Path(tempfile.mkdtemp(prefix="scene-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(temp))
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    monkeypatch.chdir(tmp_path)
    horovod = importlib.util.find_spec("horovod")
    if horovod is not None and horovod.origin is not None and not remembers_gloo(known_builds, horovod.origin):
        remember_gloo(known_builds, horovod.origin)  # or the first test here would have to find out, which takes long
    scene = Scene(tmp_path, temp)
    try:
        with placed(request, monkeypatch) as place:
            if place == POOL:
                monkeypatch.setenv("PYTHONPATH", IMPORT_PATH.split(os.pathsep)[0])  # without what would keep it cold
                scene.keep_a_pool()
            yield scene
            if place == POOL:
                scene.assert_a_pool_hands_on_nothing()
            scene.assert_nothing_left()
    finally:
        scene.close()
        shutil.rmtree(temp, ignore_errors=True)
