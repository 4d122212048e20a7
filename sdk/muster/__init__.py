"""Muster: distributed deep learning from a notebook. Its main function is ``muster.run_cluster``."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors only: `import muster` imports none of these
    from muster.api import attach as attach
    from muster.api import detach as detach
    from muster.api import doctor as doctor
    from muster.api import run_cluster as run_cluster
    from muster.board.tensorboard import tensorboard as tensorboard
    from muster.errors import MusterError as MusterError
    from muster.errors import RunFailed as RunFailed
    from muster.job import Job as Job
    from muster.job import Resources as Resources
    from muster.records.lookup import list_runs as list_runs
    from muster.records.lookup import open_run as open_run
    from muster.run.cluster import Cluster as Cluster
    from muster.strategies.horovod import Horovod as Horovod
    from muster.strategies.mpi import MPI as MPI
    from muster.strategies.multi_worker import MultiWorker as MultiWorker
    from muster.strategies.parameter_server import ParameterServer as ParameterServer
    from muster.strategies.processes import Processes as Processes
    from muster.workbench.workers import await_workers as await_workers
    from muster.workbench.workers import launch_workers as launch_workers
    from muster.workbench.workers import list_workers as list_workers
    from muster.workbench.workers import stop_workers as stop_workers
    from muster.worker_pool import pool as pool

__version__ = "0.1.0"

_PUBLIC = {
    "Cluster": "muster.run.cluster",
    "Horovod": "muster.strategies.horovod",
    "Job": "muster.job",
    "MPI": "muster.strategies.mpi",
    "MultiWorker": "muster.strategies.multi_worker",
    "MusterError": "muster.errors",
    "ParameterServer": "muster.strategies.parameter_server",
    "Processes": "muster.strategies.processes",
    "Resources": "muster.job",
    "RunFailed": "muster.errors",
    "attach": "muster.api",
    "await_workers": "muster.workbench.workers",
    "detach": "muster.api",
    "doctor": "muster.api",
    "launch_workers": "muster.workbench.workers",
    "list_runs": "muster.records.lookup",
    "list_workers": "muster.workbench.workers",
    "open_run": "muster.records.lookup",
    "pool": "muster.worker_pool",
    "run_cluster": "muster.api",
    "stop_workers": "muster.workbench.workers",
    "tensorboard": "muster.board.tensorboard",
}

_LAUNCHING = ("run", "launch", "start", "train", "submit")  # names of run_cluster in other libraries

_SUBPACKAGES = ("errors", "events", "testing", "training")  # those that the reference uses as muster.NAME

__all__ = sorted(_PUBLIC)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that ``import muster`` costs nothing."""
    if name in _SUBPACKAGES:
        return import_module(f"muster.{name}")
    if name not in _PUBLIC:
        hint = f": it is muster.training.{name}" if name in import_module("muster.training").__all__ else _near(name)
        # Without the object: with it Python would append a suggestion of its own to the message.
        raise AttributeError(f"module 'muster' has no attribute {name!r}{hint}", name=name, obj=None)
    from muster.runtime.imports import import_at_once

    value = getattr(import_at_once(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def _near(name: str) -> str:
    """Return the end of an error message that suggests the most similar public name; empty if there is none."""
    import difflib

    if name.startswith("_"):
        return ""
    if name in _LAUNCHING:
        return ": is it muster.run_cluster?"
    of_run = getattr(import_module("muster.records.runs").Run, name, None)
    if of_run is not None:
        return f": a run has it, such as muster.open_run().{name}{'()' if callable(of_run) else ''}"
    plain = {known.lower(): known for known in __dir__()}
    near = difflib.get_close_matches(name.lower(), plain, n=1)
    return f": is it muster.{plain[near[0]]}?" if near else ""


def __dir__() -> list[str]:
    """Return the names for completion, without ``detach`` and ``testing``, which few users need."""
    return sorted({*_PUBLIC, *_SUBPACKAGES, "__version__"} - {"detach", "testing"})


def _show_in_notebooks() -> None:
    """Make IPython display clusters and runs as a cell's last value, and not show a stopped run as an error.

    It is done here because these classes do not depend on the dashboards.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return
    formatter = shell.display_formatter.ipython_display_formatter
    for module, name in (("muster.run.cluster", "Cluster"), ("muster.records.runs", "Run")):
        formatter.for_type_by_name(module, name, lambda shown: import_module("muster.dashboard.display").show(shown))
    bundles = shell.display_formatter.mimebundle_formatter  # these only add to what is displayed
    bundles.for_type_by_name(
        "muster.run.address",
        "ClusterAddress",
        lambda run, **_: import_module("muster.dashboard.display").show_again(run.cluster),
    )
    import_module("muster.dashboard.stopped").show_in(shell)
    import_module("muster.dashboard.completion").complete_in(shell)


_show_in_notebooks()
