"""Files that go to workers which share none with the session, and come back, in a run from its start to its record."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from muster.checks.project import Project
from muster.errors import JobError, PlatformError, WorkerPreempted
from muster.events import Event, Note
from muster.job import Script
from muster.platforms.base import Storage
from muster.pools.endpoint import Endpoint
from muster.records.runs import Run
from muster.run import exchange
from muster.run.checked import CheckedRun
from muster.run.exchange import Sending
from muster.run.execution import Execution
from muster.run.orchestrator import Orchestrator
from muster.run.project import Contents, write_list
from muster.run.worker_log import WorkerLog
from muster.testing import ScriptedPlatform, SimulatedLoop

from tests.simulated.executing import finish

FILES = {"src/train.py": "print(1)", "src/data/a.csv": "1,2", "src/data/b.csv": "3,4", "twin.csv": "1,2"}

SECRET = b"\xf1\xf2\xf3"


class Apart:
    """A run whose workers have folders of their own, and a project that goes to them."""

    def __init__(self, loop: SimulatedLoop, made: Execution, checked: CheckedRun, folder: Path) -> None:
        self.loop = loop
        self.made = made
        self.root = folder / "project"
        for name, text in FILES.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.root / "link").symlink_to("src/train.py")
        files = [(name, len(text)) for name, text in FILES.items()]
        project = Project(self.root, (("gone", 1), ("link", 0), *files))
        job = replace(checked.job, script=Script("file", str(self.root / "src/train.py")), cwd=str(self.root / "src"))
        self.checked = replace(checked, job=job, project=project, collect=("out/*.txt",))
        platform = checked.platform
        assert isinstance(platform, ScriptedPlatform)
        platform.storage = Storage.NOTHING
        platform.python = "python3"
        self.platform = platform
        self.places: dict[str, Path] = {}
        for name, _, _ in checked.members:
            self.places[name] = folder / name
            places = ("run", "library", "scratch", "project")
            platform.player(name).places = {place: str(folder / name / place) for place in places}
            for place in places:
                (folder / name / place).mkdir(parents=True)

    def file(self, worker: str, path: str) -> Path:
        """A file in a worker's working directory."""
        return self.places[worker] / "project" / "src" / path

    def write(self, worker: str, path: str, text: str) -> None:
        self.file(worker, path).parent.mkdir(parents=True, exist_ok=True)
        self.file(worker, path).write_text(text)

    def play(self, during: Callable[[Orchestrator], Coroutine[Any, Any, Any]] | None = None) -> Any:
        """Play the run, and do this while it trains. Returns its error."""

        async def main() -> None:
            await asyncio.sleep(5)
            assert self.made.orchestrator is not None
            assert during is not None
            await during(self.made.orchestrator)

        self.made.begin(self.checked)
        doing = self.loop.create_task(main()) if during else None
        result = finish(self.loop, self.made)
        if doing is not None:
            doing.result()
        return result.error


@pytest.fixture
def apart(loop: SimulatedLoop, made: Execution, checked: CheckedRun, tmp_path: Path) -> Apart:
    return Apart(loop, made, checked, tmp_path)


def test_a_project_is_laid_out_on_every_worker(apart: Apart) -> None:
    told: list[Event] = []
    apart.made._observers.add(told.append)
    assert apart.play() is None
    for place in apart.places.values():
        root = place / "project"
        assert {name: (root / name).read_text() for name in FILES} == FILES
        assert (root / "link").readlink() == Path("src/train.py")
        assert not (root / "gone").exists()
    sent = [event for event in told if event.kind == "transfer"]
    assert {event.worker for event in sent} == set(apart.places)
    assert all(data["done"] <= data["total"] == 14 for data in (event.data for event in sent))


def test_a_script_that_is_not_in_the_project_goes_with_the_library(apart: Apart, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("print(2)")
    script = Script("file", str(tmp_path / "elsewhere.py"))
    apart.checked = replace(apart.checked, job=replace(apart.checked.job, script=script))
    assert apart.play() is None
    assert (apart.places["worker-1"] / "library" / "scripts" / "elsewhere.py").read_text() == "print(2)"


def test_what_is_asked_for_is_collected_at_the_end(apart: Apart) -> None:
    async def write(orchestrator: Orchestrator) -> None:
        for name in apart.places:
            apart.write(name, "out/score.txt", name)
            apart.write(name, "out/model.bin", "large")

    assert apart.play(write) is None
    collected = apart.made.run_dir / "collected"
    found = {path.relative_to(collected).as_posix(): path.read_text() for path in collected.rglob("*.*")}
    assert found == {f"{name}/src/out/score.txt": name for name in apart.places}


def test_files_of_a_worker_that_counts_as_lost_are_not_waited_for(apart: Apart) -> None:
    apart.platform.lease_seconds = 3600.0
    began = apart.loop.time()

    async def lose(orchestrator: Orchestrator) -> None:
        apart.write("worker-0", "out/score.txt", "5")
        apart.platform.errors["poll"] = PlatformError("The engine does not answer.")
        apart.platform.player("worker-1").say("preempted")
        await asyncio.sleep(1)
        apart.platform.player("worker-1").cut()

    assert isinstance(apart.play(lose), WorkerPreempted)
    assert apart.loop.time() - began < 60
    assert (apart.made.run_dir / "collected/worker-0/src/out/score.txt").read_text() == "5"


def test_what_workers_have_printed_is_waited_for_as_long_as_it_comes(apart: Apart) -> None:
    slow, silent = (apart.platform.player(name) for name in ("worker-0", "worker-1"))
    slow.behaviour.leaves_after, silent.behaviour.leaves_after = 5.0, None

    def tell(kind: str, message: object) -> None:
        if kind == "end":
            for number in range(6):
                apart.loop.call_later(0.8 * number, partial(slow.say, "output", text=f"{number}\n"))

    slow.on_order = tell
    told: list[Event] = []
    apart.made._observers.add(told.append)
    assert apart.play() is None
    assert (apart.made.run_dir / "logs" / "worker-0.log").read_text() == "".join(f"{n}\n" for n in range(6))
    (note,) = [event.data.text for event in told if isinstance(event.data, Note)]
    assert note == "What worker-1 printed last may be missing: its agent has not said that this was all."


def test_a_worker_that_does_not_answer_does_not_hold_up_the_end(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    heard_at = Endpoint.heard_at

    def look(endpoint: Endpoint, worker: str) -> float | None:
        if stopped:
            looks.append(worker)
        return heard_at(endpoint, worker)

    monkeypatch.setattr(Endpoint, "heard_at", look)

    async def freeze(orchestrator: Orchestrator) -> None:
        for worker in ("worker-0", "worker-1"):
            apart.write(worker, "out/score.txt", "5")
        apart.platform.player("worker-1").behaviour.deaf_to = frozenset(["ping", "stop", "end"])
        orchestrator.stop("by request")
        stopped.append(apart.loop.time())

    stopped: list[float] = []
    apart.platform.player("worker-1").behaviour.runs_for = None
    apart.play(freeze)
    assert apart.loop.time() - stopped[0] < 20
    assert looks.count("worker-1") < 40, "there may be ten thousand like it, each with a task that wakes for each look"
    assert (apart.made.run_dir / "collected/worker-0/src/out/score.txt").exists()
    assert not (apart.made.run_dir / "collected/worker-1").exists()
    told = [event.data["text"] for event in Run(apart.made.run_dir).events() if event.kind == "note"]
    assert any("Nothing more is got from worker-1, which does not answer." in text for text in told), told


def test_a_value_that_does_not_come_is_not_taken_for_none(apart: Apart) -> None:
    apart.checked = replace(apart.checked, job=replace(apart.checked.job, script=Script("function", "train")))

    async def take_away(orchestrator: Orchestrator) -> None:
        del apart.platform.player("worker-1").places["run"]

    assert apart.play(take_away) is None
    run = Run(apart.made.run_dir)
    (lost,) = (run.run_dir / "results").iterdir()
    with pytest.raises(JobError, match=f"What {lost.stem} returned could not be got from its worker") as raised:
        run.values  # noqa: B018
    assert run.run_id in str(raised.value.advice)
    assert run.worker_of(lost.stem) == "worker-1"


def test_files_go_and_come_while_it_runs(apart: Apart, tmp_path: Path) -> None:
    async def exchange_some(orchestrator: Orchestrator) -> None:
        got = await orchestrator.get("worker-1", "data", tmp_path / "got")
        assert got == tmp_path / "got" / "src" / "data"
        assert (got / "b.csv").read_text() == "3,4"
        await orchestrator.put(apart.root / "twin.csv", "worker-0", "new/name.csv")
        assert apart.file("worker-0", "new/name.csv").read_text() == "1,2"
        await orchestrator.put(apart.root / "src", "worker-0", "copy")
        assert apart.file("worker-0", "copy/data/a.csv").read_text() == "1,2"
        with pytest.raises(PlatformError, match="worker-1 has no nothing in its working directory"):
            await orchestrator.get("worker-1", "nothing", tmp_path / "got")

    assert apart.play(exchange_some) is None


def test_a_file_that_cannot_be_got_whole_is_an_error(apart: Apart, tmp_path: Path) -> None:
    async def get(orchestrator: Orchestrator) -> None:
        apart.write("worker-1", "caf\udce9", "bytes")
        with pytest.raises(PlatformError, match="Not all of . of worker-1 could be got"):
            await orchestrator.get("worker-1", ".", tmp_path / "got")

    apart.play(get)


def test_a_folder_here_that_cannot_be_written_to_loses_no_run(apart: Apart) -> None:
    async def occupy(orchestrator: Orchestrator) -> None:
        apart.write("worker-1", "out/score.txt", "5")
        (orchestrator.context.run_dir / "collected").write_text("no folder")

    apart.play(occupy)
    told = [event.data["text"] for event in Run(apart.made.run_dir).events() if event.kind == "note"]
    assert any("Of worker-1 could not be got: src/out/score.txt" in text for text in told), told


def test_what_is_left_out_is_said(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "COLLECTED_BYTES", 3)

    async def write(orchestrator: Orchestrator) -> None:
        for number in range(7):
            apart.write("worker-0", f"out/{number}.txt", "too much")
        with pytest.raises(PlatformError, match=r"Of worker-0 could not be got: src/out/0.txt \(too large\), .* and 2"):
            await orchestrator.collect()

    apart.play(write)


def test_a_project_that_cannot_be_read_is_an_error(apart: Apart) -> None:
    apart.loop.call_later(0.05, (apart.root / "twin.csv").unlink)
    apart.loop.call_later(0.05, (apart.root / "twin.csv").mkdir)
    error = apart.play()
    assert isinstance(error, PlatformError)
    assert "What workers need cannot be sent to them" in error.message


@pytest.mark.parametrize("moment", ["after it was looked at", "after it was listed"])
@pytest.mark.parametrize("swap", ["a link", "a folder that is a link", "a pipe"])
def test_what_has_become_a_link_or_a_pipe_meanwhile_is_not_read(
    apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, swap: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("a.csv", "b.csv"):
        (outside / name).write_bytes(SECRET)
    folder = apart.root / "src/data"
    has_come: list[bool] = []

    def swap_once() -> None:
        if has_come:
            return
        has_come.append(True)
        if swap == "a folder that is a link":
            folder.rename(tmp_path / "moved")
            folder.symlink_to(outside)
            return
        (folder / "b.csv").unlink()
        if swap == "a link":
            (folder / "b.csv").symlink_to(outside / "b.csv")
        else:
            os.mkfifo(folder / "b.csv")

    looked, wrote = os.lstat, write_list

    def look(path: Any, **options: Any) -> os.stat_result:
        found = looked(path, **options)
        if moment == "after it was looked at" and path == folder / "b.csv":
            swap_once()
        return found

    def write(contents: Contents, path: Path) -> None:
        wrote(contents, path)
        if path.name == "project.list":
            swap_once()

    monkeypatch.setattr(os, "lstat", look)
    if moment == "after it was listed":
        monkeypatch.setattr(exchange, "write_list", write)
    error = apart.play()
    assert has_come
    assert isinstance(error, PlatformError)
    assert "What workers need cannot be sent to them" in error.message
    for place in apart.places.values():
        assert not [path for path in place.rglob("*") if path.is_file() and SECRET in path.read_bytes()]


def test_progress_is_told_a_few_times_a_second(loop: SimulatedLoop) -> None:
    told: list[int] = []
    sending = Sending(lambda data, worker: told.append(data.done))  # type: ignore[attr-defined]

    async def main() -> None:
        for done in range(101):
            sending("worker-0", done, 100)
            await asyncio.sleep(0.05)

    loop.run(main())
    assert told[0] == 0
    assert told[-1] == 100
    assert len(told) == pytest.approx(100 * 0.05 / exchange.PROGRESS_SECONDS, abs=3)


def test_a_log_has_an_older_part_and_no_more(tmp_path: Path) -> None:
    log = WorkerLog(tmp_path / "log", cap=10)
    for text in ("12345678\n", "abcdefgh\n", "ABCDEFGH\n"):
        log.write(text)
    assert (tmp_path / "log").read_text() == "ABCDEFGH\n"
    assert (tmp_path / "log.1").read_text() == "abcdefgh\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    log = WorkerLog(tmp_path / "absent" / "log", cap=10)
    assert "cannot be written" in log.write("one")
    assert log.write("two") == ""


def test_output_that_finds_no_room_is_told_where_it_is_missing(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(64)
    log = WorkerLog(disk / "log", cap=1 << 20)
    (disk / "ballast").write_bytes(bytes(40 << 10))
    troubles = [log.write(f"{number:04}{'x' * 995}\n") for number in range(40)]
    assert "No space left on device" in "".join(troubles)
    assert len(list(filter(None, troubles))) == 1
    (disk / "ballast").unlink()
    assert log.write("more\n") == ""
    *before, remark, last = (disk / "log").read_text().splitlines()
    written = len("\n".join(before))
    assert remark == f"[muster] {40 * 1000 - written} bytes of output are lost: this file could not be written"
    assert (before[0][:4], last) == ("0000", "more")
