"""Keras without scikit-learn and matplotlib, in interpreters that have this folder in their PYTHONPATH.

Keras imports both wherever they are installed, for wrappers and galleries that nothing here uses, and they take two of
the six seconds in which a process with TensorFlow starts. So they are hidden from Keras; everybody else still finds
them. The test of the demo goes without this, as users do.
"""

import sys


class HiddenFromKeras:
    """A finder, asked before all others."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        # type: (str, object, object) -> None
        """Refuse the two where Keras asks; find nothing else."""
        if name in ("sklearn", "matplotlib") and importer().split(".")[0] == "keras":
            raise ModuleNotFoundError("hidden from Keras", name=name)


def importer():
    # type: () -> str
    """The module whose import statement is being run."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("importlib", "_frozen_importlib")):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


sys.meta_path.insert(0, HiddenFromKeras)
