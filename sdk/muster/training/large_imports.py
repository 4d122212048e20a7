"""Imports of packages that make so many objects that the garbage collector takes long to look through them.

An import of TensorFlow makes half a million objects, which live as long as the interpreter. The collector looks through
all of them again and again: during the import, later, and last as the interpreter ends, which alone takes a second. So
it is off during such an import, and never looks at them afterwards. Standard library and Python 3.6 syntax.
"""

import gc
import io
import sys
import weakref
from importlib.machinery import PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, List, Optional  # noqa: F401  (type comments)

LARGE = ("tensorflow", "keras", "torch", "jax")

_earlier = []  # type: List[weakref.ref[io.IOBase]]  # files that were open before such an import


class Finder:
    """A finder of the large packages, asked before all others."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Optional[ModuleSpec]":
        """Return the spec of a large package, with a loader that keeps the collector away; None for any other."""
        if name not in LARGE:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = Loader(name, spec.loader.path)
        return spec


class Loader(SourceFileLoader):
    """Runs a package while no garbage is collected, and takes what there is then from the collector."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run the package."""
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            _earlier.extend(weakref.ref(found) for found in gc.get_objects() if isinstance(found, io.IOBase))
            super().exec_module(module)
        finally:
            if was_enabled:
                gc.enable()
        if hasattr(gc, "freeze"):
            gc.freeze()


def install() -> None:
    """Have the collector kept away from such imports in this process."""
    sys.meta_path.insert(0, Finder())


def earlier_files() -> "List[io.IOBase]":
    """Return the files that were open before such imports, and that the collector therefore does not know any more."""
    return [file for file in (reference() for reference in _earlier) if file is not None]
