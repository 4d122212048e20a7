"""Support for tests of runs without processes: no waiting, and the same every time.

A :class:`Scene` is one run. Its workers are played (:class:`ScriptedWorker`), and so is the launcher (:class:`Program`)
and, unless it is the one to be tested, the platform (:class:`ScriptedPlatform`); time is simulated
(:class:`SimulatedLoop`). What drives a run is real, and so is the protocol between session and workers.
"""

from muster.testing.loop import NothingHappens, SimulatedLoop
from muster.testing.platform import ScriptedPlatform
from muster.testing.programs import Program
from muster.testing.scene import Outcome, Scene
from muster.testing.workers import Behaviour, ScriptedWorker

__all__ = [
    "Behaviour",
    "NothingHappens",
    "Outcome",
    "Program",
    "Scene",
    "ScriptedPlatform",
    "ScriptedWorker",
    "SimulatedLoop",
]
