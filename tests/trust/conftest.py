"""Fixtures of hosts to log in to, which are removed after the test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trust.hosts import Host


@pytest.fixture
def make_host() -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def make(**options: Any) -> Host:
        hosts.append(Host(Path(tempfile.mkdtemp(prefix="host-")), **options))
        return hosts[-1]

    yield make
    for host in hosts:
        host.remove()


@pytest.fixture
def host(make_host: Callable[..., Host]) -> Host:
    return make_host()
