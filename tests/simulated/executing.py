"""Helpers of tests for a run that goes from its folders to its record."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from muster.records.result import Result
from muster.run.execution import Execution
from muster.testing import SimulatedLoop


def finish(loop: SimulatedLoop, made: Execution) -> Result:
    """Let it go on to its end."""
    loop.run(asyncio.wait(asyncio.all_tasks(loop), timeout=1000))
    assert made.up.is_set()
    assert made.outcome is not None
    return made.outcome


def recorded(made: Execution) -> dict[str, Any]:
    """The record of its end."""
    return dict(json.loads((made.run_dir / "result.json").read_text()))
