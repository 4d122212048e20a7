"""TensorFlow and Keras that start sooner, in interpreters that have this folder in their PYTHONPATH.

Keras imports scikit-learn, matplotlib and IPython wherever they are installed, for wrappers, galleries and an editor of
files that nothing here uses, and the first two alone take two of the six seconds in which a process with TensorFlow
starts. So they are hidden from Keras; everybody else still finds them. And nothing becomes garbage while TensorFlow is
imported, so that it is not looked for, then or later, as in the processes of Muster's scripts. The test of the demo
goes without this, as users do.

Sessions that tests start have agents start Horovod's ranks where TESTS_HOROVOD_BY_AGENTS is set (tests/by_agents.py).
"""

import gc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType


class QuickTensorFlow:
    """A finder, asked before all others."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Refuse the three where Keras asks, and find TensorFlow; nothing else."""
        if name in ("sklearn", "matplotlib", "IPython") and importer().split(".")[0] == "keras":
            raise ModuleNotFoundError("hidden from Keras", name=name)
        if name != "tensorflow":
            return None
        spec = PathFinder.find_spec(name)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = WithoutCollections(name, spec.loader.path)
        return spec


class WithoutCollections(SourceFileLoader):
    """Imports a module, and collects no garbage meanwhile."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        gc.disable()
        try:
            super().exec_module(module)
        finally:
            gc.enable()
        gc.freeze()


class HorovodByAgents:
    """A finder that gives Muster's strategies another default launcher of Horovod."""

    @staticmethod
    def find_spec(name: str, path: "Sequence[str] | None" = None, target: object = None) -> "ModuleSpec | None":
        """Find the module with the table of strategies; nothing else."""
        spec = PathFinder.find_spec(name, path) if name == "muster.strategies" else None
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = WithAnotherHorovod(name, spec.loader.path)
        return spec


class WithAnotherHorovod(SourceFileLoader):
    """Imports the module with the table of strategies, and changes an entry."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        super().exec_module(module)
        module.STRATEGIES["horovod"] = "horovod_by_agents:HorovodByAgents"


def importer() -> str:
    """The module whose import statement is being run."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("importlib", "_frozen_importlib")):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


sys.meta_path.insert(0, QuickTensorFlow)
if os.environ.get("TESTS_HOROVOD_BY_AGENTS"):
    sys.meta_path.insert(0, HorovodByAgents)
