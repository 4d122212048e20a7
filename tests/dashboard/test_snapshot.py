"""The static picture: what is in it, and that nothing a worker says becomes markup."""

from __future__ import annotations

import base64
import re
import time
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from muster.dashboard.charts import chart
from muster.dashboard.replay import replay
from muster.dashboard.run import RunView
from muster.dashboard.snapshot import LOG_LINES, MAX_LOGS, MAX_ROWS, mime_bundle, to_html, to_text
from muster.events import Event

from tests.dashboard.recording import record
from tests.dashboard.scenes import START, at, failing, starting, training, view_of

HOSTILE = "</td></table><script>alert(1)</script><img src=x onerror=alert(1)>\"'"


class Elements(HTMLParser):
    """The elements of a piece of HTML, which must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in {"img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("events", [[], starting(), training(), failing()], ids=["empty", "start", "train", "fail"])
def test_it_is_sound_html_of_elements_that_notebooks_keep(events: list[Event]) -> None:
    html = to_html(view_of(events) if events else RunView())

    kept = {"div", "strong", "span", "table", "tr", "th", "td", "progress", "img", "br", "details", "summary", "pre"}
    assert set(Elements(html).seen) <= {*kept, "code"}


def test_cause_and_advice_come_before_anything_else() -> None:
    html = to_html(view_of(failing()))

    places = [html.index(text) for text in ("failed", "ValueError: no data", "Try: look at the shard", "<table")]
    assert places == sorted(places)
    assert html.index("worker-1 r1") < html.index("worker-0 r0"), "failed ones first"


def test_hostile_text_stays_text() -> None:
    events = failing()
    events.insert(1, at(1, "output", "worker-0", text=f"{HOSTILE}\n"))
    events.insert(1, at(1, "note", text=HOSTILE))
    events[0].data["job"]["name"] = HOSTILE
    events.insert(9, at(3, "progress", "worker-0", step=1, metrics={HOSTILE: 1.0}))
    events.insert(10, at(4, "progress", "worker-0", step=2, metrics={HOSTILE: 1.0}))
    html = to_html(view_of(events))

    assert "script" not in Elements(html).seen
    assert "onerror" not in re.sub(r"&lt;.*?&gt;", "", html)


def test_a_huge_cluster_is_cut_and_counted() -> None:
    html = to_html(view_of(training(1000, seconds=1)))

    assert html.count("<tr>") == MAX_ROWS + 1
    assert f"… and {1000 - MAX_ROWS} more, 1000 running in all" in html
    assert len(html) < 100_000


@pytest.mark.slow
def test_of_many_logs_the_first_are_there_and_the_others_are_counted(tmp_path: Path) -> None:
    for workers, remark in ((MAX_LOGS, ""), (MAX_LOGS + 2, "2 more: <code>muster logs {} WORKER</code>")):
        run = record(tmp_path, text="print('done')", n_workers=workers)
        html = to_html(replay(run), run)
        assert html.count("log of worker-") == MAX_LOGS
        assert remark.format(run.run_id) in html
        assert ("more: " in html) is bool(remark)


def test_the_end_of_a_log_says_that_it_is_one_and_where_the_rest_is(tmp_path: Path) -> None:
    run = record(tmp_path, text="print('done')", n_workers=1)
    log = run.run_dir / "logs" / "worker-0.log"
    whole = f": muster logs {run.run_id} worker-0</summary>"
    for text, title in (
        ("line\n" * LOG_LINES, "log of worker-0</summary>"),
        ("line\n" * (LOG_LINES + 1), f"log of worker-0: its last {LOG_LINES} lines; all of it{whole}"),
        (("x" * 2500 + "\n") * 3, f"log of worker-0: its last 2 lines; all of it{whole}"),
    ):
        log.write_text(text)
        assert title in to_html(replay(run), run)
    assert "in one page, with the ends of the logs: muster show" in to_html(replay(run), run)


def test_columns_that_say_nothing_are_left_out() -> None:
    assert ">sent<" not in to_html(view_of(starting()))
    html = to_html(view_of([*training(), at(22, "progress", "worker-0", rank=3, bytes_sent=500_000)]))
    assert re.findall(r">([\d.]+ MB)<", html) == ["12.5 MB", "12.0 MB", "12.0 MB"], "of all ranks of a worker"


def test_curves_are_images_that_need_nothing() -> None:
    html = to_html(view_of(training()))

    addresses = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    pictures = [ET.fromstring(base64.b64decode(address)) for address in addresses]
    assert len(pictures) == 2
    assert 'alt="loss: train 0.1"' in html


def test_training_is_solid_validation_dashed_and_one_value_a_dot() -> None:
    label, picture = chart("loss", {"train": [(0, 1.0), (1, float("nan")), (2, 0.5), (3, 0.4)],
                                    "val": [(1, 0.9), (3, 0.8)], "test": [(3, 0.7)]})  # fmt: skip

    ET.fromstring(picture)
    assert label == "loss: train 0.4, val 0.8, test 0.7"
    train, val = re.findall(r'<path d="M[^"]*L[^"]*"[^>]*>', picture)
    assert "dasharray" in val
    assert "dasharray" not in train
    assert train.count("M") == 2, "a gap where a value is no number"
    assert picture.count("<circle") == 1
    assert re.findall("<tspan[^>]*>([^<]*)<", picture) == ["loss", "—", "train 0.4", "- -", "val 0.8", "●", "test 0.7"]


def test_a_long_name_leaves_room_for_the_values() -> None:
    label, picture = chart("a_rather_long_metric_name_for_a_chart", {"train": [(0, 1.0), (1, 2.0)], "val": [(1, 3.0)]})

    assert label.startswith("a_rather_long_metric_name_for_a_chart: ")
    name, _, train, _, val = re.findall("<tspan[^>]*>([^<]*)<", picture)
    assert re.fullmatch("a_rather_long_.*…", name)
    assert (train, val) == ("train 2", "val 3")
    assert 8 * len(name) + 6.5 * len(train + val) + 60 < 396


def test_a_name_is_not_cut_where_it_has_room() -> None:
    course = [(0, 0.1), (1, 0.9876)]
    _, picture = chart("accuracy", {"train": course, "val": course, "test": course[1:]})
    assert ">accuracy<" in picture


@pytest.mark.parametrize(
    ("course", "bounds"),
    [
        ((0.50003, 0.49998), {"0.50003", "0.49998"}),
        ((0.98765, 0.12345), {"0.988", "0.123"}),
        ((0.5 + 1e-9, 0.5), {"0.5"}),
    ],
)
def test_the_bounds_of_an_axis_are_told_apart(course: tuple[float, float], bounds: set[str]) -> None:
    _, picture = chart("rate", {"train": list(enumerate(course))})
    assert {text for text in re.findall(r'text-anchor="end" fill="#808080">([^<]*)', picture) if text != "1"} == bounds


def test_a_value_that_stays_is_told_beside_its_line() -> None:
    _, picture = chart("rate", {"train": [(0, 0.5), (1, 0.5)]})
    (label,) = re.findall(r'y="([\d.]+)"[^>]*text-anchor="end"[^>]*>0.5<', picture)
    height = re.search(r'd="M[\d.]+ ([\d.]+)L', picture)
    assert height is not None
    assert abs(float(label) - float(height[1])) < 8


@pytest.mark.parametrize("course", [(3283.5, 410.4), (29_123_456.0, -1_234_567.0), (-1.23e-05, -4.56e-05)])
def test_the_bounds_of_an_axis_are_inside_the_picture_and_the_same_words_as_in_the_live_one(
    course: tuple[float, float],
) -> None:
    _, picture = chart("loss", {"train": list(enumerate(course))})
    bounds = re.findall(r'<text x="([\d.]+)" y="[\d.]+" [^>]*text-anchor="end"[^>]*>([^<]+)<', picture)[:2]
    assert [text for _, text in bounds] == [f"{v:.0f}" if abs(v) >= 1000 else f"{v:.3g}" for v in course]
    assert all(float(end) >= 6.5 * len(text) for end, text in bounds), "as wide as digits of 11 pixels are"


def test_a_rank_is_shown_with_its_own_step_and_metrics() -> None:
    events = [*starting(2), at(1, "run_phase", phase="training")]
    events += [at(2, "progress", "worker-0", rank=0, step=15, steps=15, metrics={"loss": 0.0667})]
    assert "step 15/15 · told by 1 of 2 workers · loss 0.0667" in to_html(view_of(events))

    events += [at(3, "progress", "worker-1", rank=1, step=4, steps=15, metrics={"loss": 0.25})]
    events += [at(4, "run_ended", status="failed")]
    assert "slowest: worker-1, step 4/15 · worker-0: step 15/15 · loss 0.0667" in to_html(view_of(events))


def test_the_text_is_what_a_terminal_shows() -> None:
    text = to_text(view_of(failing()))

    assert text.splitlines()[0].startswith("✗ mnist")
    assert "\x1b" not in text
    assert set(mime_bundle(view_of(failing()))) == {"text/html", "text/plain"}


@pytest.mark.parametrize("events", [starting(), training()], ids=["start", "train"])
def test_a_picture_of_a_run_under_way_says_when_that_was_and_not_that_it_goes_on(events: list[Event]) -> None:
    events.insert(1, at(0, "run_requested", run_id="20270115-080000-mnist-abcd", job={"name": "mnist"}))
    view = view_of(events)
    when = time.strftime("%H:%M:%S", time.localtime(view.clock()))
    for picture in mime_bundle(view).values():
        title = picture[: picture.index("As it was" if "<div" in picture else "\n")]
        assert f"was {view.doing} at {when}" in title
        assert "muster show 20270115-080000-mnist-abcd" in picture


def test_the_picture_of_a_run_that_has_not_started_says_when_that_was() -> None:
    for picture in mime_bundle(RunView(clock=lambda: START)).values():
        assert f"had not started at {time.strftime('%H:%M:%S', time.localtime(START))}" in picture


@pytest.mark.parametrize("n_workers", [3, MAX_ROWS + 1])
def test_the_text_has_all_the_notes_that_the_picture_has(n_workers: int) -> None:
    notes = [f"note {number}{' that goes on' * 30}, and ends" for number in range(3)]
    view = view_of([*training(n_workers, seconds=1), *(at(22, "note", text=note) for note in notes)])
    for picture in mime_bundle(view).values():
        shown = " ".join(picture.split())
        assert [note for note in notes if note in shown] == notes
