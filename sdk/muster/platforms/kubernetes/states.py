"""The state of a worker, from its pod and its agent's report. Pure functions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster.job import EndCause, Status, Worker
from muster.platforms.agents import outcome_of
from muster.platforms.kubernetes import causes
from muster.platforms.kubernetes.pods import WORKER
from muster.platforms.timestamps import timestamp

GONE = "Its pod is gone: somebody has deleted it, or the cluster has with its node."
AGAIN = "run again; kubectl get events says who else acts on pods there"
DELETED = (
    "Its pod was deleted by somebody (kubectl delete), or evicted (kubectl drain), or the cluster has made room: "
    "Kubernetes before 1.26 does not tell these apart."
)
CAUSES = {
    "preempted": EndCause.PREEMPTED,
    "evicted": EndCause.LOST,
    "node lost": EndCause.LOST,
    "refused by node": EndCause.LOST,  # which the cluster had chosen: another node may take it
    "killed": EndCause.LOST,
    "memory": EndCause.MEMORY,
    "deadline": EndCause.OVERTIME,
}


def is_unexplained(worker: Worker) -> bool:
    """Return whether a worker's pod is being deleted, or is gone, for an unknown reason."""
    return worker.reason in (GONE, DELETED)


def state_of(worker: Worker, pod: Mapping[str, Any] | None, was_stopped: bool, said: str = "") -> Worker:
    """Return a worker's current state, from its pod.

    Args:
        worker: the worker's last known state.
        pod: its pod; None where there is none.
        was_stopped: whether ``stop`` was called for it.
        said: as ``causes.never_runs`` takes it.
    """
    if worker.status.is_final:
        return worker
    if pod is None:
        if was_stopped:
            return worker.moved(Status.STOPPED, reason=worker.reason, finished_at=time.time())
        if worker.cause is not None:  # known since it was being deleted
            return worker.moved(Status.FAILED, finished_at=time.time())
        status, why = (Status.STOPPED, DELETED) if worker.status is Status.STOPPING else (Status.FAILED, GONE)
        return worker.moved(status, reason=why, cause=EndCause.CANCELLED, advice=AGAIN, finished_at=time.time())
    metadata, status = pod["metadata"], pod.get("status", {})
    name = (metadata.get("annotations") or {}).get(WORKER) or worker.name
    worker = replace(worker, name=name, created_at=worker.created_at or timestamp(metadata.get("creationTimestamp")))
    worker = replace(worker, address=status.get("podIP") or worker.address)
    if status.get("phase") in ("Succeeded", "Failed") or causes.terminated(pod):
        return _ended(worker, pod, was_stopped)
    if causes.condition(pod, "PodScheduled").get("status") == "True":
        at = timestamp(causes.condition(pod, "PodScheduled").get("lastTransitionTime")) or time.time()
        worker = worker.moved(Status.STARTING, placed_at=worker.placed_at or max(at, worker.created_at or 0.0))
    started = causes.running_since(pod)
    is_running = started is not None
    if is_running:
        since = max(timestamp(started) or 0.0, worker.placed_at or 0.0, worker.created_at or 0.0)
        worker = worker.moved(Status.RUNNING, running_at=worker.running_at or since)
    if metadata.get("deletionTimestamp"):
        if was_stopped and not is_running:  # it has never run
            return worker.moved(Status.STOPPED, reason=None, finished_at=time.time())
        return replace(worker.moved(Status.STOPPING), reason=None if was_stopped else DELETED)
    if is_running:
        return replace(worker, reason=None)
    never = causes.never_runs(pod, said)
    if never is not None:
        return _failed(worker, never, time.time())
    return replace(worker, reason=causes.wait_of(pod, said))


def _ended(worker: Worker, pod: Mapping[str, Any], was_stopped: bool) -> Worker:
    """Return the end of a worker whose container has ended, or whose pod has failed."""
    ended = causes.terminated(pod)
    finished = max(timestamp(ended.get("finishedAt")) or time.time(), worker.running_at or 0.0)
    if was_stopped:
        return worker.moved(Status.STOPPED, reason=None, finished_at=finished)
    told = outcome_of(str(ended.get("message") or "").encode())
    cause = causes.end_of(pod)
    if pod["metadata"].get("deletionTimestamp") and cause is not None and cause.kind in ("killed", "failed"):
        cause = None  # the agent was killed as it took longer than the grace period, or had only just started
    if told and told["status"] is not Status.STOPPED and (cause is None or cause.kind in ("failed", "killed")):
        return worker.moved(**{"reason": None, **told}, finished_at=finished)
    if cause is not None and not (told and cause.kind == "failed"):
        return _failed(worker, cause, finished)
    if told or pod["metadata"].get("deletionTimestamp"):
        if not pod["metadata"].get("deletionTimestamp"):
            return worker.moved(Status.STOPPED, reason=None, finished_at=finished)
        told = {"reason": DELETED, "cause": EndCause.CANCELLED, "advice": AGAIN}
        return worker.moved(Status.STOPPED, **told, finished_at=finished)
    if pod.get("status", {}).get("phase") == "Succeeded":
        return worker.moved(Status.SUCCEEDED, reason=None, finished_at=finished)
    unknown = causes.Cause("failed", "Its pod has failed, and Kubernetes does not say why.", causes.MORE_IN_EVENTS)
    return _failed(worker, unknown, finished)


def _failed(worker: Worker, cause: causes.Cause, finished: float) -> Worker:
    return worker.moved(
        Status.FAILED,
        reason=cause.text,
        cause=CAUSES.get(cause.kind),
        advice=cause.advice or None,
        finished_at=finished,
    )


def explained(worker: Worker, cause: causes.Cause) -> Worker:
    """Return a worker for which ``is_unexplained`` is true, with the cause that events tell."""
    worker = replace(worker, reason=cause.text, cause=CAUSES.get(cause.kind), advice=cause.advice or None)
    return replace(worker, status=Status.FAILED) if worker.status.is_final else worker
