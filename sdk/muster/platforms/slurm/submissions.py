"""The files through which session and tasks exchange facts, in a shared folder that only its owner may read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from muster.agent.removal import OWNER, remove_folder
from muster.job import WorkerSpec
from muster.platforms.agents import LARGEST_NEWS, agent_config, news_of, outcome_of
from muster.platforms.session_guard import is_left_behind, owner
from muster.platforms.slurm.script import parts_of, start_program, start_script
from muster.records.folders import make_folder
from muster.security.ssh import write_private
from muster.text.reading import read_json

HANDLE = re.compile(r"(?P<job>\d+)\.(?P<task>\d+)@(?P<folder>/.+)")
VARIABLES = {
    "id": "MUSTER_SLURM_JOB_ID",
    "address": "MUSTER_ADDRESS",
    "session": "MUSTER_SESSION_ADDRESS",
    "own": "MUSTER_SLURM",
}
GROUP = "/step_"  # in the paths of control groups that Slurm makes for a step and its tasks
LARGEST_END = 16 << 10  # bytes that are read of the end of a job's output, which may be of any size
LAST_WORDS = 500  # characters of a job's output in errors


def task_of(handle: str) -> int:
    """Return the number of a worker's task; 0 for a text that is no handle."""
    match = HANDLE.fullmatch(handle)
    return int(match["task"]) if match else 0


@dataclass
class Task:
    """One task, as its files describe it.

    Attributes:
        node, address, pid, step, at: where it runs, and since when, once its agent has reported that.
        outcome: its end, once its agent has reported it.
        told_at: time of its agent's last message, in seconds since the epoch.
        seen_at: when that message was first read here, on the monotonic clock.
        was_stopped: whether it was asked to end.
    """

    node: str = ""
    address: str = ""
    pid: int = 0
    step: str = ""
    at: float | None = None
    outcome: dict[str, Any] = field(default_factory=dict)
    told_at: float = 0.0
    seen_at: float = 0.0
    was_stopped: bool = False


class Submission:
    """One submission: its job, its workers' names, and its folder.

    Attributes:
        folder: its folder.
        job: id of its job; empty until Slurm has accepted it.
        known_at: when the id became known here, on the monotonic clock.
        names: names of its workers, by task.
        logs: paths of the workers' logs; symbolic ones for logs that are not in a shared folder.
        parts: number of workers in each part of a heterogeneous job, in order; other jobs have one part.
        is_step: whether it is a step of the session's job, rather than a job.
        is_left: whether it still has to be cancelled, as Slurm did not answer.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = ""
        self.known_at = time.monotonic()
        self.names: list[str] = []
        self.logs: list[str] = []
        self.parts: list[int] = []
        self.is_step = False
        self.is_left = False
        self._seen: dict[int, tuple[int, Task]] = {}  # by task: the size of its news file, and its content

    @classmethod
    def found(cls, folder: Path) -> Submission | None:
        """Return the submission that another process has made in this folder; None where there is none."""
        made = cls(folder)
        try:
            facts = read_json(folder / "job.json")
            made.job, made.names, made.logs = str(facts["job"]), [*facts["names"]], [*facts["logs"]]
            made.parts, made.is_step = [*map(int, facts["parts"])], bool(facts["is_step"])
            made.known_at -= max(0.0, time.time() - (folder / "job.json").stat().st_mtime)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return made

    def write(self, specs: Sequence[WorkerSpec], session: str, cap: int, places: Mapping[str, str]) -> None:
        """Write the folder with the tasks' programs and the agents' configs. Raises OSError."""
        make_folder(self.folder, 0o700)
        write_private(self.folder / OWNER, json.dumps({"process": owner(), "host": socket.gethostname()}))
        self.names = [spec.name for spec in specs]
        self.logs = [str(spec.log) for spec in specs]
        self.parts = [count for count, _ in parts_of([spec.resources for spec in specs])]
        for task, spec in enumerate(specs):
            path = self.folder / f"worker-{task}"
            known = {"news": f"{path}.news", "variables": VARIABLES, "has_cgroup": GROUP}
            config = {**agent_config(spec, cap, places), **known}
            write_private(path.with_name(f"{path.name}.launch"), json.dumps(config))
        folder = str(self.folder)
        write_private(self.folder / "start.sh", start_script(folder))
        write_private(self.folder / "start.py", start_program(folder, session))

    def submitted(self, job: str, *, is_step: bool = False) -> list[str]:
        """Record the job, for other processes as well, and return the workers' handles. Raises OSError."""
        self.job, self.known_at, self.is_step = job, time.monotonic(), is_step
        facts = {"job": job, "names": self.names, "logs": self.logs, "parts": self.parts, "is_step": is_step}
        write_private(self.folder / "job.json", json.dumps(facts))
        return self.handles

    @property
    def handles(self) -> list[str]:
        """The workers' handles."""
        return [f"{self.job}.{task}@{self.folder}" for task in range(len(self.names))]

    @property
    def step(self) -> str:
        """Id of the step that runs its tasks; empty until an agent has reported it."""
        number = next((task.step for task in self.tasks().values() if task.step.isdecimal()), "")
        return f"{self.job}.{number}" if number else ""

    def part_of(self, task: int) -> int | None:
        """Return the number of a task's part of a heterogeneous job; None for other jobs and steps."""
        if len(self.parts) < 2 or self.is_step:
            return None
        ends = accumulate(self.parts)
        return next(number for number, end in enumerate(ends) if task < end)

    def job_of(self, task: int) -> str:
        """Return the id of a task's job; each part of a heterogeneous job has an id of its own (``JOB+PART``)."""
        part = self.part_of(task)
        return self.job if part is None else f"{self.job}+{part}"

    def stop(self, task: int) -> None:
        """Record that a task is to end, and remove its agent's config, so that a task that has not begun never does."""
        path = self.folder / f"worker-{task}"
        with contextlib.suppress(OSError):  # the folder is gone, as the submission has ended
            write_private(path.with_name(f"{path.name}.stop"), "")
            path.with_name(f"{path.name}.launch").unlink()

    def tasks(self) -> dict[int, Task]:
        """Return the tasks that have reported anything or were asked to end, by number."""
        found: dict[int, Task] = {}
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                stem, _, kind = entry.name.partition(".")
                number = stem.removeprefix("worker-")
                if kind == "news" and number.isdecimal():
                    found[int(number)] = self._read(int(number), entry)
                elif kind == "stop" and number.isdecimal():
                    found.setdefault(int(number), Task())
        for task_number, task in found.items():
            task.was_stopped = (self.folder / f"worker-{task_number}.stop").exists()
        return found

    def _read(self, number: int, entry: os.DirEntry[str]) -> Task:
        size = entry.stat().st_size
        known = self._seen.get(number)
        if known is None or known[0] != size:
            with open(entry.path, "rb") as file:
                data = file.read(LARGEST_NEWS)
            task = Task(outcome=outcome_of(data), told_at=entry.stat().st_mtime, seen_at=time.monotonic())
            for line in news_of(data):
                if isinstance(line.get("node"), str) and isinstance(line.get("pid"), int):
                    task.node, task.address, task.pid = line["node"], str(line.get("address")), line["pid"]
                    task.step, at = str(line.get("step")), line.get("at")
                    task.at = float(at) if isinstance(at, (int, float)) else None
            known = self._seen[number] = (size, task)
        return known[1]

    def output_end(self) -> str:
        """Return the end of the job's output, without that of its workers; empty where it is not here."""
        with contextlib.suppress(OSError), (self.folder / "output").open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LARGEST_END, 0))
            return file.read(LARGEST_END).decode("utf-8", "replace").strip()
        return ""

    def last_words(self) -> str:
        """Return as much of the end of the job's output as fits in an error."""
        return self.output_end()[-LAST_WORDS:]

    @property
    def label(self) -> str:
        """Name of its job or step."""
        return f"muster-{self.folder.name}"

    def remove(self) -> None:
        """Remove the submission's folder."""
        remove_folder(self.folder)


def left_behind(home: Path) -> list[Submission]:
    """Return the submissions in this folder whose session has ended for certain."""
    found = []
    for path in home.glob(f"*/{OWNER}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            facts = read_json(path)
            if path.stat().st_uid == os.getuid() and is_left_behind(str(facts["process"]), str(facts["host"])):
                found.append(Submission(path.parent))
    return found
