"""The page of a recorded run, which is the widget of notebooks without a notebook."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from muster.dashboard import web
from muster.dashboard.html_page import html_page
from muster.dashboard.live import LiveState
from muster.dashboard.snapshot import to_html
from muster.records.folders import make_run_folder
from muster.records.runs import Run
from muster.records.sessions import this_session
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.scenes import START, at, failing, record, starting, training, view_of
from tests.dashboard.test_attempts import FIRST, TITLES, again

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def recorded(events: list[Any]) -> Run:
    run = record(events)
    for worker in {event.worker for event in events if event.worker}:
        (run.run_dir / "logs" / f"{worker}.log").write_text(f"{HOSTILE}\n" + "".join(f"step {n}\n" for n in range(200)))
    return run


def show(page: Page, run: Run, folder: Path) -> None:
    path = folder / "run.html"
    path.write_text(html_page(run), encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_selector(".muster-body .muster-row")


def first_row(page: Page) -> Any:
    return page.locator(".muster-body .muster-row[aria-rowindex='2']")


def test_failures_come_first_then_what_is_asked_for(page: Page, tmp_path: Path) -> None:
    show(page, recorded(failing(40)), tmp_path)

    expect(page.locator(".muster-cause")).to_contain_text("ValueError: no data")
    expect(page.locator(".muster-cause")).to_contain_text("Try: look at the shard")
    expect(first_row(page)).to_contain_text("worker-1")
    expect(first_row(page).locator(".muster-sent")).to_have_text("12.0 MB")
    expect(page.locator(".muster-chip")).to_have_text(["✗1 failed", "■39 stopped"])
    page.click(".muster-head >> text=worker")
    expect(first_row(page)).to_contain_text("worker-0")
    page.click(".muster-head >> text=worker")
    expect(first_row(page)).to_contain_text("worker-39")
    expect(page.locator(".muster-head [aria-sort=descending]")).to_have_text("worker")
    page.fill("input[aria-label='Filter workers']", "ER-3")
    expect(page.locator(".muster-table")).to_have_attribute("aria-rowcount", "12")
    page.fill("input[aria-label='Filter workers']", "")
    page.click(".muster-chip >> text=1 failed")
    expect(page.locator(".muster-table")).to_have_attribute("aria-rowcount", "2")


def test_a_row_says_since_when_its_worker_does_not_go_on(page: Page, tmp_path: Path) -> None:
    told = at(30, "silence", "worker-1", since=START + 20, text="has not answered", why="It is <paused>.")
    asked = at(0, "run_requested", job={"name": "mnist"}, session=this_session())  # so that it is under way
    show(page, recorded([asked, *training(2)[1:], told]), tmp_path)

    row = page.locator(".muster-body .muster-row", has_text="worker-1")
    expect(row.locator(".muster-line")).to_have_text(re.compile(r"has not answered for .+\. It is <paused>\."))


def test_logs_open_by_mouse_and_keyboard_and_can_be_searched(page: Page, tmp_path: Path) -> None:
    show(page, recorded(failing()), tmp_path)

    page.click(".muster-body >> text=worker-2")
    log = page.locator(".muster-log pre")
    expect(log).to_contain_text(HOSTILE)
    page.fill(".muster-log input", "step 19")
    expect(page.locator(".muster-log")).to_contain_text("11 of 201 lines")
    page.click("text=Close")
    expect(log).to_be_hidden()
    page.locator(".muster-body button >> nth=0").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".muster-log strong")).to_have_text("worker-1")
    assert page.locator(".muster img, .muster script").count() == 0


def test_names_that_scripts_choose_are_names_and_nothing_else(page: Page, tmp_path: Path) -> None:
    names = ["__proto__", "constructor", "val___proto__"]
    metrics = [at(24, "progress", "worker-0", rank=0, step=n, metrics=dict.fromkeys(names, n)) for n in range(1, 4)]
    show(page, recorded([*training(), *metrics, at(24, "worker_state", "worker-2", status="constructor")]), tmp_path)

    expect(page.locator(".muster-charts")).to_contain_text("__proto__")
    assert page.evaluate("[{}.train, {}.val, Object.prototype.length, {}.push]") == [None] * 4
    assert "native code" not in page.locator(".muster").inner_text()


def test_the_end_of_a_long_log_says_what_is_before_it_and_is_not_searched(page: Page, tmp_path: Path) -> None:
    run = recorded([at(0, "run_requested", job={}, run_id="20261125-mnist"), *failing()[1:]])
    text = "".join(f"line {number} of a long log\n" for number in range(100_000))
    (run.run_dir / "logs" / "worker-2.log").write_text(text)
    show(page, run, tmp_path)
    page.click(".muster-body >> text=worker-2")

    expect(page.locator(".muster-log pre")).to_contain_text("line 99999 of a long log")
    lines = page.locator(".muster-log pre").inner_text().strip().split("\n")
    assert lines == text.splitlines()[-len(lines) :], "the first one is whole"
    here, before = f"{len(lines):,}", f"{100_000 - len(lines):,}"
    rest = "in a terminal: muster logs 20261125-mnist worker-2"
    note = page.locator(".muster-log .muster-muted")
    expect(note).to_have_text(f"the last {here} lines, {before} before them, {rest}")
    page.fill(".muster-log input", "line 17 of")
    expect(note).to_have_text(f"0 of the last {here} lines; the {before} before them are not searched, {rest}")
    expect(page.locator(".muster-log pre")).to_have_text("None of the lines that are here has it.")


def test_the_total_of_many_steps_is_not_cut(page: Page, tmp_path: Path) -> None:
    reports = [at(24, "progress", f"worker-{n}", rank=n, step=123_456 + n, steps=1_000_000, epochs=0) for n in range(3)]
    events = [event for event in training() if event.kind != "progress"]
    show(page, recorded([*events, *reports]), tmp_path)

    for width in (335, 380, 420, 480, 640, 800, 1024, 1280):  # the narrowest is a card of 300
        page.set_viewport_size({"width": width, "height": 800})
        assert not [cell for cell in page.evaluate(CUT) if width >= 480 or cell.startswith("step")], width
        assert page.evaluate(BEYOND) == [], width
    expect(first_row(page).locator(".muster-progress")).to_have_text("step 123456/1000000")


def test_attempts_are_rows_of_a_table(page: Page, tmp_path: Path) -> None:
    show(page, recorded([*again(), at(60, "run_ended", status="succeeded")]), tmp_path)

    table = page.locator(".muster-attempts")
    expect(table.locator("th")).to_have_text(TITLES)
    expect(table.locator("tr:nth-child(2) td")).to_have_text(FIRST)
    expect(table.locator("tr:nth-child(3) td").last).to_have_text("succeeded")
    expect(page.locator(".muster-notes")).not_to_contain_text("at most 3")
    for width, columns in ((335, 3), (640, 7)):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        expect(table.locator("th:visible")).to_have_count(columns)
        height = table.locator("tr").first.evaluate("row => row.offsetHeight")
        assert height < 30, "a title is broken over two lines"


STACK = """
MainThread (most recent call first):
  Cell In[2], line 4 in hang
  Cell In[2], line 9 in train
"""


@pytest.mark.parametrize(
    ("first", "summary"),
    [
        ("Cell In[2], line 4 in hang", "Cell In[2], line 4 in hang"),
        ('File "/lib/muster/training/progress.py", line 360 in _send', "Cell In[2], line 9 in train"),
        ('File "/lib/muster/runner/hooks.py", line 74 in tell_and_leave', "Cell In[2], line 9 in train"),
        ('File "train.py", line 4 in hang', "train.py, line 4 in hang"),
        ('File "/train.py", line 4 in hang', "/train.py, line 4 in hang"),
        ('File "/data/a team/v1.0/model/core.py", line 4 in <module>', "model/core.py, line 4 in <module>"),
        ('File "/x/read"er.py", line 4 in hang', 'x/read"er.py, line 4 in hang'),
    ],
)
def test_the_summary_of_a_stack_is_its_innermost_call(page: Page, first: str, summary: str) -> None:
    text = STACK.strip().replace("Cell In[2], line 4 in hang", first)
    where = page.evaluate(f"text => {{ {read_function('whereIs')} return whereIs(text); }}", text)
    assert where == summary


def read_function(name: str) -> str:
    """The source of a function of the page's code, which is a module of its own."""
    found = re.search(rf"^function {name}\(.*?^}}", web.script(), re.MULTILINE | re.DOTALL)
    assert found
    return found.group()


KEPT = """() => {{
  {code}
  const store = new Store();
  const diff = (number, status) => ({{ kind: "diff", number, now: 0, run: {{ status }}, names: [], columns: {{}}, rows: [], points: {{}}, anew: [] }});
  const beat = (number) => ({{ kind: "beat", number }});
  const snapshot = {{ kind: "snapshot", number: 4, now: 0, run: {{ status: "queued" }}, names: [], columns: {{}}, curves: {{}} }};
  return [diff(1, "none"), beat(0), snapshot, beat(4), diff(4, "old"), diff(5, "running"), beat(5), diff(7, "missed"), beat(7)]
    .map((message) => [store.apply(message), store.run.status ?? null]);
}}"""  # noqa: E501


def test_what_is_new_is_taken_only_after_a_snapshot_and_without_a_gap(page: Page) -> None:
    code = web.script().partition("export default")[0]
    assert page.evaluate(KEPT.format(code=code)) == [
        [False, None],
        [False, None],
        [True, "queued"],
        [True, "queued"],
        [True, "queued"],
        [True, "running"],
        [True, "running"],
        [False, "running"],
        [False, "running"],
    ]


HEARD = """() => {{
  {code}
  const sent = [], listeners = [];
  let [seconds, elapsed] = [1000, 0];
  Date.now = () => 1000 * (5000 + seconds);
  performance.now = () => 1000 * seconds;
  const view = new View(document.body, (message) => sent.push([seconds, message.ask, message.seconds ?? null]), {{ isLive: true }});
  clearInterval(view.clock);
  const hear = (at, message) => {{ seconds = at; view.receive({{ sent: at, ...message }}); }};
  {heard}
  view.destroy();
  return sent;
}}"""  # noqa: E501
SNAPSHOT = '{ kind: "snapshot", number: 1, now: 0, run: {}, names: [], columns: {}, curves: {} }'


def heard(page: Page, messages: str) -> Any:
    """What a view asks for while it hears messages, and when."""
    code = web.script().partition("export default")[0]
    return page.evaluate(HEARD.format(code=code, heard=messages))


def test_a_page_that_falls_behind_asks_for_quiet_for_twice_as_long(page: Page) -> None:
    beats = """
        hear(1000, SNAPSHOT);
        hear(1001, { kind: "beat", number: 1, sent: 1000.1 });
        hear(1002, { kind: "beat", number: 1, sent: 1000.5 });
        hear(1003, { kind: "beat", number: 1, sent: 1001.0 });
        hear(1010, { kind: "beat", number: 1, sent: 1001.5 });
        hear(1011, { kind: "beat", number: 1, sent: 1011.0 });
    """.replace("SNAPSHOT", SNAPSHOT)
    assert heard(page, beats) == [[1000, "snapshot", None], [1002, "quiet", 3], [1010, "quiet", 10]]


def test_a_clock_that_stood_still_is_no_reason_for_quiet_for_ever(page: Page) -> None:
    beats = """
        hear(1000, SNAPSHOT);
        for (let at = 1001; at < 1060; at += 1) hear(at, { kind: "beat", number: 1, sent: at - 4 });
    """.replace("SNAPSHOT", SNAPSHOT)
    assert heard(page, beats) == [[1000, "snapshot", None], [1001, "quiet", 8]]


def test_a_snapshot_that_does_not_come_is_asked_for_again_and_more_and_more_rarely(page: Page) -> None:
    beats = """
        for (let at = 1000; at < 1100; at += 1) hear(at, { kind: "beat", number: 1 });
        hear(1100, SNAPSHOT);
        hear(1101, { kind: "beat", number: 2 });
        hear(1110, { kind: "beat", number: 2 });
        hear(1111, { kind: "beat", number: 2 });
    """.replace("SNAPSHOT", SNAPSHOT)
    asked = [at for at, ask, _ in heard(page, beats) if ask == "snapshot"]
    assert asked == [1000, 1002, 1006, 1014, 1030, 1062, 1101, 1110]


def test_a_page_whose_snapshot_came_unasked_asks_until_the_session_has_heard_it(page: Page) -> None:
    unasked = SNAPSHOT.replace("number", "unasked: true, number", 1)
    beats = """
        for (let at = 1000; at < 1009; at += 1) hear(at, UNASKED);
        hear(1009, SNAPSHOT);
        for (let at = 1010; at < 1100; at += 1) hear(at, { kind: "beat", number: 1 });
    """.replace("UNASKED", unasked).replace("SNAPSHOT", SNAPSHOT)
    assert [at for at, _, _ in heard(page, beats)] == [1000, 1002, 1006]


CUT = """() => [...document.querySelectorAll(".muster-row :is(.muster-worker, .muster-status, .muster-progress)")]
    .filter(cell => cell.offsetWidth && cell.lastChild.getBoundingClientRect)
    .filter(cell => cell.lastChild.getBoundingClientRect().right > cell.getBoundingClientRect().right + 1)
    .map(cell => cell.textContent)"""
BEYOND = """() => [...document.querySelectorAll(".muster-row")]
    .filter(row => [...row.children].some(cell => cell.offsetWidth > 4 && cell.getBoundingClientRect().right > row.getBoundingClientRect().right + 1))
    .map(row => row.textContent)"""  # noqa: E501
COLLIDE = """() => {
    const box = name => document.querySelector(name).getBoundingClientRect();
    const [a, b] = [box(".muster-title"), box(".muster-buttons")];
    return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}"""


def test_at_any_width_nothing_collides_and_nothing_is_cut_that_tells_workers_apart(page: Page, tmp_path: Path) -> None:
    events = training(16)
    events[2:18] = sorted(events[2:18], key=lambda event: 7 * int(str(event.worker)[7:]) % 16)
    events[0].data["job"].update(name="a_very_long_name_that_somebody_gave_to_a_function_on_a_monday_morning")
    show(page, recorded(events), tmp_path)

    for width in (480, 640, 800, 1024, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        assert page.evaluate(CUT) == [], width
        assert not page.evaluate(COLLIDE), width
        glyph, name = (page.locator(f".muster-title {part}").bounding_box() for part in (".muster-glyph", "strong"))
        assert glyph
        assert name
        assert abs(glyph["y"] - name["y"]) < 4, f"{width}: the sign stands beside the name, not above it"
    page.add_style_tag(content=".muster-body .muster-row { grid-template-columns: 5ch 98px 20px !important }")
    assert len(page.evaluate(CUT)) > 30, "it would see what is cut"
    names = page.locator(".muster-body .muster-row:visible .muster-worker button").all_inner_texts()
    assert names == [f"worker-{number}" for number in range(16)]
    expect(page.locator(".muster-extent")).to_have_text("14 of 16 shown, scroll for more")
    expect(page.locator(".muster-more-below")).to_have_count(1)
    page.locator(".muster-window").evaluate("window => { window.scrollTop = 1000 }")
    expect(page.locator(".muster-more-above")).to_have_count(1)
    expect(page.locator(".muster-more-below")).to_have_count(0)


def test_long_names_of_workers_leave_columns_out_in_place_of_what_is_in_them(page: Page, tmp_path: Path) -> None:
    events = [
        replace(event, worker=event.worker and event.worker.replace("worker-", "gpu-node-rack17-trainer-of-the-team-"))
        for event in training(3)
    ]
    show(page, recorded(events), tmp_path)
    for width in (480, 640, 800, 1024, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(BEYOND) == [], width
        assert width == 480 or page.evaluate(CUT) == [], width
        assert not page.locator(".muster-memory").evaluate_all(
            "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).map(cell => cell.textContent)"
        ), width


def test_a_long_name_of_a_run_is_wrapped_in_the_picture(page: Page) -> None:
    events = starting(2)
    events[0].data["job"]["name"] = "a_very_long_name_that_somebody_gave_to_a_function_on_a_monday_morning"
    page.set_viewport_size({"width": 480, "height": 600})
    page.set_content(to_html(view_of(events)))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_beside_the_name_of_a_run_is_wrapped_in_whole_pieces(page: Page, tmp_path: Path) -> None:
    job = {"name": "train_the_large_language_model", "strategy": "processes"}
    run_id = "20261126-165954-train-the-large-language-model-ef6f"
    show(page, recorded([at(0, "run_requested", job=job, run_id=run_id), *training(2)[1:]]), tmp_path)
    expect(page.locator(".muster-title .muster-id")).to_have_text(run_id)
    for part in (".muster-facts", ".muster-id"):
        heights = []
        for width in (1280, 800, 460):
            page.set_viewport_size({"width": width, "height": 800})
            heights.append(page.locator(part).evaluate("part => part.getBoundingClientRect().height"))
        assert len(set(heights)) == 1, f"{part} is broken"


def test_columns_that_say_nothing_are_left_out_and_the_phase_keeps_its_seconds(page: Page, tmp_path: Path) -> None:
    started = [at(1, "process_started", f"worker-{n}", pid=1) for n in range(2)]
    stages = [at(2, "stage", f"worker-{n}", stage="building the first step") for n in range(2)]
    page.set_viewport_size({"width": 1280, "height": 800})
    show(page, recorded([*starting(2), *started, *stages]), tmp_path)  # lost, and so no phase
    shown = page.locator(".muster-head .muster-cell:visible")
    assert shown.all_inner_texts() == ["worker", "status", "last line"]

    view = view_of([*starting(2), *started, *stages], now=4000)
    data = json.dumps({"snapshot": LiveState(view).snapshot(), "logs": {}}).replace("<", "\\u003c")
    html = re.sub(
        r'(id="muster-data">).*?(</script>)',
        lambda match: match[1] + data + match[2],
        html_page(Run(make_run_folder("mnist"))),
    )
    (tmp_path / "run.html").write_text(html, encoding="utf-8")
    page.reload()
    page.wait_for_selector(".muster-body .muster-row")
    assert shown.all_inner_texts() == ["worker", "status", "phase", "last line"]
    phase = page.locator(".muster-body .muster-phase").first
    expect(phase).to_have_text(re.compile("building the first step 1:06:3."))
    assert phase.evaluate("cell => cell.scrollWidth <= cell.clientWidth")


def test_the_picture_in_a_notebook_scrolls_only_where_its_words_need_more_room(page: Page) -> None:
    words = """() => [...document.querySelectorAll("tr:last-child td")].map(cell => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return [cell.getBoundingClientRect().width, range.getBoundingClientRect().width];
    })"""
    page.set_viewport_size({"width": 300, "height": 600})
    page.set_content(to_html(view_of(starting(2))))
    assert page.locator("th").last.inner_text() != "last line"
    for cell, needed in page.evaluate(words):
        assert needed <= cell <= needed + 11, "what it says, and the gap beside it"
    page.set_content(to_html(view_of(training(2))))
    assert page.locator("th").last.inner_text() == "last line"
    assert page.evaluate(words)[-1][0] >= 160


# Texts of charts that are beyond their own chart, names without a tooltip, and plots that are not where others are.
CHARTS = """() => {
    const charts = [...document.querySelectorAll(".muster-chart")].map(chart => chart.getBoundingClientRect());
    const beyond = [...document.querySelectorAll(".muster-chart :is(strong, b, .muster-high, .muster-low, svg)")]
        .filter(part => part.tagName === "STRONG" ? part.title !== part.textContent : part.scrollWidth > part.clientWidth + 1 && part.clientWidth)
        .map(part => part.outerHTML);
    const range = document.createRange();
    for (const part of document.querySelectorAll(".muster-chart :is(strong, b, .muster-high, .muster-low, svg)")) {
        range.selectNodeContents(part);
        const own = part.closest(".muster-chart").getBoundingClientRect();
        const box = part.matches("strong, svg") ? part.getBoundingClientRect() : range.getBoundingClientRect();
        if (box.left < own.left - 1 || box.right > own.right + 1 || box.right > innerWidth) beyond.push(part.outerHTML);
    }
    const tops = [...document.querySelectorAll(".muster-chart svg")].map(plot => plot.getBoundingClientRect().top);
    charts.forEach((chart, i) => charts.forEach((other, j) => {
        if (chart.top === other.top && Math.abs(tops[i] - tops[j]) > 1) beyond.push(`plots ${i} and ${j}`);
        if (i !== j && chart.top === other.top && chart.left < other.right && other.left < chart.right) beyond.push(`${i} over ${j}`);
    }));
    return beyond;
}"""  # noqa: E501


def test_charts_of_any_names_stay_within_themselves_and_in_line(page: Page, tmp_path: Path) -> None:
    values = {"learning_rate": 1e-5, "val_learning_rate": 2e-5, "test_learning_rate": 0.00123456}
    values |= {"a_rather_long_metric_name_for_a_chart": 1e7, "val_loss": -29_123_456.0}
    reports = [
        at(24, "progress", "worker-0", rank=0, step=n, metrics={name: n * value for name, value in values.items()})
        for n in range(1, 4)
    ]
    show(page, recorded([*training(), *reports]), tmp_path)

    expect(page.locator(".muster-chart")).to_have_count(4)
    for width in (480, 640, 800, 1024, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CHARTS) == [], width
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
    expect(page.locator(".muster-chart strong").last).to_have_attribute(
        "title", "a_rather_long_metric_name_for_a_chart"
    )


def test_the_bounds_of_an_axis_are_told_apart(page: Page) -> None:
    told = page.evaluate(f"() => {{ {web.script().partition('export default')[0]} return apart(0.50003, 0.49998); }}")
    assert told == ["0.50003", "0.49998"]


def test_the_command_that_would_repeat_the_run_can_be_copied(page: Page, tmp_path: Path) -> None:
    events = training()
    events[0].data["job"]["script"] = {"kind": "file", "target": "train.py"}
    show(page, recorded(events), tmp_path)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    page.click("text=Copy command")

    expect(page.locator("text=Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "muster run -s horovod train.py"


@pytest.mark.parametrize("width", [1280, 800, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, accessibility: Any, tmp_path: Path, scheme: Any, width: int) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    show(page, recorded(failing()), tmp_path)
    page.click(".muster-body >> text=worker-1")
    page.click(".muster-cause summary")

    assert accessibility(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"
    context.close()


def test_without_scripts_the_static_picture_is_there(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "run.html").write_text(html_page(recorded(failing())), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "run.html").as_uri())

    expect(page.locator("table")).to_contain_text("worker-2")
    context.close()


# A session that answers nothing by itself: the test says what it sends, and sees what it was sent.
SESSION = """
const listeners = [];
window.asked = [];
window.say = (message) => listeners.forEach((hear) => hear(message));
const can = { can_stop: true, can_say_stacks: true, is_own: false, is_live: true, has_tensorboard: false };
attach({
  get: (name) => can[name],
  send: (message) => window.asked.push(message.ask),
  on: (name, hear) => name === "msg:custom" && listeners.push(hear),
  off: () => {},
}, document.querySelector("main"));
"""


def test_a_silent_session_that_is_heard_again_is_live_again(browser: Browser) -> None:
    page = browser.new_context().new_page()
    page.clock.install(time=1000)
    page.clock.pause_at(2000)
    page.set_content(f"<style>{web.style()}</style><main></main><script type=module>{web.script()}{SESSION}</script>")
    page.wait_for_function("window.say !== undefined")
    view = view_of(training())
    say, snapshot = "message => { window.say(message) }", LiveState(view).snapshot()
    page.evaluate(say, {"kind": "snapshot", **snapshot})
    page.clock.run_for(100)
    silent, stop = page.locator(".muster-silent"), page.locator(".muster-stop")
    expect(stop).to_be_visible()
    for _ in range(2):  # as often as that happens
        expect(silent).to_have_count(0)
        page.clock.run_for(5000)
        expect(silent).to_have_count(1)
        expect(page.locator(".muster-fate")).to_contain_text("Nothing has been heard of the kernel")
        page.evaluate(say, {"kind": "beat", "number": snapshot["number"]})
        page.clock.run_for(100)
    expect(silent).to_have_count(0)
    expect(page.locator(".muster-fate")).to_be_hidden()

    page.clock.run_for(5000)
    stop.click()
    expect(stop).to_have_text("Stopping …")
    page.clock.run_for(1000)
    expect(stop).to_have_text("Stop")  # it has not answered
    page.evaluate(say, {"kind": "beat", "number": snapshot["number"]})
    page.clock.run_for(100)
    expect(silent).to_have_count(0)
    stop.click()
    page.evaluate(say, {"kind": "stopping"})
    page.clock.run_for(1000)
    expect(stop).to_have_text("Stopping …")
    assert page.evaluate("window.asked") == ["snapshot", "stop", "stop"]
    expect(page.locator(".muster-fate")).to_be_hidden()
    page.context.close()
