"""Fixtures of the tests of strategies and of what launches them."""

from __future__ import annotations

from pathlib import Path

import pytest

ANSWERS = {"Open MPI": "mpiexec (OpenRTE) 4.1.4", "MPICH": "HYDRA build details:\\n    Version: 4.0.2"}


@pytest.fixture(autouse=True)
def nothing_is_left_running(ends_its_guards: None) -> None:
    """Tests of this folder fail where they leave a guard or a login behind."""


@pytest.fixture
def mpiexecs(tmp_path: Path) -> dict[str, str]:
    """Programs that say what they are as the launchers of each MPI do, for machines that have none; path by name."""
    paths = {}
    for number, (flavour, answer) in enumerate(ANSWERS.items()):
        path = tmp_path / f"mpiexec{number}"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && printf "{answer}\\n"\n')
        path.chmod(0o755)
        paths[flavour] = str(path)
    return paths
