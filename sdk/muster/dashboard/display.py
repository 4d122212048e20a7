"""Display of a cluster or a recorded run in a notebook: as the last line of a cell, or while it runs."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from IPython.display import display

from muster.dashboard import snapshot
from muster.dashboard.base import Controls, Shown
from muster.dashboard.follow import follow
from muster.dashboard.frontend import is_attended
from muster.dashboard.notebook import MakeView, NotebookDashboard
from muster.dashboard.pictures import PictureView
from muster.dashboard.replay import replay
from muster.dashboard.tensorboard import hint
from muster.records.runs import Run
from muster.run.cluster import Cluster
from muster.runtime.latch import Latch

SECONDS_TO_CATCH_UP = 3.0  # at most, to read the events recorded so far of a run

_dashboards: WeakKeyDictionary[Any, NotebookDashboard] = WeakKeyDictionary()
_followers: WeakKeyDictionary[Any, threading.Thread] = WeakKeyDictionary()  # they end with the runs


def dashboard_of(cluster: Shown, kind: str = "") -> NotebookDashboard:
    """Return a dashboard for a cluster that has not been started, and display it below the cell that runs.

    The caller has to subscribe the dashboard to the cluster.
    """
    dashboard = NotebookDashboard(_load(kind), lambda: cluster.run_dir, controls_of(cluster))
    _dashboards[cluster] = dashboard
    dashboard.show()
    return dashboard


def show(shown: Cluster | Run) -> None:
    """Display a cluster or a recorded run: live while it runs."""
    if shown in _dashboards:
        if shown in _followers and Run(shown.run_dir).status != "running":
            _followers[shown].join(SECONDS_TO_CATCH_UP)  # its end may not have been read yet
        _dashboards[shown].show()
    elif isinstance(shown, Run):
        _show_run(shown, shown, Controls(shown.ask_to_stop, shown.stacks))
    elif shown.run_id:
        _show_run(Run(shown.run_dir), shown, controls_of(shown) if shown.is_running else Controls())
    else:
        shown.subscribe(dashboard_of(shown), at_once=True)


def show_again(cluster: Cluster) -> None:
    """Display a cluster that runs, and that an earlier cell shows, below this cell, too."""
    dashboard = _dashboards.get(cluster)
    if dashboard is not None and cluster.is_running:
        dashboard.show()


def controls_of(cluster: Shown) -> Controls:
    """Return the actions that can be taken on a cluster of this session."""
    return Controls(cluster.ask_to_stop, cluster.stacks, is_own=True)


def _show_run(run: Run, shown: Cluster | Run, controls: Controls) -> None:
    if run.status != "running":
        view = replay(run)
        view.notes.extend(filter(None, [hint(run.run_dir)]))
        display(snapshot.mime_bundle(view, run), raw=True)
        return
    dashboard = _dashboards[shown] = NotebookDashboard(_load(""), lambda: run.run_dir, controls)
    caught_up: Latch[bool] = Latch()
    follower = threading.Thread(target=follow, args=(run, dashboard, caught_up), name="muster-follow", daemon=True)
    _followers[shown] = follower
    follower.start()
    caught_up.wait(SECONDS_TO_CATCH_UP)  # so that the first picture shows the run as it is now
    dashboard.show()


def _load(kind: str) -> MakeView:
    """Return the class of the live view: the best that can be loaded, or the one that was asked for.

    A plain kernel, which has no widgets, gets pictures; so does a kernel that runs a notebook unattended, since the
    notebook would be saved with the code of each widget.
    """
    if not kind and not is_attended():
        return PictureView
    if kind != "basic":
        try:
            from muster.dashboard.widget import RunWidget
        except ImportError:
            pass
        else:
            return RunWidget
    try:
        from muster.dashboard.basic import BasicView
    except ImportError:
        return PictureView
    return BasicView
