"""Horovod whose ranks agents start, unless a run says otherwise: the strategy of that name where a variable asks."""

from __future__ import annotations

from dataclasses import dataclass

from muster.options.fields import option
from muster.strategies.horovod import Horovod


@dataclass(frozen=True)
class HorovodByAgents(Horovod):
    """The strategy with another default."""

    launcher: str | None = option("agents", "What starts the ranks: horovodrun or agents", metavar="NAME")
