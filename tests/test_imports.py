"""The modules that a template imports for a script, as its text says."""

from __future__ import annotations

from pathlib import Path

from muster.checks.imports import imports_of
from muster.job import Script

SCRIPT = """
import json
import keras as k, numpy.linalg
import helper
from muster.training import keras as distributed
from torch import nn
from . import beside

def later():
    import pandas

model = k.layers.Dense(1)
json.dumps(nn.Linear)
"""


def script(folder: Path, text: str) -> Script:
    (folder / "train.py").write_text(text)
    (folder / "helper.py").write_text("import scipy, os\nfrom package import part\n")
    (folder / "package").mkdir(exist_ok=True)
    (folder / "package" / "__init__.py").write_text("import sklearn\n")
    return Script("file", str(folder / "train.py"))


def test_installed_packages_are_found_through_the_modules_of_the_project_and_of_muster(tmp_path: Path) -> None:
    found = imports_of(script(tmp_path, SCRIPT))
    packages = {name.partition(":")[0].partition(".")[0] for name in found}
    assert packages == {"keras", "numpy", "scipy", "sklearn", "torch", "tensorflow", "horovod"}
    assert {"numpy.linalg", "torch:nn", "keras:layers.Dense", "horovod.tensorflow"} <= set(found)


def test_what_comes_behind_anything_else_is_left_out(tmp_path: Path) -> None:
    first = "import numpy\nSIZE: int = 3\ntry:\n    import torch\nexcept ImportError:\n    torch = None\n"
    for other in (
        'os.environ["KERAS_BACKEND"] = "torch"',
        'sys.path.insert(0, "vendored")',
        "@decorated\ndef function(): pass",
        "import sets",
    ):
        (tmp_path / "sets.py").write_text("import os\nos.environ.update(KERAS_BACKEND='torch')\n")
        assert imports_of(script(tmp_path, f"{first}{other}\nimport keras\n")) == ("numpy", "torch")
    lazy = "import tensorflow as tf\ntf.keras.layers\n"
    assert imports_of(script(tmp_path, lazy)) == ("tensorflow", "tensorflow:keras.layers", "tensorflow:keras")
    sets = "import os\ndef main():\n    os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')\n"
    assert imports_of(script(tmp_path, lazy + sets)) == ("tensorflow",)


def test_what_cannot_be_read_has_no_imports(tmp_path: Path) -> None:
    assert imports_of(None) == ()
    assert imports_of(script(tmp_path, "import keras\nthis is no Python\n")) == ()
    assert imports_of(Script("file", str(tmp_path / "missing.py"))) == ()
    assert imports_of(Script("executable", "/bin/true")) == ()


def test_a_function_sees_the_modules_of_its_notebook() -> None:
    def train() -> object:
        import keras

        return keras.layers, Path

    assert imports_of(None, train)[:1] == ("keras",)
    assert "keras:layers" in imports_of(None, train)
