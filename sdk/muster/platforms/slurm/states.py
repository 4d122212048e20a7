"""The state of a worker: its agent's messages count first, and then Slurm's state of its job."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.job import EndCause, Status, Worker, memory_argument
from muster.platforms.refusals import find_refusal, in_words
from muster.platforms.slurm.commands import STEP_REFUSALS
from muster.platforms.slurm.site import HERE
from muster.platforms.slurm.submissions import Submission, Task, task_of
from muster.platforms.slurm.words import (
    ENDS,
    OVER,
    UNKNOWN,
    how_ended,
    nodes_over_memory,
    ran_out_of_memory,
    state_word,
    step_cancelled_at,
    why_never,
    why_pending,
)
from muster.runtime.children import has_ended
from muster.text.arguments import Argument, ArgumentText

SETTLE_SECONDS = 4.0  # after an agent's end, in which Slurm may still show as running a job that it has ended
NEVER_PREEMPTED = "None"  # printed by scontrol instead of a time
LATE_SECONDS = 5.0  # after its submission, a job that the queue does not show has ended
NO_WAY = "cannot reach the session"  # in the reason of an agent whose node cannot reach the session's machine
ANOTHER_WAY = ArgumentText(
    "have the session run on a compute node, in a job that its workers are a step of (docs/slurm.md has the command); "
    "or open that port for the compute nodes, or ",
    Argument("session_address", ""),
    " an address and port that they reach",
)
NO_OTHER_WAY = ArgumentText(
    "have the login node's firewall let compute nodes dial it, or run on the login node itself, without ",
    Argument("login", ""),
    ", where there is another way (docs/slurm.md)",
)
ENDED_BY_SLURM = (signal.SIGTERM, signal.SIGKILL, signal.SIGCONT)


def state_of(worker: Worker, made: Submission, task: Task | None, step: subprocess.Popen[bytes] | None) -> Worker:
    """Return the current state of a worker.

    Args:
        worker: the worker's last known state.
        made: its submission.
        task: what the agent of its task has reported; None for nothing yet.
        step: the srun process that has started it, where it is a step of the session's own job.

    Raises:
        PlatformError: Slurm cannot be asked.
    """
    task = task or Task()
    if worker.status.is_final:
        return worker
    if task.at is not None:
        worker = worker.moved(
            Status.STOPPING if task.was_stopped else Status.RUNNING,
            address=task.address,
            placed_at=worker.placed_at or task.at,
            running_at=max(task.at, worker.created_at or 0.0),
            created_at=worker.created_at or task.at,
            reason=None,
        )
    if task.outcome and task.was_stopped:
        return worker.moved(Status.STOPPED, finished_at=task.told_at)
    if task.outcome and not _may_be_slurms(task):
        return _as_told(worker, made, task)
    if task.was_stopped and task.at is None:
        return worker.moved(Status.STOPPED, finished_at=time.time())
    return _of_step(worker, made, task, step) if made.is_step else _of_job(worker, made, task)


def _ended_by(told: Mapping[str, Any]) -> int:
    """Return the number of the signal that has ended a task, as its agent told it; another number for none.

    A shell whose command a signal has ended exits with 128 and the signal's number.
    """
    return int(told.get("signal") or (told.get("exit_code") or 0) - 128)


def _may_be_slurms(task: Task) -> bool:
    """Return whether Slurm may have ended a task, as it does when the job is cancelled or over its time limit."""
    return task.outcome["status"] is Status.STOPPED or _ended_by(task.outcome) in ENDED_BY_SLURM


def _as_told(worker: Worker, made: Submission, task: Task) -> Worker:
    """Return a worker's end as its agent told it, but out of memory where Slurm killed the step for that."""
    told = dict(task.outcome)
    if _ended_by(told) == signal.SIGKILL and ran_out_of_memory(made.output_end(), task_of(worker.id)):
        words, cause, _ = how_ended("OUT_OF_MEMORY", {})
        told |= {"reason": _sentence(words), "cause": cause, "advice": _more_memory(worker)}
    if NO_WAY in str(told.get("reason")):
        told["advice"] = ANOTHER_WAY if made.site is HERE else NO_OTHER_WAY
    return worker.moved(**told, finished_at=task.told_at)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _more_memory(worker: Worker) -> ArgumentText:
    return ArgumentText("a larger ", Argument(memory_argument(worker.name)), ", or smaller batches")


def _of_step(worker: Worker, made: Submission, task: Task, step: subprocess.Popen[bytes] | None) -> Worker:
    if task.outcome:
        return _as_told(worker, made, task)
    if step is None or not has_ended(step):
        return worker if task.at is not None else worker.moved(Status.STARTING, placed_at=worker.created_at)
    cancelled = None if task.was_stopped else step_cancelled_at(made.output_end())
    if cancelled:
        _, cause, advice = ENDS["CANCELLED"]
        reason = f"Somebody has cancelled its step (Slurm says CANCELLED AT {cancelled})."
        return worker.moved(Status.FAILED, reason=reason, cause=cause, advice=advice, finished_at=time.time())
    status = "" if step.returncode is None else f" with status {step.returncode}"  # another thread is just reading it
    reason = f"Its step ended{status} before its agent could say why. {made.last_words()}"
    told = {"reason": reason.strip(), **_step_refused(made)}
    return worker.moved(Status.FAILED, **told, finished_at=time.time())


def _step_refused(made: Submission) -> dict[str, Any]:
    """Return the reason why srun has started no step, and what to try, as its output has it; nothing for other ends."""
    said = made.last_words()
    refusal = find_refusal(STEP_REFUSALS, said)
    if refusal is None:
        return {}
    return {"reason": in_words("Its step could not be started", said, refusal, "Slurm"), "advice": refusal.advice}


def _of_job(worker: Worker, made: Submission, task: Task) -> Worker:
    queue = made.site.queue
    jobs, looked_at = queue.jobs()
    number = made.job_of(task_of(worker.id))
    job = jobs.get(number)
    if job is None:
        is_late = time.monotonic() > made.known_at + LATE_SECONDS and looked_at > made.known_at
        return _ended(worker, made, task, "") if is_late else worker
    if job.is_over:
        return _ended(worker, made, task, job.state)
    if task.outcome:
        is_going_on = looked_at > task.seen_at + SETTLE_SECONDS and job.state not in ("COMPLETING", "STOPPED")
        return _as_told(worker, made, task) if is_going_on else worker
    if task.at is not None and looked_at < task.seen_at:  # what the queue said is of before the task's start
        return worker
    if job.is_waiting:
        never = why_never(job.reason, job.partition)
        if never is not None:
            return worker.moved(Status.FAILED, reason=never[0], advice=never[1], finished_at=time.time())
        words = why_pending(job.reason, job.starts_at, queue.before(number), job.partition)
        return replace(worker, reason=words)
    if job.state == "CONFIGURING":
        worker = worker.moved(Status.STARTING, placed_at=job.starts_at or time.time())
        return replace(worker, reason="Its nodes are being booted (Slurm says CONFIGURING).")
    if job.state == "SUSPENDED":
        return replace(worker, reason="The job is suspended (Slurm says SUSPENDED).")
    if task.at is None:
        return worker.moved(Status.STARTING, placed_at=job.starts_at or time.time(), reason=None)
    return worker


def _over_memory(made: Submission, nodes: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the tasks on each of these nodes, by node."""
    tasks = sorted(made.tasks().items())
    return {node: [number for number, task in tasks if task.node == node] for node in nodes}


def _ended(worker: Worker, made: Submission, task: Task, state: str) -> Worker:
    """Return the end of a worker whose job is over, from what agent, controller and accounting report."""
    if task.was_stopped:
        return worker.moved(Status.STOPPED, finished_at=time.time())
    may_be_slurms = not task.outcome or _may_be_slurms(task)
    job = made.job_of(task_of(worker.id))
    found = made.site.queue.end_of(job) if state not in ("COMPLETED", "FAILED") or may_be_slurms else None
    state, said = found or (state, {})
    if task.outcome and may_be_slurms and said.get("PreemptTime", NEVER_PREEMPTED) != NEVER_PREEMPTED:
        state = "PREEMPTED"  # its processes ended at Slurm's signal, before Slurm itself ended the job
    over: dict[str, list[int]] = {}
    if may_be_slurms and state_word(state) not in ENDS:
        output = made.output_end()
        over = _over_memory(made, nodes_over_memory(output))
        if over or ran_out_of_memory(output, task_of(worker.id)):
            state = "OUT_OF_MEMORY"  # the step's, which the job's state does not show
    word = state_word(state)
    if task.outcome and word not in ENDS:
        return _as_told(worker, made, task)
    if found and word not in OVER:  # the queue missed it, or it is starting again
        return worker
    words, cause, advice = how_ended(state, said) if word in OVER else (UNKNOWN, EndCause.LOST, None)
    if cause is None:
        words = f"{words} {made.last_words()}".strip()
    told: dict[str, Any] = {"reason": _sentence(words), "cause": cause, "advice": advice}
    if over:
        of = "; ".join(f"{', '.join(made.names[task] for task in tasks)} on {node}" for node, tasks in over.items())
        told["reason"] = f"Slurm ended all tasks for the memory of {of}."
        if any(over.values()) and not any(task_of(worker.id) in tasks for tasks in over.values()):
            told["cause"] = EndCause.PEER
    if cause is None and task.at is None:
        told |= _step_refused(made)
    if cause is EndCause.MEMORY:
        told["advice"] = _more_memory(worker)
    if word == "NODE_FAIL" and task.node:
        told["reason"] += f" It was on {task.node}."
    return worker.moved(Status.FAILED, **told, finished_at=time.time())
