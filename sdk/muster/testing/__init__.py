"""Support for deterministic tests of runs, without processes and without waiting.

A :class:`Scene` is one run. Its workers are simulated (:class:`ScriptedWorker`), as are the launcher
(:class:`Program`), time (:class:`SimulatedLoop`) and, unless a platform is to be tested, the platform
(:class:`ScriptedPlatform`). The orchestrator, and the protocol between session and workers, are the real ones.
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
