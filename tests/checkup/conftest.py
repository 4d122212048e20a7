"""Fixture of hosts to log in to."""

from tests.trust.conftest import make_host

__all__ = ["make_host"]
