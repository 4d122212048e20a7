"""Answers of Slurm's that are late, lost or of another moment. By commands that stand in for its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from muster.agent import slurm_site
from muster.agent.owners import owner
from muster.commands.main import main
from muster.errors import (
    HostUnreachable,
    LaunchRefused,
    MusterError,
    RunTimeout,
    WorkerCancelled,
    WorkerLost,
    WorkerOutOfMemory,
    WorkerPreempted,
)
from muster.failure.diagnosis import explain
from muster.failure.failures import Failure, FailureKind
from muster.job import EndCause, Status, Worker
from muster.platforms.slurm import queue
from muster.platforms.slurm.commands import SlurmGone
from muster.platforms.slurm.guard import JobGuard, clean_up
from muster.platforms.slurm.platform import SlurmPlatform
from muster.platforms.slurm.queue import Queue
from muster.platforms.slurm.site import HERE, Here, Site
from muster.platforms.slurm.states import state_of
from muster.platforms.slurm.submissions import Submission, Task
from muster.platforms.slurm.words import why_never, why_pending
from muster.security.ssh import write_private

from tests.platforms.slurm_stand_in import StandIn
from tests.support import Run, eventually

HOST = socket.gethostname()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(tmp_path / "slurm")
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setattr(queue, "POLL_SECONDS", 0.0)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return made


@pytest.fixture
def cluster(fake: StandIn) -> StandIn:
    """A cluster with a node that takes what fits, and a job on it."""
    fake.has_a_job()
    return fake


def test_a_look_at_everybody_s_jobs_says_nothing_new_of_one_s_own(fake: StandIn) -> None:
    fake.queue("7|PENDING|Priority|N/A|main|none", everybody="5|main\n6|other\n7|main\n")
    looked = Queue(HERE)
    jobs, at = looked.jobs()
    again, still_at = looked.jobs()
    assert [len(fake.asked("squeue")), looked.before("7")] == [2, 1]
    assert (again, still_at) == (jobs, at)
    assert looked.jobs()[1] > at


def test_jobs_come_first_that_share_a_partition_with_one_s_own(fake: StandIn) -> None:
    everybody = "1|cpu\n2|gpu,cpu\n3|other\n4|gpu\n7|cpu,gpu\n8|other,gpu\n9|cpu\n"
    mine = (line.split("|") for line in everybody.splitlines())
    fake.queue(*(f"{job}|PENDING|Priority|N/A|{names}|none" for job, names in mine), everybody=everybody)
    looked = Queue(HERE)
    looked.jobs()
    looked.jobs()
    assert {job: looked.before(job) for job in "1234789"} == {
        "1": 0, "2": 1, "3": 0, "4": 1, "7": 3, "8": 4, "9": 3,
    }  # fmt: skip


def test_the_places_of_other_users_jobs_are_not_counted(fake: StandIn) -> None:
    """For each of 100,000 that would take seconds, in which no other thread runs."""
    fake.queue("7|PENDING|Priority|N/A|main|none", everybody="5|main\n6|main\n7|main\n8|main\n")
    looked = Queue(HERE)
    looked.jobs()
    looked.jobs()
    assert [looked.before(job) for job in ("5", "7", "8")] == [None, 2, None]


@pytest.mark.parametrize(
    ("reason", "before", "words"),
    [
        ("Priority", 2, "2 pending jobs come first"),
        ("Priority", 1, "1 pending job comes first"),
        ("Priority", 0, None),  # those that come first are not shown, as sites hide other users' jobs
        ("Resources", 0, "it is the next one"),
        ("Licenses", 2, None),
        ("Resources", None, None),
    ],
)
def test_the_place_in_the_queue_does_not_contradict_slurm(reason: str, before: int | None, words: str | None) -> None:
    _, _, said = why_pending(reason, before=before).partition("; ")
    assert said == (f"{words}." if words else "")


def test_when_slurm_expects_to_start_a_job_is_told(fake: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        fake.queue("7|PENDING|Resources|1764265500|main|none")
        waits = state_of_a_queued_job(monkeypatch)
        fake.queue("7|PENDING|Resources|N/A|main|none")
        waits_longer = state_of_a_queued_job(monkeypatch)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert str(waits.reason).endswith("; Slurm expects to start it at 19:45 on 27 November.")
    assert "expects" not in str(waits_longer.reason)


def state_of_a_queued_job(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """The state of a worker of job 7, by a queue that is asked for the first time."""
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    made = Submission(Path("/nowhere"))
    made.job, made.names = "7", ["worker-0"]
    return state_of(Worker("7.0@/nowhere", "worker-0", created_at=1.0), made, None, None)


@pytest.mark.parametrize("state", ["PENDING", "CONFIGURING"])
def test_a_worker_that_runs_does_not_wait_as_the_queue_said_before(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(HERE, "queue", looked := Queue(HERE))
    monkeypatch.setattr(queue, "POLL_SECONDS", 60.0)
    fake.queue(f"7|{state}|Resources|N/A|main|none")
    looked.jobs()
    made = Submission(Path("/nowhere"))
    made.job, made.names = "7", ["worker-0"]
    task = Task(node="n1", at=time.time(), seen_at=time.monotonic())
    found = state_of(Worker("7.0@/nowhere", "worker-0", created_at=1.0), made, task, None)
    assert (found.status, found.reason) == (Status.RUNNING, None)


def test_a_job_that_the_queue_does_not_show_is_not_over(fake: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HERE, "queue", looked := Queue(HERE))
    made = Submission(Path("/nowhere"))
    made.job, made.names, made.known_at = "7", ["worker-0"], float("-inf")
    worker = Worker("7.0@/nowhere", "worker-0", created_at=1.0)
    fake.says("scontrol", "JobId=7 JobState=RUNNING Reason=None\n")
    assert state_of(worker, made, None, None) == worker
    fake.says("scontrol", "", complains="Invalid job id specified", status=1)
    fake.says("sacct", "RUNNING|0:0|None\n")  # never told of the end
    assert "not known" in str(state_of(worker, made, None, None).reason)
    fake.says("sacct", "TIMEOUT|0:0|None\n")
    over = state_of(worker, made, None, None)
    assert (over.status, "TIMEOUT" in str(over.reason)) == (Status.FAILED, True)
    monkeypatch.setattr(queue, "POLL_SECONDS", 60.0)
    before = len(fake.asked("scontrol"))
    assert looked.end_of("8") == looked.end_of("8")
    assert len(fake.asked("scontrol")) - before == 1


def test_what_nobody_remembers_is_said_to_be_unknown_where_there_is_no_accounting(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    (fake.folder / "bin" / "sacct").unlink()
    monkeypatch.setenv("PATH", f"{fake.folder}/bin{os.pathsep}/bin")
    assert shutil.which("sacct") is None
    fake.says("scontrol", "", complains="slurm_load_jobs error: Invalid job id specified", status=1)
    made = Submission(Path("/nowhere"))
    made.job, made.names, made.known_at = "7", ["worker-0"], float("-inf")
    worker = state_of(Worker("7.0@/nowhere", "worker-0", created_at=1.0), made, Task(node="n2", at=1.0), None)
    assert (worker.status, worker.cause) == (Status.FAILED, EndCause.LOST)
    assert str(worker.reason).startswith(
        "What ended it is not known: its job is gone from Slurm's memory, and there is no"
    )


@pytest.mark.parametrize("set_by", [3600.0, -3600.0])
def test_a_clock_that_is_set_changes_nothing_about_jobs(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch, set_by: float
) -> None:
    """Neither of one that the queue does not show yet, nor of one that has gone, nor of a task that has ended."""
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    worker = Worker("7.0@/nowhere", "worker-0", created_at=time.time())
    task = Task(node="n1", at=time.time(), outcome={"status": Status.STOPPED, "signal": 15}, told_at=time.time())
    clock = types.SimpleNamespace(time=lambda: time.time() + set_by, monotonic=time.monotonic)
    monkeypatch.setattr("muster.platforms.slurm.states.time", clock)
    made = Submission(Path("/nowhere"))
    made.job, made.names = "7", ["worker-0"]
    fake.queue()
    fake.says("scontrol", "", complains="Invalid job id specified", status=1)
    assert state_of(worker, made, None, None) == worker
    made.known_at = float("-inf")
    assert state_of(worker, made, None, None).status is Status.FAILED
    fake.queue("7|RUNNING|None|N/A|main|none")
    assert state_of(worker, made, replace(task, seen_at=time.monotonic()), None).status is Status.RUNNING
    assert state_of(worker, made, task, None).status is Status.STOPPED


@pytest.mark.parametrize("told", [{"signal": signal.SIGKILL}, {"exit_code": 128 + signal.SIGKILL}])
def test_a_process_that_its_node_ends_for_its_memory_is_out_of_memory_while_its_job_goes_on(
    told: dict[str, int], fake: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where a shell reports the signal of its command as an exit status."""
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    monkeypatch.setattr("muster.platforms.slurm.states.SETTLE_SECONDS", -1.0)
    made = Submission(tmp_path)
    made.job, made.names = "7", ["worker-0", "worker-1"]
    (tmp_path / "output").write_text("srun: error: n1: task 0: Out Of Memory\n")
    fake.queue("7|RUNNING|None|N/A|main|none")
    task = Task(node="n1", at=1.0, outcome={"status": Status.FAILED, **told}, told_at=2.0)
    worker = state_of(Worker(f"7.0@{tmp_path}", "worker-0", created_at=1.0), made, task, None)
    assert (worker.status, worker.cause) == (Status.FAILED, EndCause.MEMORY)
    assert "memory" in str(worker.advice)


@pytest.mark.parametrize("told", [{"signal": signal.SIGTERM}, {"exit_code": 128 + signal.SIGTERM}])
def test_a_process_that_slurm_s_signal_has_ended_was_cancelled_with_its_job(
    told: dict[str, int], fake: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a shell reports the signal of its command as an exit status."""
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    made = Submission(Path("/nowhere"))
    made.job, made.names = "7", ["worker-0"]
    fake.queue("7|CANCELLED|None|N/A|main|none")
    fake.says("scontrol", "JobId=7 JobState=CANCELLED Reason=None ExitCode=0:15\n")
    task = Task(node="n1", at=1.0, outcome={"status": Status.FAILED, **told}, told_at=2.0)
    assert state_of(Worker("7.0@/nowhere", "worker-0", created_at=1.0), made, task, None).cause is EndCause.CANCELLED


def test_a_job_whose_processes_end_as_slurm_asks_them_to_has_made_way(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its script has ended before Slurm ended it, so that Slurm never says PREEMPTED."""
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    made = Submission(Path("/nowhere"))
    made.job, made.names = "7", ["worker-0"]
    worker = Worker("7.0@/nowhere", "worker-0", created_at=1.0)
    task = Task(node="n1", at=1.0, outcome={"status": Status.STOPPED, "signal": signal.SIGTERM}, told_at=2.0)
    fake.queue("7|FAILED|NonZeroExitCode|N/A|main|none")
    fake.says("scontrol", "JobId=7 JobState=FAILED Reason=NonZeroExitCode PreemptTime=2026-11-22T20:00:00\n")
    assert state_of(worker, made, task, None).cause is EndCause.PREEMPTED
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    fake.says("scontrol", "JobId=7 JobState=FAILED Reason=NonZeroExitCode PreemptTime=None\n")
    assert state_of(worker, made, task, None).cause is not EndCause.PREEMPTED


def test_a_worker_that_was_told_to_end_is_stopped_where_its_job_is_over_before_it_could_tell(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    made = Submission(Path("/nowhere"))
    made.job, made.names = "7", ["worker-0"]
    fake.queue("7|CANCELLED|None|N/A|main|none")
    fake.says("scontrol", "JobId=7 JobState=CANCELLED Reason=None ExitCode=143:0\n")
    worker = Worker("7.0@/nowhere", "worker-0", created_at=1.0)
    over = state_of(worker, made, Task(node="n1", at=1.0, was_stopped=True), None)
    assert (over.status, over.cause) == (Status.STOPPED, None)


def test_a_user_s_filters_hide_no_jobs(fake: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")
    assert not [name for name in slurm_site.environment() if name.startswith(("SQUEUE", "SCANCEL"))]


# As ``scontrol -o show job`` and ``sacct -n -P -X -o State,ExitCode,Reason`` have shown them, in short.
SHOWN = "JobId=7 JobName=muster-a UserId=me(1000) QOS=normal JobState={} Reason={} Dependency=(null) {} Comment=x"


@pytest.mark.parametrize(
    ("shown", "accounted", "kind", "words"),
    [
        (SHOWN.format("OUT_OF_MEMORY", "OutOfMemory", "ExitCode=0:125"), "", WorkerOutOfMemory, "ExitCode 0:125"),
        (SHOWN.format("NODE_FAIL", "NodeDown", "ExitCode=0:0 FailedNode=n2"), "", WorkerLost, "FailedNode n2"),
        (SHOWN.format("BOOT_FAIL", "None", "ExitCode=0:0"), "", WorkerLost, "did not boot"),
        (SHOWN.format("TIMEOUT", "TimeLimit", "ExitCode=0:15"), "", RunTimeout, "as long as it may"),
        (SHOWN.format("DEADLINE", "DeadLine", "ExitCode=0:0"), "", RunTimeout, "deadline"),
        (SHOWN.format("PREEMPTED", "None", "ExitCode=0:15"), "", WorkerPreempted, "higher priority"),
        (SHOWN.format("CANCELLED", "None", "ExitCode=0:15"), "", WorkerCancelled, "somebody has cancelled"),
        (SHOWN.format("CANCELLED", "None", ""), "CANCELLED by 0|0:0|None", WorkerCancelled, "cancelled by root"),
        (SHOWN.format("CANCELLED", "None", ""), "RUNNING|0:0|None", WorkerCancelled, "somebody has cancelled"),
        (SHOWN.format("REVOKED", "None", "ExitCode=0:0"), "", WorkerCancelled, "revoked"),
        ("", "OUT_OF_MEMORY|0:125|OutOfMemory", WorkerOutOfMemory, "ExitCode 0:125"),
        ("", "NODE_FAIL|1:0|NodeDown", WorkerLost, "Reason NodeDown"),
        ("", "CANCELLED by 987654|0:0|None", WorkerCancelled, "cancelled by the user 987654 (Slurm says CANCELLED)"),
        ("", "CANCELLED by 0|0:0|None", WorkerCancelled, "was cancelled by root (Slurm says CANCELLED)"),
        ("", "TIMEOUT|0:0|QOSMaxWallDurationPerJobLimit", RunTimeout, "Reason QOSMaxWallDurationPerJobLimit"),
        ("", "PREEMPTED|0:0|None", WorkerPreempted, "higher priority"),
    ],
)
def test_what_slurm_says_of_a_job_s_end_becomes_an_error_of_its_own(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch, shown: str, accounted: str, kind: type[MusterError], words: str
) -> None:
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    made = Submission(Path("/nowhere"))
    made.known_at = float("-inf")
    made.job, made.names = "7", ["worker-0"]
    if shown:
        fake.says("scontrol", shown)
    else:
        fake.says("scontrol", "", complains="slurm_load_jobs error: Invalid job id specified", status=1)
    fake.says("sacct", f"{accounted}\n")
    worker = state_of(Worker("7.0@/nowhere", "worker-0", created_at=1.0), made, Task(node="n2", at=1.0), None)
    assert worker.cause is not None
    assert words.lower() in str(worker.reason).lower()
    assert worker.advice
    assert error_of(worker) is kind


def error_of(worker: Worker) -> type[MusterError]:
    """The class of the error that a worker with this end fails a run with."""
    failure = Failure(FailureKind(worker.cause), 1.0, worker.name, message=str(worker.reason))
    return type(explain(failure, Path("/nowhere")))


# The reasons that Slurm 22.05 has (``job_reason_string``), and some of later versions, with the sentences that it
# writes in place of some, by what they mean for a job that is pending.
KINDS = ("Unknown", "Mem", "Memory", "Node", "Energy", "GRES", "License", "BB", "Billing")
NEVER = [
    "PartitionTimeLimit", "PartitionConfig", "MaxMemPerLimit", "BadConstraints", "InvalidAccount", "InvalidQOS",
    "AccountNotAllowed", "QOSNotAllowed", "DependencyNeverSatisfied", "ReservationDeleted", "ReservationInvalid",
    "Job's account not permitted to use this partition (a100 allows research,free not mine)",
    "Job's QOS not permitted to use this partition (h200 allows h200_qos not normal)",
    "Reservation maintenance was deleted",
    *[
        f"{whose}Max{what}"
        for whose in ("QOS", "Assoc")
        for what in (
            "CpuPerJobLimit", "CpuMinutesPerJobLimit", "NodePerJobLimit", "WallDurationPerJobLimit", "CpuPerNode",
            *[f"{kind}{per}" for kind in KINDS for per in ("PerJob", "PerNode", "MinutesPerJob")],
        )
    ],
    "QOSMinCpuNotSatisfied", *[f"QOSMin{kind}" for kind in KINDS],
]  # fmt: skip
HELD = [
    "JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "launch failed requeued held", "launch_failed_requeued_held",
    "user env retrieval failed requeued held", "job requeued in held state", "job requeued in special exit state",
]  # fmt: skip
LIMITED = [
    "QOSUsageThreshold", "AccountingPolicy", "AssocMaxJobsLimit", "AssocMaxSubmitJobLimit",
    *[f"{whose}{what}Limit" for whose in ("QOS", "Association") for what in ("Job", "Resource", "Time")],
    *[
        f"{whose}Grp{what}"
        for whose in ("QOS", "Assoc")
        for what in (
            "CpuLimit", "CPUMinutesLimit", "CPURunMinutesLimit", "JobsLimit", "MemLimit", "NodeLimit",
            "SubmitJobsLimit", "WallLimit", *[f"{kind}{of}" for kind in KINDS for of in ("", "Minutes", "RunMinutes")],
        )
    ],
    *[f"QOSMax{what}PerUserLimit" for what in ("Cpu", "Jobs", "Node", "SubmitJob")],
    *[f"QOSMax{kind}PerUser" for kind in KINDS],
    *[f"Max{kind}PerAccount" for kind in ("Cpu", "Jobs", "SubmitJobs", *KINDS)],
]  # fmt: skip
OTHERS = [
    "None", "Resources", "Priority", "Prolog", "Dependency", "PartitionNodeLimit", "PartitionDown", "PartitionInactive",
    "BeginTime", "Licenses", "Reservation", "ReqNodeNotAvail", "FrontEndDown", "NodeDown", "SystemFailure",
    "JobLaunchFailure", "NonZeroExitCode", "TimeLimit", "InactiveLimit", "Cleaning", "JobArrayTaskLimit",
    "BurstBufferResources", "BurstBufferStageIn", "BurstBufferOperation", "PowerNotAvail", "PowerReserved", "DeadLine",
    "FedJobLock", "OutOfMemory", "SchedDefer", "RaisedSignal", "Constraints",
]  # fmt: skip


def test_each_of_slurm_s_reasons_is_of_a_kind() -> None:
    kinds = {
        reason: kind
        for kind, reasons in {"never": NEVER, "held": HELD, "a limit": LIMITED, "waits": OTHERS}.items()
        for reason in reasons
    }
    assert {reason: kind_of(reason) for reason in kinds} == kinds


def kind_of(reason: str) -> str:
    """What a reason is, by the words for it."""
    words, _, slurms = why_pending(reason).partition(" (Slurm says ")
    assert slurms == f"{reason})."
    if why_never(reason, "main"):
        return "never"
    if "hold" in words or "held" in words:
        return "held"
    if "limit" in words or "lets one" in words:
        return "a limit"
    return "waits" if words != "The job is queued" else "not known"


@pytest.mark.parametrize(
    ("reason", "words", "advice"),
    [
        (
            "PartitionTimeLimit",
            "it asks for more time than the partition allows",
            "a shorter time=, or another partition",
        ),
        ("QOSMaxCpuPerJobLimit", "it asks for more than its account or quality of service lets", "smaller workers"),
        ("MaxMemPerLimit", "it asks for more memory than a job may have there", "less memory="),
        (
            "Job's QOS not permitted to use this partition (a allows b,c not d)",
            "its account or quality of service may not use the partition",
            "another partition=, account= or qos=",
        ),
    ],
)
def test_a_job_that_can_never_run_fails_at_once(
    fake: StandIn, monkeypatch: pytest.MonkeyPatch, reason: str, words: str, advice: str
) -> None:
    fake.queue(f"7|PENDING|{reason}|N/A|main|none")
    found = state_of_a_queued_job(monkeypatch)
    assert found.status is Status.FAILED
    assert str(found.reason).startswith(f"The job can never run: {words}")
    assert str(found.reason).endswith(f"(Slurm says {reason}).")
    assert advice in str(found.advice)
    # Of several partitions that is said of the one that Slurm has tried last.
    fake.queue(f"7|PENDING|{reason}|N/A|gpu,cpu|none")
    found = state_of_a_queued_job(monkeypatch)
    assert not found.status.is_final
    assert str(found.reason).endswith(f"(Slurm says {reason}); another of its partitions may still take it.")


def test_a_job_that_no_partition_can_take_fails_at_once(fake: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.queue("7|PENDING|DependencyNeverSatisfied|N/A|gpu,cpu|none")
    found = state_of_a_queued_job(monkeypatch)
    assert (found.status, "sbatch_args=" in str(found.advice)) == (Status.FAILED, True)


@pytest.mark.parametrize("reason", ["PartitionNodeLimit", "launch failed requeued held", "NobodyKnowsYet"])
def test_a_job_that_may_still_run_waits(fake: StandIn, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    fake.queue(f"7|PENDING|{reason}|N/A|main|none")
    found = state_of_a_queued_job(monkeypatch)
    assert (found.status.is_final, f"(Slurm says {reason})." in str(found.reason)) == (False, True)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("QOSMaxJobsPerUserLimit", "as much as your quality of service lets one user have"),
        ("QOSMaxCpuPerUserLimit", "as much as your quality of service lets one user have"),
        ("MaxCpuPerAccount", "as much as your quality of service lets one account have"),
        ("QOSGrpCpuLimit", "a limit of the quality of service is reached"),
        ("QOSMinGRES", "less than its quality of service demands"),
        ("QOSMaxCpuPerJobLimit", "more than its account or quality of service lets one job have"),
        ("AssocMaxWallDurationPerJobLimit", "more than its account or quality of service lets one job have"),
        ("AssocGrpBillingMinutes", "a limit of your account is reached"),
        ("AssocMaxJobsLimit", "a limit of your account is reached"),
        ("MaxMemPerLimit", "more memory than"),
        ("AccountNotAllowed", "may not use the partition"),
        ("DependencyNeverSatisfied", "depends on"),
        ("ReservationDeleted", "its reservation is gone"),
        ("PartitionNodeLimit", "the partition has not so many nodes in service"),
        ("launch failed requeued held", "it could not be launched, and is held"),
        ("job requeued in held state", "scontrol release lets it go"),
        ("(ReqNodeNotAvail, UnavailableNodes:n1)", "down, drained or reserved"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "down, drained or reserved",
        ),
    ],
)
def test_slurm_s_reasons_are_told_in_words(reason: str, words: str) -> None:
    assert words in why_pending(reason)


@pytest.mark.parametrize("reason", ["MPIPortsBusy", "QOSMaxOfTomorrow", "27"])
def test_of_a_reason_that_is_not_known_only_slurm_s_word_is_told(reason: str) -> None:
    assert why_pending(reason) == f"The job is queued (Slurm says {reason})."


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "beyond what your account, or you, may have",
        ),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
         "longer than the partition allows"),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "no such quality of service"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
         "none that you may charge"),
        ("sbatch: error: Batch job submission failed: User's group not permitted to use this partition",
         "no such partition, or not for you"),
        ("sbatch: error: Batch job submission failed: Job in progress of something", "Job in progress of something"),
        ("sbatch: error: Batch job submission failed: Invalid node name specified", "no node of that name"),
        ('sbatch: error: "x" is not a valid node count', "no number of nodes"),
        ("sbatch: unrecognized option '--bogus=1'", "no such option"),
    ],
)  # fmt: skip
def test_what_sbatch_refuses_is_told_by_its_cause(fake: StandIn, said: str, words: str) -> None:
    fake.says("sbatch", "", complains=said, status=1)
    with pytest.raises(LaunchRefused, match="The job could not be submitted: ") as refused:
        HERE.ask("sbatch", what="The job could not be submitted", error=LaunchRefused)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("said", "words", "advice"),
    [
        ("Memory required by task is not available", "its job has not so much memory", "less memory="),
        (
            "More processors requested than permitted",
            "its job has not so many cores, or too little memory",
            "less cpu=",
        ),
        ("Requested node configuration is not available", "its job has not so many nodes", "a larger job"),
        ("Invalid generic resource (gres) specification", "its job has not so many GPUs", "nvidia_gpu="),
        ("Insufficient GRES available in allocation", "its job has not so many GPUs", "nvidia_gpu="),
        ("Invalid Trackable RESource (TRES) specification", "its job has not so many GPUs", "nvidia_gpu="),
    ],
)
@pytest.mark.parametrize("is_step", [True, False], ids=["of the session's job", "of a job of its own"])
def test_a_step_that_does_not_fit_in_its_job_says_what_to_change(
    fake: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_step: bool, said: str, words: str, advice: str
) -> None:  # fmt: skip
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    made = Submission(tmp_path)
    made.job, made.names, made.is_step = "7", ["worker-0"], is_step
    (tmp_path / "output").write_text(f"srun: error: Unable to create step for job 7: {said}\n")
    ended = subprocess.Popen(["false"])
    ended.wait()
    fake.queue("7|FAILED|NonZeroExitCode|N/A|main|none")
    fake.says("scontrol", SHOWN.format("FAILED", "NonZeroExitCode", "ExitCode=1:0"))
    worker = state_of(Worker(f"7.0@{tmp_path}", "worker-0", created_at=1.0), made, None, ended if is_step else None)
    assert worker.status is Status.FAILED
    assert str(worker.reason).startswith(f"Its step could not be started: {words}")
    assert said in str(worker.reason)
    assert advice in str(worker.advice)


def test_the_status_of_a_step_is_told_once_it_is_known(tmp_path: Path) -> None:
    made = Submission(tmp_path)
    made.job, made.names, made.is_step = "7", ["worker-0"], True
    ended = subprocess.Popen(["false"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED)  # as another thread does that is just reading its status
    worker = Worker(f"7.0@{tmp_path}", "worker-0", created_at=1.0)
    ended.poll = lambda: None  # type: ignore[method-assign]
    assert state_of(worker, made, None, ended).reason == "Its step ended before its agent could say why."
    ended.returncode = 1
    assert state_of(worker, made, None, ended).reason == "Its step ended with status 1 before its agent could say why."


def test_memory_that_only_the_step_ran_out_of(fake: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    made = Submission(tmp_path)
    made.job, made.names = "7", ["worker-0", "worker-1"]
    (tmp_path / "output").write_text(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: n2: task 1: Out Of Memory\n"
    )
    fake.queue("7|FAILED|NonZeroExitCode|N/A|main|none")
    fake.says("scontrol", SHOWN.format("FAILED", "NonZeroExitCode", "ExitCode=1:0"))
    killed = {"status": Status.FAILED, "signal": signal.SIGKILL, "reason": "Its agent was ended by signal 9."}
    tasks = [Task(at=1.0, outcome={"status": Status.SUCCEEDED}), Task(at=1.0, outcome=killed)]
    found = [
        state_of(Worker(f"7.{number}@{tmp_path}", f"worker-{number}", created_at=1.0), made, task, None)
        for number, task in enumerate(tasks)
    ]
    assert [worker.status for worker in found] == [Status.SUCCEEDED, Status.FAILED]
    assert [worker.cause for worker in found] == [None, EndCause.MEMORY]


def test_of_what_a_job_prints_the_end_is_read(tmp_path: Path) -> None:
    made = Submission(tmp_path)
    with (tmp_path / "output").open("wb") as file:
        file.truncate(8 << 30)  # a file with a hole: reading all of it would take as much memory
        file.seek(0, os.SEEK_END)
        file.write(b"x" * 600 + b"\nthe last line\n")
    assert made.last_words().endswith("\nthe last line")
    assert len(made.last_words()) == 500


def test_a_controller_that_is_down_is_asked_ever_more_rarely(fake: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "POLL_SECONDS", 2.0)
    now = [1000.0]
    monkeypatch.setattr("muster.platforms.slurm.queue.time.monotonic", lambda: now[0])
    complains = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    calls: list[float] = []

    def refuse(*argv: str, **_: Any) -> tuple[int, str, str]:
        calls.append(now[0] - 1000)
        return 1, "", complains

    monkeypatch.setattr(HERE, "run", refuse)
    looked = Queue(HERE)
    while now[0] < 1100:  # as several runs do that poll each 0.3 s
        for ask in (looked.jobs, lambda: looked.end_of("7")):
            with pytest.raises(SlurmGone, match="controller does not answer"):
                ask()
        now[0] += 0.3
    gaps = [round(later - earlier) for earlier, later in zip(calls, calls[1:], strict=False)]
    assert gaps == [2, 4, 8, 16, 30, 30]
    monkeypatch.setattr(HERE, "run", lambda *argv, **_: (0, "7|RUNNING|None|N/A|main|none\n", ""))
    now[0] += 30
    assert [*looked.jobs()[0]] == ["7"]


@pytest.mark.parametrize("workers", [10, 100, pytest.param(1000, marks=pytest.mark.slow)])
def test_slurm_is_asked_as_often_for_a_thousand_workers_of_several_runs_as_for_ten(
    cluster: StandIn, run: Run, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """The engine polls every 0.3 to 2 s; here a minute passes at once."""
    now = [1000.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr(queue, "POLL_SECONDS", 2.0)
    monkeypatch.setattr(queue, "time", clock)
    monkeypatch.setattr("muster.platforms.slurm.platform.END_SECONDS", 0.1)
    monkeypatch.setattr("muster.platforms.slurm.states.time", clock)
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    specs = [run.spec(f"worker-{number}") for number in range(workers)]
    platforms = [SlurmPlatform(), SlurmPlatform()]
    handles = [platform.submit(specs, "key") for platform in platforms]
    at_start = len(cluster.asked())
    asked_first = ["scontrol show partition", "sinfo", "scontrol show config", "squeue", "sbatch --test-only", "sbatch"]
    assert at_start == 2 * len(asked_first)
    # Tasks that have said where they are and tasks that have not yet cost the same.
    for folder in {handle.partition("@")[2] for of_one in handles for handle in of_one}:
        for task in range(workers // 2):
            write_private(Path(folder, f"worker-{task}.news"), json.dumps({"node": "n1", "pid": 1, "at": 1.0}))
    while now[0] < 1060:
        for platform, of_one in zip(platforms, handles, strict=True):
            assert not any(worker.status.is_final for worker in platform.poll(of_one))
        now[0] += 0.5
    asked = cluster.asked()[at_start:]
    assert {line.split()[0] for line in asked} == {"squeue"}
    assert len(asked) == 29  # each submission has looked before, too
    at_end = len(cluster.asked())
    for platform in platforms:
        platform.close()
    ended = [line.split()[0] for line in cluster.asked()[at_end:]]
    assert ended.count("scancel") == 2
    assert len(ended) <= 4


@pytest.mark.slow
def test_tasks_of_several_nodes_are_told_to_end_by_one_request(cluster: StandIn, run: Run) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    class Noted(Here):
        def call(self, request: str, seconds: float | None = None, **fields: Any) -> Mapping[str, Any]:
            asked.append((request, fields))
            return super().call(request, seconds, **fields)

    platform = SlurmPlatform()
    platform._site = Noted()
    handles = platform.submit([run.spec(f"worker-{number}") for number in range(40)], "key")
    folder = Path(handles[0].partition("@")[2])
    for task in range(1, 31):  # the others have not begun, and never will
        write_private(folder / f"worker-{task}.news", json.dumps({"node": f"n{task % 15}", "pid": 100 + task, "at": 1}))
    del asked[:]
    platform.stop(handles[1:])
    assert [request for request, _ in asked] == ["news", "stop", "commands"]
    told = cluster.asked("srun")
    assert len(told) == 15
    assert any("--jobid=7 --overlap" in line and line.endswith("--nodelist=n3 kill -TERM 103 118") for line in told)
    assert not [*folder.glob("worker-39.launch")]
    platform.close()


def test_commands_of_one_request_run_at_the_same_time_and_none_for_too_long(tmp_path: Path) -> None:
    waits = "touch {}; until [ -e {} ]; do sleep 0.02; done"
    both = [["sh", "-c", waits.format(tmp_path / one, tmp_path / other)] for one, other in ("ab", "ba")]
    assert slurm_site.commands(both, 60) == {"late": False}
    assert slurm_site.commands([["sleep", "60"], ["false"]], 0.2) == {"late": True}


def test_a_job_whose_submission_was_not_answered_is_cancelled(
    cluster: StandIn, muster_home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
    asked = HERE.ask

    def ask(*argv: str, **options: Any) -> str:
        if argv[:2] == ("sbatch", "--parsable"):
            cluster.says("sbatch", "", complains=lost, status=1)
        return asked(*argv, **options)

    monkeypatch.setattr(HERE, "ask", ask)
    platform = SlurmPlatform()
    with pytest.raises(LaunchRefused, match="Socket timed out"):
        platform.submit([run.spec()], "key")
    (cancelled,) = cluster.asked("scancel")
    assert cancelled.startswith("scancel --quiet --me --name=muster-")
    guard = platform._guard
    assert isinstance(guard, JobGuard)
    platform.close()
    eventually(lambda: len(cluster.asked("scancel")) > 1, "the guard goes on to cancel")
    os.kill(guard.pid, signal.SIGKILL)
    assert not any((muster_home / "slurm").iterdir())


def test_a_job_that_cannot_be_cancelled_is_left_to_the_guard(
    cluster: StandIn, muster_home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.platforms.slurm.platform.END_SECONDS", 0.1)
    platform = SlurmPlatform()
    (handle,) = platform.submit([run.spec()], "key")
    assert handle.startswith("7.0@/")
    guard = platform._guard
    assert isinstance(guard, JobGuard)
    cluster.says("scancel", "", complains="Unable to contact slurm controller (connect failure)", status=1)
    ends: list[Callable[[], object]] = [lambda: platform.stop([handle]), platform.close]
    for end in ends:
        with pytest.raises(SlurmGone, match="The job could not be cancelled: Slurm's controller does not answer"):
            end()
    eventually(lambda: "--me" in cluster.asked("scancel")[-1], "the guard tries")
    assert any((muster_home / "slurm").iterdir())
    os.kill(guard.pid, signal.SIGKILL)
    ended = "scancel: error: Kill job error on job id 7: Invalid job id specified"
    cluster.says("scancel", "", complains=ended, status=1)
    platform.close()
    assert not any((muster_home / "slurm").iterdir())


def test_jobs_whose_end_nobody_waits_for_are_left_to_the_guard(
    cluster: StandIn, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = SlurmPlatform()
    platform.submit([run.spec()], "key")
    guard = platform._guard
    assert isinstance(guard, JobGuard)

    def interrupt(made: Submission) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(platform, "_is_over", interrupt)
        with pytest.raises(KeyboardInterrupt):
            platform.close()
    eventually(lambda: "--me" in cluster.asked("scancel")[-1], "the guard cancels")
    os.kill(guard.pid, signal.SIGKILL)
    platform.close()


def test_a_job_that_another_login_submits_than_the_one_with_the_guard_is_cancelled(cluster: StandIn, run: Run) -> None:
    class Replaced(Here):
        @property
        def connection(self) -> object:
            return len(cluster.asked("sbatch"))  # as if each submission went by another login

    platform = SlurmPlatform()
    platform.login, platform._site = "me@login1", Replaced()
    platform._guard = JobGuard()
    with pytest.raises(HostUnreachable, match="The login to me@login1 ended as the job was submitted"):
        platform.submit([run.spec()], "key")
    assert "--me --name=muster-" in cluster.asked("scancel")[-1]
    platform._guard.close()


def test_a_guard_removes_the_files_of_jobs_that_never_began(
    cluster: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.agent.slurm_site.LATE_SECONDS", -1.0)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "worker-0.launch").write_text("secret")
    clean_up({"labels": ["muster-a", "muster-b"], "folders": [str(tmp_path / "made")], "steps": []})
    assert cluster.asked("scancel") == ["scancel --quiet --me --name=muster-a,muster-b"]
    assert not (tmp_path / "made").exists()


def test_what_a_session_has_left_that_was_killed_with_its_guard_goes_with_the_next(
    cluster: StandIn, muster_home: Path, run: Run
) -> None:
    boot, *words, _, _ = owner().split(".")
    killed, of_an_earlier_boot = ".".join([boot, *words, "4194305", "1"]), ".".join(["earlier", *words, "1", "1"])
    facts = [(owner(), HOST), (killed, HOST), (of_an_earlier_boot, HOST), (of_an_earlier_boot, "another machine")]
    folders = [muster_home / "slurm" / f"run-{number}" for number in range(len(facts))]
    for folder, (process, host) in zip(folders, facts, strict=True):
        write_private(folder / "owner.json", json.dumps({"process": process, "host": host}))
        write_private(folder / "worker-0.launch", "secret")
    platform = SlurmPlatform()
    platform.submit([run.spec()], "key")
    assert [folder.exists() for folder in folders] == [True, False, False, True]
    (cancelled,) = cluster.asked("scancel")
    assert sorted(cancelled.partition("--name=")[2].split(",")) == ["muster-run-1", "muster-run-2"]
    platform.close()
    assert sorted((muster_home / "slurm").iterdir()) == [folders[0], folders[3]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of somebody else")
def test_in_a_folder_that_several_users_share_nobody_chooses_what_another_cancels(tmp_path: Path) -> None:
    """The names of jobs that are cancelled are those of folders."""
    boot, *words, _, _ = owner().split(".")
    killed = json.dumps({"process": ".".join([boot, *words, "4194305", "1"]), "host": HOST})
    write_private(tmp_path / "mine" / "owner.json", killed)
    theirs = tmp_path / "run,another-job-of-mine"
    theirs.mkdir()
    (theirs / "owner.json").symlink_to(tmp_path / "mine" / "owner.json")
    os.chown(theirs, 1, 1)
    assert slurm_site.left_behind(str(tmp_path), [])["folders"] == [str(tmp_path / "mine")]


def test_a_job_that_another_process_left_is_known_for_as_long_as_its_file_is_there(tmp_path: Path) -> None:
    facts = {"job": "7", "names": ["worker-0"], "logs": ["log"], "parts": [1], "is_step": False}
    (tmp_path / "job.json").write_text(json.dumps(facts))
    os.utime(tmp_path / "job.json", times=(time.time() - 3600,) * 2)
    made = Submission.found(tmp_path)
    assert made is not None
    assert time.monotonic() - made.known_at == pytest.approx(3600, abs=60)


FORGED: list[tuple[Callable[[Site], object], dict[str, Any]]] = [
    (lambda site: site.run("squeue"), {"status": "0", "out": "", "said": ""}),
    (lambda site: site.run("squeue"), {"status": 0, "out": 5, "said": ""}),
    (lambda site: site.missing(), {"programs": ["sbatch"] * 100}),
    (lambda site: site.home(None), {"folder": None}),
    (lambda site: site.address(["n1"]), {"address": "10.0.0.1; rm -r /"}),
    (lambda site: site.news(Path("/made"), {}), {"tasks": [0], "news": {"zero": {}}, "stopped": []}),
    (lambda site: site.news(Path("/made"), {}), {"tasks": [0], "news": {"0": {"text": "", "size": 0}}, "stopped": []}),
    (lambda site: site.news(Path("/made"), {}), {"tasks": [-1], "news": {}, "stopped": []}),
    (lambda site: site.left_behind(Path("/made"), []), {"folders": "/", "labels": []}),
]


@pytest.mark.parametrize(("ask", "answer"), FORGED)
def test_an_answer_of_a_login_node_that_makes_no_sense_is_an_error_of_that_node(
    ask: Callable[[Site], object], answer: dict[str, Any]
) -> None:
    class Forging(Site):
        def call(self, request: str, seconds: float | None = None, **fields: Any) -> dict[str, Any]:
            return answer

    with pytest.raises(HostUnreachable, match="The workers' guard on login1 talks nonsense: "):
        ask(Forging("login1"))


def test_the_doctor_goes_on_where_sbatch_refuses_the_job(
    cluster: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.says("sbatch", "", complains="sbatch: error: Batch job submission failed: Invalid account", status=1)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('trains')\n")
    options = ["-p", "slurm", "-s", "processes", "-n", "1", "--no-launch", "--json", "train.py"]
    found = json.loads(CliRunner().invoke(main, ["doctor", *options]).stdout)["findings"]
    (refused,) = [each for each in found if each["level"] == "error"]
    assert "the account is none that you may charge" in refused["text"]
    assert found[-1] != refused


def test_a_limit_that_other_jobs_fill_is_met_after_those_of_dead_sessions_are_cancelled(
    cluster: StandIn, run: Run
) -> None:
    *alive, _, _ = owner().split(".")
    cluster.queue(f"9|PENDING|None|N/A|main|muster:{'.'.join([*alive, '4000000', '1'])}")
    cluster.says("sbatch", "", complains="sbatch: error: Batch job submission failed: Job violates policy", status=1)
    platform, spec = SlurmPlatform(), run.spec()
    assert platform.shortages([spec.resources]) == []
    with pytest.raises(LaunchRefused, match="beyond what your account, or you, may have"):
        platform.submit([spec], "key")
    platform.close()
    asked = [line for line in cluster.asked() if line.startswith(("sbatch", "scancel"))]
    assert asked[:2] == ["sbatch --test-only", "scancel --quiet 9"]
