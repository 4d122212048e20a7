"""A recorded run as one self-contained HTML page: the widget of notebooks, with all data that it shows."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from muster.dashboard import snapshot, web
from muster.dashboard.live import LiveState
from muster.dashboard.logwindow import LogWindow
from muster.dashboard.replay import replay
from muster.dashboard.run import RunView
from muster.records.runs import Run

MAX_LOGS = 64  # the workers, failed ones first, whose logs' ends are in the page


def html_page(run: Run) -> str:
    """Return the page as HTML. Without JavaScript it shows the static picture."""
    view = replay(run)
    data = {"snapshot": LiveState(view).snapshot(), "logs": _logs(run, view)}
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{escape(view.name or run.run_id)} · {escape(view.status)}</title>
<style>{web.style()}{web.read("page.css")}</style>
</head>
<body>
<main><noscript>{snapshot.to_html(view)}</noscript></main>
<script type="application/json" id="muster-data">{_embedded(data)}</script>
<script type="module">{web.script()}
{web.read("page.js")}</script>
</body>
</html>
"""


def _logs(run: Run, view: RunView) -> dict[str, dict[str, Any]]:
    """Return the end of each worker's log, in the form in which it is sent to a live view."""
    known = set(run.worker_names)
    shown = [worker.name for worker in view.in_order() if worker.name in known][:MAX_LOGS]
    return {name: LogWindow(run.log_path(name)).read() for name in shown}


def _embedded(data: object) -> str:
    """Return data as JSON that cannot close the HTML element around it."""
    return json.dumps(data).replace("<", "\\u003c")
