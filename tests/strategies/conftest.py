"""Fixtures of the tests of strategies and their launchers."""

from __future__ import annotations

from pathlib import Path

import pytest

ANSWERS = {"Open MPI": "mpiexec (OpenRTE) 4.1.4", "MPICH": "HYDRA build details:\\n    Version: 4.0.2"}


@pytest.fixture(autouse=True)
def nothing_is_left_running(ends_its_guards: None) -> None:
    """Fail tests of this folder that leave a guard or a login running."""


@pytest.fixture
def mpiexecs(tmp_path: Path) -> dict[str, str]:
    """Return stand-ins for each MPI's launcher, which only print a version as it does; paths by the MPI's name."""
    paths = {}
    for number, (flavour, answer) in enumerate(ANSWERS.items()):
        path = tmp_path / f"mpiexec{number}"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && printf "{answer}\\n"\n')
        path.chmod(0o755)
        paths[flavour] = str(path)
    return paths
