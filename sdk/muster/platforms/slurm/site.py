"""The machine from which jobs are submitted: Slurm's commands there, and the submissions' files."""

from __future__ import annotations

import base64
import math
import os
import weakref
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from muster.agent.fields import items, like, number, optional, string, strings, whole, yes_or_no
from muster.agent.slurm_site import AT_ONCE, REQUESTS, SECONDS
from muster.platforms.guard_answers import ADDRESS, Check, checked
from muster.platforms.slurm.commands import PROGRAMS, Commands, SlurmGone
from muster.platforms.slurm.queue import Queue

MOST_TASKS = 1 << 16


class News(NamedTuple):
    """Reports of a task's agent: their text, and the size and time of their file."""

    text: str
    size: int
    at: float


def _news(value: Any) -> dict[int, News]:
    """Check reports of agents by task."""
    if not isinstance(value, dict) or len(value) > MOST_TASKS:
        raise ValueError("reports by task")
    try:
        return {
            int(task): News(string(told["text"]), whole(0)(told["size"]), number(0)(told["at"]))
            for task, told in value.items()
        }
    except KeyError as error:
        raise ValueError(f"reports with {error}") from None


def _late(program: str, seconds: float) -> SlurmGone:
    return SlurmGone(
        f"{program} has not answered within {seconds:g} s.", advice="`scontrol ping` says whether Slurm is up"
    )


class Site(Commands):
    """A machine from which jobs are submitted. What it does is in :mod:`muster.agent.slurm_site`.

    Attributes:
        host: its name, as ssh knows it.
        queue: Slurm's queue, as this machine sees it.
        clock_offset: seconds by which the machine's clock is ahead of the session's.
    """

    clock_offset = 0.0

    def __init__(self, host: str) -> None:
        self.host = host
        self.queue = Queue(weakref.proxy(self))  # no cycle: a login ends with the last reference to its platform

    @abstractmethod
    def call(self, request: str, seconds: float | None = None, **fields: Any) -> Mapping[str, Any]:
        """Have the machine do one of its ``REQUESTS``, and return its answer.

        Args:
            request: its name.
            seconds: time that it may take; None for the usual.
            fields: its arguments.

        Raises:
            PlatformError: the machine cannot be asked.
        """

    @property
    def allocation(self) -> str:
        """Id of the job that the session runs in, if it runs in one on this machine; empty otherwise."""
        return ""

    @property
    def connection(self) -> object:
        """The login by which it is asked now, of which there may be another one later; None where it needs none."""
        return None

    def _checked(self, answer: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
        return checked(answer, checks, self.host)

    def run(
        self, *argv: str, given: str | None = None, seconds: float = SECONDS, without: Collection[str] = ()
    ) -> tuple[int, str, str]:
        """Run one of Slurm's commands there, as ``Commands`` says."""
        answer = self.call("command", seconds, argv=[*argv], given=given, limit=seconds, without=[*without])
        checks = {"status": optional(whole(-64, 255)), "why": optional(string)}
        done = self._checked(answer, checks)
        if done["why"] is not None:
            raise SlurmGone(f"{argv[0]} cannot be run {self.place}: {done['why']}.", advice=self.missing_advice)
        if done["status"] is None:
            raise _late(argv[0], seconds)
        printed = self._checked(answer, {"out": string, "said": string})
        return done["status"], printed["out"], printed["said"]

    def run_all(self, argvs: Sequence[Sequence[str]], seconds: float) -> None:
        """Run some of Slurm's commands there by one request, several at the same time, whatever becomes of them.

        Args:
            argvs: the commands, of which there is at least one.
            seconds: how long each may take.

        Raises:
            SlurmGone: one of them does not end in time.
        """
        longest = seconds * math.ceil(len(argvs) / AT_ONCE)
        answer = self.call("commands", longest, argvs=[[*argv] for argv in argvs], limit=seconds)
        if self._checked(answer, {"late": yes_or_no})["late"]:
            raise _late(argvs[0][0], seconds)

    def missing(self, programs: Sequence[str] = PROGRAMS) -> Sequence[str]:
        """Return those of these programs that are not on the search path there."""
        answer = self.call("missing", programs=[*programs])
        return list(self._checked(answer, {"programs": items(string, len(programs))})["programs"])

    def variables(self) -> Mapping[str, str]:
        """Return the variables of the environment there by which the user gives sbatch options."""
        found: dict[str, str] = self._checked(self.call("variables"), {"variables": strings})["variables"]
        return found

    def home(self, folder: str | None) -> Path:
        """Return the folder for submissions there: this one, or else Muster's own."""
        return Path(self._checked(self.call("home", folder=folder or ""), {"folder": string})["folder"])

    def identity(self) -> dict[str, str]:
        """Return the label of the process that submissions last as long as (``process``), and its ``host``."""
        return self._checked(self.call("identity"), {"process": string, "host": string})

    def address(self, towards: Sequence[str]) -> str:
        """Return its address as the first of these machines sees it that it can look up; empty where it knows none."""
        check = {"address": like(ADDRESS, "an address")}
        return str(self._checked(self.call("address", towards=[*towards]), check)["address"])

    def write(self, folder: Path, files: Mapping[str, str], binary: Mapping[str, bytes] | None = None) -> None:
        """Write files that only the user may read: texts, and others. Raises OSError."""
        encoded = {name: base64.b64encode(content).decode() for name, content in (binary or {}).items()}
        answer = self.call("write", folder=str(folder), files=dict(files), binary=encoded)
        why = self._checked(answer, {"why": optional(string)})["why"]
        if why is not None:
            raise OSError(0, why)

    def read(self, folder: Path, name: str) -> tuple[str, float] | None:
        """Return a file's text and its age in seconds; None where it cannot be read."""
        answer = self.call("read", folder=str(folder), name=name)
        found = self._checked(answer, {"text": optional(string), "age": optional(number(0))})
        return None if found["text"] is None else (found["text"], found["age"] or 0.0)

    def news(self, folder: Path, sizes: Mapping[int, int]) -> tuple[set[int], dict[int, News], set[int]]:
        """Return the tasks that have reported, reports that do not have these sizes, and the tasks that are to end."""
        answer = self.call("news", folder=str(folder), sizes={str(task): size for task, size in sizes.items()})
        tasks = items(whole(0), MOST_TASKS)
        fields = self._checked(answer, {"tasks": tasks, "news": _news, "stopped": tasks})
        return set(fields["tasks"]), fields["news"], set(fields["stopped"])

    def stop(self, folder: Path, tasks: Sequence[int]) -> None:
        """Record that tasks are to end."""
        self.call("stop", folder=str(folder), tasks=[*tasks])

    def end_of_output(self, folder: Path) -> str:
        """Return the end of a job's output."""
        return str(self._checked(self.call("end_of_output", folder=str(folder)), {"text": string})["text"])

    def remove(self, folder: Path) -> None:
        """Remove a submission's folder."""
        self.call("remove", folder=str(folder))

    def left_behind(self, around: Path, labels: Sequence[str]) -> tuple[list[Path], set[str]]:
        """Return the folders of submissions, and those of these labels, whose sessions have ended for certain."""
        answer = self.call("left_behind", around=str(around), labels=[*labels])
        strings = items(string, MOST_TASKS)
        found = self._checked(answer, {"folders": strings, "labels": strings})
        return [*map(Path, found["folders"])], set(found["labels"])


class Here(Site):
    """The session's own machine."""

    def __init__(self) -> None:
        super().__init__("this machine")

    @property
    def allocation(self) -> str:
        """Id of the job that this session runs in; empty outside of jobs."""
        return os.environ.get("SLURM_JOB_ID", "")

    def call(self, request: str, seconds: float | None = None, **fields: Any) -> Mapping[str, Any]:
        """Do it at once."""
        return REQUESTS[request](**fields)


HERE = Here()  # its queue is shared by all runs of this process
