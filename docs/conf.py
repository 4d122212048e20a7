"""Configuration of Sphinx for the documentation of Muster: `make docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sdk"))

import muster

project = "Muster"
author = "The authors of Muster"
project_copyright = "2026, The authors of Muster"
version = release = muster.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "description"
# What only training interpreters and workers have is not needed to describe it.
autodoc_mock_imports = ["horovod", "keras", "tensorflow"]
napoleon_google_docstring = True
napoleon_use_ivar = True
# Docstrings of training modules have `code` in single backticks.
default_role = "code"

html_theme = "furo"
html_title = "Muster"
html_static_path: list[str] = []
