"""The files through which session and tasks exchange facts, in a shared folder that only its owner may read."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from muster.agent.removal import OWNER
from muster.agent.slurm_bootstrap import PACKED
from muster.job import WorkerSpec
from muster.platforms.agent_package import packed_agent
from muster.platforms.agents import agent_config, news_of, outcome_of
from muster.platforms.slurm.script import parts_of, start_program, start_script
from muster.platforms.slurm.site import HERE, News, Site

HANDLE = re.compile(r"(?P<job>\d+)\.(?P<task>\d+)@(?P<folder>/.+)")
VARIABLES = {
    "id": "MUSTER_SLURM_JOB_ID",
    "address": "MUSTER_ADDRESS",
    "session": "MUSTER_SESSION_ADDRESS",
    "own": "MUSTER_SLURM",
}
GROUP = "/step_"  # in the paths of control groups that Slurm makes for a step and its tasks
JOB = "job.json"  # file with what other processes need to know of a submission
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

    Args:
        folder: its folder.
        site: the machine from which it is submitted.

    Attributes:
        folder, site: the arguments of these names.
        job: id of its job; empty until Slurm has accepted it.
        known_at: when the id became known here, on the monotonic clock.
        names: names of its workers, by task.
        logs: paths of the workers' logs; symbolic ones for logs that are not in a shared folder.
        parts: number of workers in each part of a heterogeneous job, in order; other jobs have one part.
        is_step: whether it is a step of the session's job, rather than a job.
        is_left: whether it still has to be cancelled, as Slurm did not answer.
        connection: the login to the site with whose end the guard there ends it; None where there is no login.
    """

    def __init__(self, folder: Path, site: Site = HERE) -> None:
        self.folder = folder
        self.site = site
        self.job = ""
        self.known_at = time.monotonic()
        self.names: list[str] = []
        self.logs: list[str] = []
        self.parts: list[int] = []
        self.is_step = False
        self.is_left = False
        self.connection: object = None
        self._seen: dict[int, tuple[int, Task]] = {}  # by task: the size of its news file, and its content

    @classmethod
    def found(cls, folder: Path, site: Site = HERE) -> Submission | None:
        """Return the submission that another process has made in this folder; None where there is none."""
        made = cls(folder, site)
        found = site.read(folder, JOB)
        if found is None:
            return None
        try:
            facts = json.loads(found[0])
            made.job, made.names, made.logs = str(facts["job"]), [*facts["names"]], [*facts["logs"]]
            made.parts, made.is_step = [*map(int, facts["parts"])], bool(facts["is_step"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        made.known_at -= found[1]
        return made

    def write(self, specs: Sequence[WorkerSpec], session: str, cap: int, places: Mapping[str, str]) -> None:
        """Write the folder with the tasks' programs and the agents' configs. Raises OSError."""
        self.names = [spec.name for spec in specs]
        self.logs = [str(spec.log) for spec in specs]
        self.parts = [count for count, _ in parts_of([spec.resources for spec in specs])]
        folder = str(self.folder)
        files = {OWNER: json.dumps(self.site.identity())}
        for task, spec in enumerate(specs):
            known = {"news": f"{folder}/worker-{task}.news", "variables": VARIABLES, "has_cgroup": GROUP}
            files[f"worker-{task}.launch"] = json.dumps({**agent_config(spec, cap, places), **known})
        files |= {"start.sh": start_script(folder), "start.py": start_program(folder, session)}
        self.site.write(self.folder, files, {PACKED: packed_agent(has_bytecode=True)})

    def submitted(self, job: str, *, is_step: bool = False) -> list[str]:
        """Record the job, for other processes as well, and return the workers' handles. Raises OSError."""
        self.job, self.known_at, self.is_step = job, time.monotonic(), is_step
        facts = {"job": job, "names": self.names, "logs": self.logs, "parts": self.parts, "is_step": is_step}
        self.site.write(self.folder, {JOB: json.dumps(facts)})
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

    def stop(self, tasks: Sequence[int]) -> None:
        """Record that tasks are to end; one that has not begun never does."""
        self.site.stop(self.folder, tasks)

    def tasks(self) -> dict[int, Task]:
        """Return the tasks that have reported anything or were asked to end, by number."""
        told, news, stopped = self.site.news(self.folder, {task: size for task, (size, _) in self._seen.items()})
        for number, fresh in news.items():
            self._seen[number] = fresh.size, self._task(fresh)
        found = {number: self._seen[number][1] for number in told if number in self._seen}
        for number in stopped:
            found.setdefault(number, Task())
        for number, task in found.items():
            task.was_stopped = number in stopped
        return found

    def _task(self, told: News) -> Task:
        offset = self.site.clock_offset
        data = told.text.encode()
        task = Task(outcome=outcome_of(data), told_at=told.at - offset, seen_at=time.monotonic())
        for line in news_of(data):
            if isinstance(line.get("node"), str) and isinstance(line.get("pid"), int):
                task.node, task.address, task.pid = line["node"], str(line.get("address")), line["pid"]
                task.step, at = str(line.get("step")), line.get("at")
                task.at = float(at) - offset if isinstance(at, (int, float)) else None
        return task

    def output_end(self) -> str:
        """Return the end of the job's output, without that of its workers; empty where it is not here."""
        return self.site.end_of_output(self.folder)

    def last_words(self) -> str:
        """Return as much of the end of the job's output as fits in an error."""
        return self.output_end()[-LAST_WORDS:]

    @property
    def label(self) -> str:
        """Name of its job or step."""
        return f"muster-{self.folder.name}"

    def remove(self) -> None:
        """Remove the submission's folder."""
        self.site.remove(self.folder)
