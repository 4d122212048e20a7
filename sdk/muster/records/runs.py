"""Recorded runs: where they are kept, how one is made, found, read again and pruned.

Each run has a folder of its own, ``runs/<id>`` in :func:`muster_home`, which holds::

    events.jsonl       what happened, one event a line; the first says who asked for what
    plan.json          what was started where
    result.json        how it ended; absent while it runs, where its session died, and where the disk was full
    logs/<worker>.log  what each worker printed (``.log.1`` is its older part), and ``launcher.log``
    logs/ranks/rank-<number>.log  what each rank printed, where workers have several
    control.json       how other processes reach the run while it is under way, see ``muster.records.control``
    results/           what the script returned
    tensorboard/       event files, where the script writes any: its MUSTER_TENSORBOARD
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import io
import json
import logging
import os
import re
import secrets
import time
import unicodedata
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.agent.removal import remove_folder
from muster.errors import RunLost, RunNotFound, RunUnreachable, without_inner_frames
from muster.events import Event, Note, RunAttempt, RunEnded, RunRequested, ScriptRaised
from muster.records import control
from muster.records.first_step import first_step
from muster.records.folders import make_folder
from muster.records.result import Result, read_record
from muster.records.sessions import is_alive, suspended, wake
from muster.records.under_way import under_way
from muster.runtime.interrupts import RunCancelled, RunInterrupted
from muster.text.arguments import ArgumentText, each_part
from muster.text.cleaning import clean, is_file_name, overwritten
from muster.text.reading import open_regular, read_json
from muster.text.shown import Stacks, Table, Text

logger = logging.getLogger("muster")

ID_TIME = "%Y%m%d-%H%M%S"  # 15 characters; an id is this, a slug of the name and 4 random digits, joined by "-"
ID_PATTERN = re.compile(r"\d{8}-\d{6}-[a-z0-9-]+-[0-9a-f]{4}")
TENSORBOARD = "tensorboard"
LIKE = 0.6  # how much of what was typed an id must have to be suggested
LAUNCHER_LOG = "launcher"  # the log of the launcher, beside those of the workers
LOG_END = 15  # lines of a log that explain() shows
LOG_END_BYTES = 64 * 1024
POLL_SECONDS = 0.2  # of those who wait for an end
JOURNAL_END_BYTES = 64 * 1024
NOTES = (Note, RunAttempt)  # events that tell the user something
START_GRACE = 60.0  # seconds that a new folder may be without its first event before it counts as lost
LOST_REASON = "its session is gone and left no result: it was killed, or its machine went down"
WAKE = "fg in its terminal, or kill -CONT {}"  # the session's process
LOST_ADVICE = "run it again; a script that keeps checkpoints goes on from the last of them (muster.training.checkpoint)"
LOST_GRACE = 24 * 3600.0  # seconds that a lost run is kept: its session may live on a machine that shares this folder


def muster_home() -> Path:
    """The folder that keeps everything of this user: ``$MUSTER_HOME``, else ``~/.muster``."""
    return Path(os.environ.get("MUSTER_HOME") or Path.home() / ".muster").expanduser().absolute()


def create(name: str) -> Path:
    """Make the folder of a new run, readable by its owner only, and return it. Its name is the run's id."""
    parent = muster_home() / "runs"
    make_folder(parent)
    slug = slug_of(name) or "run"
    while True:
        path = parent / f"{time.strftime(ID_TIME)}-{slug}-{secrets.token_hex(2)}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        try:
            (path / "logs").mkdir()
            (path / "results").mkdir()
        except OSError:
            remove_folder(path)
            raise
        return path


def slug_of(name: str) -> str:
    """The part of a run's id that tells its name, in ASCII, which every shell, path and variable takes.

    >>> slug_of("My model: MNIST!"), slug_of("Übung_2"), slug_of("обучение")
    ('my-model-mnist', 'ubung-2', '')
    """
    plain = unicodedata.normalize("NFKD", name.lower()).encode("ascii", "ignore").decode()  # without accents
    return re.sub(r"[^a-z0-9]+", "-", plain)[:40].strip("-")


def library(run_dir: Path) -> Path:
    """Return the folder of what a run under way ships to workers, if they do not see the session's /tmp."""
    return run_dir / "lib"


def write_json(path: Path, data: Any, mode: int | None = None) -> None:
    """Write ``data`` as JSON so that a reader finds the old file or the new one, never half of one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(2)}")
    try:
        if mode is not None:
            beside.touch(mode=mode)
        beside.write_text(json.dumps(data, indent=2, default=str) + "\n", encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


class Run:
    """One recorded run, read from its folder whenever it is asked; it may still be running.

    Attributes:
        run_dir: the run's folder.
        run_id: the folder's name.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.run_id = run_dir.name
        self._first_event: Event | None = None
        self._warned: set[str] = set()

    @property
    def status(self) -> str:
        """``running``, ``succeeded``, ``failed``, ``stopped``, or ``lost``: its session died and left no result."""
        if self.result is not None:
            return str(self.result.get("status", "failed"))
        if self._request is None:
            is_new = abs(time.time() - self.started_at) < START_GRACE  # a clock that was set back makes none young
            return "running" if is_new else "lost"
        return "running" if is_alive(self._asked.session) else "lost"

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self._job.get("name") or self.run_id[16:-5])

    @property
    def strategy(self) -> str:
        """Name of the strategy, such as ``horovod``; empty where it was not recorded."""
        return str(self._asked.strategy or self._job.get("strategy") or "")

    @property
    def started_at(self) -> float:
        """Time at which the run was asked for, in seconds since the epoch."""
        return self._request.time if self._request else time.mktime(time.strptime(self.run_id[:15], ID_TIME))

    @property
    def detached_until(self) -> float | None:
        """Time at which a detached run is ended at the latest; None for one that ends with its session."""
        return self._asked.detached_until

    @property
    def seconds(self) -> float:
        """Seconds that the run took, has taken so far, or is known to have lasted."""
        if self.result is not None and "seconds" in self.result:
            return float(self.result["seconds"])
        if self.status == "running":
            return max(0.0, time.time() - self.started_at)  # the clock may have been set meanwhile
        return max(0.0, self._last_sign_of_life() - self.started_at)

    @property
    def workers(self) -> list[str]:
        """Names of the workers, in launch order as far as that is known. Each is the name of a file."""
        planned = list(filter(is_file_name, self._planned("processes")))
        logged = sorted(path.stem for path in (self.run_dir / "logs").glob("*.log") if path.stem != LAUNCHER_LOG)
        return list(dict.fromkeys([*planned, *filter(is_file_name, logged)]))

    def _planned(self, what: str) -> Mapping[str, Any]:
        found = (self.plan or {}).get(what)
        return found if isinstance(found, dict) else {}

    @property
    def result(self) -> Mapping[str, Any] | None:
        """Contents of ``result.json``, or else the end of the journal; None until the run has ended.

        A mapping, of a failure too, as it tells of runs of any process. :meth:`wait` gives a ``Result`` or raises.
        """
        found = _read_json(self.run_dir / "result.json") or self._journalled_result()
        return None if found is None else read_record(found)

    @property
    def advice(self) -> str:
        """Advice on a run that failed, an ``ArgumentText`` where that names arguments; empty otherwise."""
        result = self.result or ({"advice": LOST_ADVICE} if self.status == "lost" else {})
        parts = result.get("advice_parts")
        advice = ArgumentText.from_json(parts) if isinstance(parts, list) else str(result.get("advice") or "")
        return each_part(advice, clean)

    def _journalled_result(self) -> Mapping[str, Any] | None:
        """Return the run's end as its last event tells it, where the disk had no room for ``result.json``."""
        try:
            with open_regular(self.run_dir / "events.jsonl") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - JOURNAL_END_BYTES))
                lines = file.read().splitlines()
        except OSError:
            return None
        for line in reversed(lines):
            with contextlib.suppress(ValueError):
                event = Event.from_json(line.decode("utf-8", errors="replace"))
                if isinstance(event.data, RunEnded):
                    return {
                        **vars(event.data),
                        "worker": event.worker,
                        "seconds": max(0.0, event.time - self.started_at),
                    }
        return None

    @property
    def plan(self) -> Mapping[str, Any] | None:
        """Contents of ``plan.json``; None where the cluster never came so far."""
        return _read_json(self.run_dir / "plan.json")

    def events(self) -> Iterator[Event]:
        """The recorded events, oldest first. Lines that were torn when a session died are passed over."""
        try:
            opened = open_regular(self.run_dir / "events.jsonl")
        except FileNotFoundError:
            return
        except OSError as error:  # another user's, for instance: it must not hide the other runs
            self._warn(f"it cannot be read: {error.strerror}")
            return
        with io.TextIOWrapper(opened, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    yield Event.from_json(line, self._warn)
                except ValueError:
                    continue

    def _warn(self, text: str) -> None:
        """Say once what of the journal does not fit this version of Muster, and so is passed over."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s: %s", self.run_dir / "events.jsonl", text)

    def log_path(self, name: str) -> Path:
        """The path of the log of a worker, a rank (``rank-1``) or the ``launcher``; a lone rank's is its worker's.

        Raises:
            RunNotFound: the run has none of that name.
        """
        folder = self.run_dir / "logs"
        rank = re.fullmatch(r"(?:rank[- ])?(\d+)", str(name))
        if rank:
            own = folder / "ranks" / f"rank-{rank.group(1)}.log"
            name = self._planned("ranks").get(rank.group(1), str(name))
            if own.is_file():
                return own
        if name not in (*self.workers, LAUNCHER_LOG):
            known = ", ".join(self.workers) or "none that are known"
            raise RunNotFound(f"Run {self.run_id} has no worker {name!r}.", advice=f"its workers: {known}")
        return folder / f"{name}.log"

    def log_files(self, worker: str) -> list[Path]:
        """The files that hold what a worker, a rank or the ``launcher`` printed, older part first; none if nothing.

        Raises:
            RunNotFound: the run has none of that name.
        """
        newer = self.log_path(worker)
        return [path for path in (newer.with_name(newer.name + ".1"), newer) if path.is_file()]

    @without_inner_frames
    def logs(self, worker: str | None = None) -> Text:
        """Return the output of a worker, a rank (``rank-1``) or the ``launcher``; of all workers by default.

        Bytes that are not UTF-8 are U+FFFD.

        Raises:
            RunNotFound: the run has no such worker.
        """
        if worker is None:
            texts = {name: self.logs(name) for name in self.workers}
            return Text("".join(f"--- {name}\n{text.rstrip()}\n" for name, text in texts.items() if text.strip()))
        return Text(b"".join(path.read_bytes() for path in self.log_files(worker)).decode("utf-8", errors="replace"))

    def log_end(self, worker: str, lines: int = LOG_END) -> list[str]:
        """The last lines that a worker (or ``launcher``) printed. Raises as ``logs`` does."""
        files = self.log_files(worker)
        if not files:
            return []
        with open_regular(files[-1]) as file:
            file.seek(max(0, files[-1].stat().st_size - LOG_END_BYTES))
            text = overwritten(file.read().decode("utf-8", errors="replace"))
        return text.removesuffix("\n").split("\n")[-lines:] if text else []

    @without_inner_frames
    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run has ended, in whatever process it lives, and return what came out.

        An interrupt ends the wait, and not the run.

        Args:
            timeout: seconds to wait; None for any time.

        Raises:
            RunFailed, RunStopped, ...: what ended the run, as whoever started it is told.
            RunLost: its session is gone and left no result.
            TimeoutError: it has not ended after ``timeout`` seconds, and goes on.
        """
        try:
            self._block_until_end(timeout)
        except KeyboardInterrupt:
            raise RunInterrupted(self._words_for_interrupt()) from None
        if self.result is None:
            raise RunLost(
                f"Run {self.run_id} was lost: its session is gone and left no result.",
                log=self.run_dir / "logs",
                advice=LOST_ADVICE,
            )
        result = Result.from_dict(self.result, self.run_id, self.run_dir)
        if result.error is not None:
            raise result.error
        return result

    def __await__(self) -> Generator[Any, None, Result]:
        """Wait for the end as ``wait`` does, while whatever else the event loop has to do goes on."""
        return self._await_end().__await__()

    async def _await_end(self) -> Result:
        try:
            while self.status == "running":
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            raise RunCancelled(self._words_for_interrupt()) from None
        return self.wait()

    def _block_until_end(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.status == "running":
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {self.run_id} has not ended after {timeout:g} s")
            time.sleep(POLL_SECONDS)

    def _words_for_interrupt(self) -> str:
        ways = f"wait() waits again; stop() ends it, or in a terminal: muster stop {self.run_id}"
        return f"The wait was interrupted; run {self.run_id} goes on. {ways}"

    @without_inner_frames
    def stop(self, timeout: float = 60.0, *, now: bool = False) -> None:
        """End a run under way, in whatever process, and wait until nothing of it is left. Does nothing if it has ended.

        Args:
            timeout: seconds to wait for the end.
            now: leave its processes no time to end by themselves.

        Raises:
            RunUnreachable: its session does not answer.
            TimeoutError: it has not ended in time; it goes on ending.
        """
        self.ask_to_stop(now=now)
        deadline = time.monotonic() + timeout
        while self.status == "running":
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {self.run_id} has not ended after {timeout:g} s")
            time.sleep(0.05)

    def ask_to_stop(self, *, now: bool = False) -> None:
        """Ask a run that is under way to end, as ``stop`` does, without waiting for it. Raises as ``stop``.

        A session that is suspended, as by Ctrl-Z, is woken for it: it could not end its run otherwise.
        """
        wake(self._asked.session)
        self._ask("stop", now=now)

    @without_inner_frames
    def stacks(self) -> Stacks:
        """The Python stacks of all ranks or tasks right now, by rank or worker; empty once the run has ended.

        Raises:
            RunUnreachable: its session does not answer.
        """
        return Stacks(self._ask("stacks").get("stacks", {}))

    @without_inner_frames
    def usage(self) -> dict[str, list[Any]]:
        """Use of each worker right now: busy cores, bytes of memory, busy GPUs, bytes of theirs. Empty after the end.

        Raises:
            RunUnreachable: its session does not answer.
        """
        return dict(self._ask("usage").get("usage", {}))

    def _ask(self, question: str, **details: object) -> dict[str, Any]:
        """Ask its session, and return the answer; empty where the run has ended."""
        if self.status != "running":
            return {}
        pid = suspended(self._asked.session)
        if pid is not None:
            raise RunUnreachable(f"Run {self.run_id} does not answer: {_of_suspended(pid)}.", advice=WAKE.format(pid))
        try:
            return control.ask(self.run_dir, question, **details)
        except RunUnreachable:
            if self.status != "running":  # it has ended meanwhile
                return {}
            raise

    def explain(self, write: Callable[[str], str] = str) -> Text:
        """Return an account of the run, in words: what failed first and why, the end of that log, and what to try.

        ``write`` is given what to try, an ``ArgumentText`` where that names arguments, and returns it in other words.
        """
        return Text(clean(self._explanation(write)))

    def _explanation(self, write: Callable[[str], str]) -> str:
        headline = f"{self.name} ({self.run_id})"
        remarks = self._remarks()
        if self.status == "succeeded":
            return "\n".join([f"{headline} succeeded in {self.seconds:.1f} s.", *remarks, *self._outcome()])
        if self.status == "running":
            ways = f"To see where it is: muster stacks {self.run_id}\nTo end it: muster stop {self.run_id}"
            at = under_way(self.events(), time.time(), self._printed_at())
            pid = suspended(self._asked.session)
            if pid is not None:
                at.append(f"Nothing goes on: {_of_suspended(pid)}. Try: {WAKE.format(pid)}.")
            return "\n".join([f"{headline} is running, since {self.seconds:.1f} s.", *at, *remarks, ways])
        if self.status == "lost":
            heard = f"It was last heard of after {self.seconds:.1f} s."
            return "\n".join([f"{headline} was lost: {LOST_REASON}.", heard, *remarks, *self._cause(write)])
        return "\n".join([f"{headline} {self.status} after {self.seconds:.1f} s.", *remarks, *self._cause(write)])

    def _printed_at(self) -> dict[str, float]:
        """Return when each worker's log was written to last, in seconds since the epoch."""
        found = {}
        for path in (self.run_dir / "logs").glob("*.log"):
            with contextlib.suppress(OSError):
                found[path.stem] = path.stat().st_mtime
        return found

    def _remarks(self) -> list[str]:
        """Return remarks: what the first step had to wait for, and notes for the user."""
        said = (event.data for event in self.events())
        told = [data.text if isinstance(data, Note) else data.reason for data in said if isinstance(data, NOTES)]
        notes = [f"Note: {text}" for text in told]
        return [*filter(None, [first_step(self.events())]), *notes]

    def _outcome(self) -> list[str]:
        """The metrics last reported and where the results are, for a run that succeeded."""
        metrics = (self.result or {}).get("metrics") or {}
        lines = [f"  {name}: {value:.6g}" for name, value in metrics.items() if isinstance(value, (int, float))]
        if any((self.run_dir / "results").glob("*")):
            lines.append(f"Results: {self.run_dir / 'results'}")
        return [*lines, f"Logs: {self.run_dir / 'logs'}"]

    def _cause(self, write: Callable[[str], str]) -> list[str]:
        """Return lines about the cause: what failed first and why, the end of that log, and what to try."""
        result = self.result or {}
        first: tuple[str | None, ScriptRaised] | None = None
        for event in self.events():
            if isinstance(event.data, RunAttempt):  # what ended the one before is told with the notes
                first = None
            elif isinstance(event.data, ScriptRaised) and first is None:
                first = event.worker, event.data
        worker, reason, details = result.get("worker"), result.get("reason"), result.get("details")
        if first is not None:
            worker = worker or first[0]
            reason = reason or f"{first[1].type}: {first[1].message}"
            details = details or (first[1].traceback if worker == first[0] else None)
        lines = [f"Cause: {reason}"] if reason else []
        if details:
            lines += ["", str(details).rstrip(), ""]
        log = worker if worker in self.workers else LAUNCHER_LOG
        files = self.log_files(log)
        end = self.log_end(log)
        if end and not details:
            lines += ["", f"The end of {files[-1].name}:", *(f"  {line}" for line in end), ""]
        if self.advice:
            lines.append(f"Try: {write(self.advice)}")
        return [*lines, f"Log: {files[-1]}" if files else f"Logs: {self.run_dir / 'logs'}"]

    def _last_sign_of_life(self) -> float:
        """Return when the session or a worker last wrote anything, in seconds since the epoch.

        Agents write to their logs once they have lost the session.
        """
        found = []
        for path in (self.run_dir / "events.jsonl", *(self.run_dir / "logs").rglob("*.log")):
            with contextlib.suppress(OSError):
                found.append(path.stat().st_mtime)
        return max(found, default=self.started_at)

    @property
    def _request(self) -> Event | None:
        """The first event, which says who asked for what; None where the run has only just been made."""
        if self._first_event is None:
            self._first_event = next(self.events(), None)
        return self._first_event

    @property
    def _asked(self) -> RunRequested:
        """The request that the first event tells of, as far as there is one."""
        data = self._request.data if self._request else None
        return data if isinstance(data, RunRequested) else RunRequested()

    @property
    def _job(self) -> Mapping[str, Any]:
        return self._asked.job

    def __repr__(self) -> str:
        return f"<Run {self.run_id} {self.status} {self.seconds:.1f}s>"


def run_ids() -> list[str]:
    """Ids of all recorded runs, newest first to the second; nothing of them is read."""
    folder = muster_home() / "runs"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(filter(ID_PATTERN.fullmatch, names), reverse=True)


class Runs(Table[Run]):
    """Recorded runs, shown as a table."""

    HEADING = ("status", "took", "strategy", "run")

    def cells(self, item: Run) -> Sequence[str]:
        """Return what ``muster runs`` tells of one."""
        return item.status, f"{item.seconds:.1f} s", item.strategy, item.run_id


def list_runs() -> Runs:
    """All recorded runs, newest first; shown as a table."""
    runs = [Run(muster_home() / "runs" / run_id) for run_id in run_ids()]
    return Runs(sorted(runs, key=lambda run: (run.started_at, run.run_id), reverse=True))


@without_inner_frames
def open_run(name: str = "last") -> Run:
    """The run of that id, or whose id alone begins that way, the only one of that name, or the ``last`` one.

    The four letters that an id ends with will do as well.

    Raises:
        RunNotFound: there is none, or there are several.
    """
    runs = {run.run_id: run for run in list_runs()}
    name = str(name)
    if name in runs:
        return runs[name]
    if name.lower() == "last":
        if not runs:
            raise RunNotFound(
                "No run has been recorded yet.", advice=f"runs are looked for in {muster_home() / 'runs'}"
            )
        return next(iter(runs.values()))
    for what, matches in (
        ("begin with", [run_id for run_id in runs if name and run_id.startswith(name)]),
        ("are called", [run_id for run_id in runs if name in _called(run_id)]),
    ):
        if len(matches) == 1:
            return runs[matches[0]]
        if matches:
            raise RunNotFound(f"{len(matches)} runs {what} {name!r}.", advice=", ".join(matches[:5]))
    near = [run_id for run_id in runs if name and name in run_id] or _near(name, list(runs))
    raise RunNotFound(f"There is no run {name!r}.", advice=", ".join(near[:5]) or "`muster runs` lists them")


def _called(run_id: str) -> tuple[str, ...]:
    """Return what is left of an id without its time: the run's name, and the letters that tell it from others."""
    slug, _, letters = re.sub(r"^\d+-\d+-", "", run_id).rpartition("-")
    return slug, letters


def _near(name: str, ids: list[str]) -> list[str]:
    """Return ids that begin much as ``name`` does, the most similar first."""

    def likeness(run_id: str) -> tuple[int, float]:
        begun = run_id[: len(name)]
        return len(os.path.commonprefix([name, begun])), difflib.SequenceMatcher(None, name, begun).ratio()

    return sorted((run_id for run_id in ids if likeness(run_id)[1] > LIKE), key=likeness, reverse=True)


def prune(keep: int = 20, older_than_days: float | None = None) -> list[str]:
    """Delete recorded runs, never one that is running. Returns the ids of those deleted.

    Args:
        keep: how many of the newest to leave.
        older_than_days: of the others, delete only those that started longer ago than that.
    """
    newest_start = time.time() - (older_than_days or 0) * 86400
    candidates = [run for run in list_runs()[max(keep, 0) :] if run.started_at <= newest_start]
    return [run.run_id for run in candidates if _may_be_deleted(run) and remove_folder(run.run_dir)]


def _may_be_deleted(run: Run) -> bool:
    if run.status == "lost":
        return time.time() - run._last_sign_of_life() > LOST_GRACE
    return run.status != "running"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data = read_json(path)
    except (OSError, ValueError):  # one record that cannot be read must not hide the others
        return None
    return data if isinstance(data, dict) else None


def _of_suspended(pid: int) -> str:
    return f"its session, process {pid}, is suspended (by Ctrl-Z, or SIGSTOP)"
