"""Fixtures that all tests of this folder share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_temporary_folder(leaves_no_folders: None) -> None:
    """Fail tests of this folder that leave a folder of Muster's behind."""
