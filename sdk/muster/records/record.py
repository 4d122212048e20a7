"""The record of a run, read from its folder."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from muster.errors import RunNotFound, without_inner_frames
from muster.events import Event, RunEnded, RunRequested, WorkerState
from muster.job import Status, Worker, Workers
from muster.records.folders import ID_TIME
from muster.records.result import read_record
from muster.records.sessions import is_alive, is_out_of_sight
from muster.text.arguments import ArgumentText, each_part
from muster.text.cleaning import clean, is_file_name, overwritten
from muster.text.reading import LONGEST_LINE, open_regular, read_json
from muster.text.shown import Text

logger = logging.getLogger("muster")

NUMBER = r"(rank[- ])?(\d+)"  # of a rank; without the word, of a rank or a worker
LAUNCHER_LOG = "launcher"  # the log of the launcher, beside those of the workers
LOG_END = 15  # lines of a log that explain() shows
LOG_END_BYTES = 64 * 1024
LOGS_BYTES = 1 << 28  # that logs() returns at most: thousands of full logs do not fit into the memory of a session
JOURNAL_END_BYTES = 64 * 1024
# Without a sign of life after which a run of another machine counts as lost. Sessions give one twice a minute; some
# network file systems tell it a minute later, and clocks differ.
SILENT_SECONDS = 300.0
START_GRACE = 60.0  # seconds that a new folder may be without its first event before it counts as lost
LOST_REASON = "its session is gone and left no result: it was killed, or its machine went down"
LOST_ADVICE = "run it again; a script that keeps checkpoints goes on from the last of them (muster.training.checkpoint)"


class RunRecord:
    """The record of one run, read from its folder at each access; the run may still be under way.

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
        """``running``, ``succeeded``, ``failed``, ``stopped``, or ``lost`` if its session left no result."""
        result = self.result
        if result is not None:
            return str(result.get("status", "failed"))
        if self._request_event is None:
            is_new = abs(time.time() - self.started_at) < START_GRACE  # abs(): the clock may have been set back
            return "running" if is_new else "lost"
        return "running" if is_alive(self.session) or self._is_heard_of() else "lost"

    def _is_heard_of(self) -> bool:
        """Return whether a session that only another machine, or another container, can see has been alive lately."""
        return is_out_of_sight(self.session) and time.time() - self.last_sign_of_life < SILENT_SECONDS

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self._job.get("name") or self.run_id[16:-5])

    @property
    def strategy(self) -> str:
        """Name of the strategy, such as ``horovod``; empty where it was not recorded."""
        return str(self._request.strategy or self._job.get("strategy") or "")

    @property
    def started_at(self) -> float:
        """Time at which the run was asked for, in seconds since the epoch."""
        return (
            self._request_event.time if self._request_event else time.mktime(time.strptime(self.run_id[:15], ID_TIME))
        )

    @property
    def session(self) -> Mapping[str, Any]:
        """The process that the run belongs to, as ``muster.records.sessions`` describes it."""
        return self._request.session

    @property
    def detached_until(self) -> float | None:
        """Time at which a detached run is ended at the latest; None for one that ends with its session."""
        return self._request.detached_until

    @property
    def platform(self) -> str:
        """Name of the platform of its workers, such as ``local``; empty where it was not recorded."""
        return str(self._request.platform or "")

    @property
    def cwd(self) -> str:
        """The folder that the run was started in; empty if it was not recorded."""
        return str(self._job.get("cwd") or "")

    @property
    def seconds(self) -> float:
        """Seconds that the run took, has taken so far, or is known to have lasted."""
        result = self.result
        if result is not None and "seconds" in result:
            return float(result["seconds"])
        if self.status == "running":
            return max(0.0, time.time() - self.started_at)  # the clock may have been set meanwhile
        return max(0.0, self.last_sign_of_life - self.started_at)

    @property
    def worker_names(self) -> list[str]:
        """Names of the workers, in launch order as far as that is known. Each is safe to use as a file name."""
        planned = list(filter(is_file_name, self._planned("processes")))
        logged = sorted(path.stem for path in (self.run_dir / "logs").glob("*.log") if path.stem != LAUNCHER_LOG)
        return list(dict.fromkeys([*planned, *filter(is_file_name, logged)]))

    @property
    def workers(self) -> Workers:
        """The workers as they were last recorded, in launch order; shown as a table. Their ``id`` is not recorded."""
        found: dict[str, Worker] = {}
        for event in self.events():
            if isinstance(event.data, WorkerState) and is_file_name(event.worker or ""):
                with contextlib.suppress(ValueError):  # a status of another version
                    found[event.worker or ""] = _moved(found.get(event.worker or ""), event, event.data)
        status = self.status
        if status == "lost":
            return Workers(worker.moved(Status.FAILED, reason=LOST_REASON) for worker in found.values())
        return Workers(found.values() if status == "running" else (one.moved(Status.STOPPED) for one in found.values()))

    def _planned(self, what: str) -> Mapping[str, Any]:
        found = (self.plan or {}).get(what)
        return found if isinstance(found, dict) else {}

    @property
    def result(self) -> Mapping[str, Any] | None:
        """Contents of ``result.json``, or else the end of the journal; None until the run has ended.

        It is a mapping, also for a run that failed; :meth:`wait` returns a ``Result`` or raises the error.
        """
        found = _read_json(self.run_dir / "result.json") or self._journalled_result()
        return None if found is None else read_record(found)

    @property
    def advice(self) -> str:
        """Advice on a run that failed, an ``ArgumentText`` if it names arguments; empty otherwise."""
        result = self.result or ({"advice": LOST_ADVICE} if self.status == "lost" else {})
        parts = result.get("advice_parts")
        advice = ArgumentText.from_json(parts) if isinstance(parts, list) else str(result.get("advice") or "")
        return each_part(advice, clean)

    def _journalled_result(self) -> Mapping[str, Any] | None:
        """Return the run's end from its last event, for when the disk had no room for ``result.json``."""
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
        """Contents of ``plan.json``; None if the run ended before there was a plan."""
        return _read_json(self.run_dir / "plan.json")

    def events(self) -> Iterator[Event]:
        """Yield the recorded events, oldest first. Incomplete lines, from a session that died, are skipped.

        Nothing is read after a line that is longer than any of Muster's: the file may have been extended without end.
        """
        try:
            opened = open_regular(self.run_dir / "events.jsonl")
        except FileNotFoundError:
            return
        except OSError as error:  # such as a file of another user's: it must not hide the other runs
            self._warn(f"it cannot be read: {error.strerror}")
            return
        with io.TextIOWrapper(opened, encoding="utf-8", errors="replace") as file:
            for line in iter(lambda: file.readline(LONGEST_LINE), ""):
                if len(line) == LONGEST_LINE:
                    self._warn("a line is too long for an event; what follows is not read")
                    return
                try:
                    yield Event.from_json(line, self._warn)
                except ValueError:
                    continue

    def _warn(self, text: str) -> None:
        """Log once that a part of the journal does not fit this version of Muster, and is skipped."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s: %s", self.run_dir / "events.jsonl", text)

    def log_path(self, name: str) -> Path:
        """Return the path of the log of a worker, a rank (``rank-1``) or the ``launcher``.

        A rank that is alone on its worker has no log of its own: the path is that of its worker's.

        Raises:
            RunNotFound: the run has no worker or rank of that name.
        """
        folder = self.run_dir / "logs"
        if name == LAUNCHER_LOG:
            return folder / f"{name}.log"
        member = self.member(name)
        own = folder / "ranks" / f"{member}.log"
        return own if own.is_file() else folder / f"{self.worker_of(member)}.log"

    def worker_of(self, name: str) -> str:
        """Return the worker of that name, or that a rank (``rank-1``) runs on. Raise RunNotFound as ``member`` does."""
        member = self.member(name)
        return member if member in self.worker_names else str(self._planned("ranks")[member.removeprefix("rank-")])

    def member(self, name: str) -> str:
        """Return the full name of a worker (``worker-1``) or a rank (``rank-1``), which may be given by number only.

        Raises:
            RunNotFound: the run has none of that name; or the number is that of a rank and of another rank's worker.
        """
        name, workers, ranks = str(name), self.worker_names, self._planned("ranks")
        if name in workers:
            return name
        numbered = re.fullmatch(NUMBER, name)
        word, number = numbered.groups() if numbered else (None, "")
        worker = f"worker-{number}" if not word and f"worker-{number}" in workers else ""
        if ranks.get(number) in workers:
            if worker and ranks[number] != worker:
                text = f"{name!r} may be {worker} of run {self.run_id}, or rank {number}, which is on {ranks[number]}."
                raise RunNotFound(text, advice=f"{worker} or rank-{number}")
            return f"rank-{number}"
        if worker:
            return worker
        if not workers:
            advice = f"muster explain {self.run_id}: none of its workers had begun"
            raise RunNotFound(f"Run {self.run_id} has no worker {name!r}.", advice=advice)
        known = f"its workers: {', '.join(workers)}"
        if len(ranks) > len(workers):
            known += f"; its ranks: rank-0 to rank-{len(ranks) - 1}"
        raise RunNotFound(f"Run {self.run_id} has no worker {name!r}.", advice=known)

    def log_files(self, worker: str) -> list[Path]:
        """Return the log files of a worker, a rank or the ``launcher``, older part first; none if it printed nothing.

        Raises:
            RunNotFound: the run has no worker or rank of that name.
        """
        newer = self.log_path(worker)
        return [path for path in (newer.with_name(newer.name + ".1"), newer) if path.is_file()]

    @without_inner_frames
    def logs(self, worker: str | None = None) -> Text:
        """Return the output of a worker, a rank (``rank-1``) or the ``launcher``; of all workers by default.

        Of more than 256 MiB only the end is returned, of all workers that of each; a line says what is left out.
        Bytes that are not UTF-8 become U+FFFD.

        Raises:
            RunNotFound: the run has no such worker.
        """
        if worker is not None:
            return Text(self._end_of_log(worker, LOGS_BYTES))
        names = self.worker_names
        texts = ((name, self._end_of_log(name, LOGS_BYTES // len(names))) for name in names)
        return Text("".join(f"--- {name}\n{text.rstrip()}\n" for name, text in texts if text.strip()))

    def _end_of_log(self, worker: str, most: int) -> str:
        """Return the last ``most`` bytes of a log, after a line that says how many were before them and where."""
        files = self.log_files(worker)
        end, left_out = b"", 0
        for path in reversed(files):
            with open_regular(path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - (most - len(end))))
                left_out += file.tell()
                end = file.read(size - file.tell()) + end
        before = f"[muster] {left_out} bytes before this are left out: {files[0]}\n" if left_out else ""
        return before + end.decode("utf-8", errors="replace")

    def log_end(self, worker: str, lines: int = LOG_END) -> list[str]:
        """Return the last complete lines that a worker (or ``launcher``) printed. Raise RunNotFound as ``logs``."""
        files = self.log_files(worker)
        if not files:
            return []
        with open_regular(files[-1]) as file:
            begin = max(0, files[-1].stat().st_size - LOG_END_BYTES)
            file.seek(begin)
            data = file.read()
        if begin:
            data = data.partition(b"\n")[2] or data  # the first line is incomplete, but may be the only one
        text = overwritten(data.decode("utf-8", errors="replace"))
        return text.removesuffix("\n").split("\n")[-lines:] if text else []

    @property
    def last_sign_of_life(self) -> float:
        """Time at which the session or a worker last wrote anything, in seconds since the epoch.

        The session touches the journal while it has nothing to write. Agents write to workers' logs once they have
        lost the session.
        """
        found = []
        for path in (self.run_dir / "events.jsonl", *(self.run_dir / "logs").rglob("*.log")):
            with contextlib.suppress(OSError):
                found.append(path.stat().st_mtime)
        return max(found, default=self.started_at)

    @property
    def _request_event(self) -> Event | None:
        """The first event, which describes the request; None if the run's folder has only just been made."""
        if self._first_event is None:
            self._first_event = next(self.events(), None)
        return self._first_event

    @property
    def _request(self) -> RunRequested:
        """The data of the first event; that of an empty request if there is none."""
        data = self._request_event.data if self._request_event else None
        return data if isinstance(data, RunRequested) else RunRequested()

    @property
    def _job(self) -> Mapping[str, Any]:
        return self._request.job


def _moved(before: Worker | None, event: Event, state: WorkerState) -> Worker:
    """Return a worker after an event about its state. Raise ValueError for a status that no worker has."""
    status = Status(state.status or "")
    if before is None or status.order < before.status.order:  # launched, perhaps for another attempt
        before = Worker("", event.worker or "", created_at=event.time)
    told = {name: value for name, value in vars(state).items() if value is not None}
    if status is Status.RUNNING:
        told["running_at"] = event.time
    if status.is_final:
        told["finished_at"] = event.time
    return before.moved(**{**told, "status": status, "reason": state.reason or None})


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data = read_json(path)
    except (OSError, ValueError):  # one record that cannot be read must not hide the others
        return None
    return data if isinstance(data, dict) else None
