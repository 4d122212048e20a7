"""State of a run's workers, as reported by their agents and their platform; every change is emitted as an event.

This module takes no decisions: :mod:`muster.run.orchestrator` reads the state and takes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from muster import events
from muster.agent import wire
from muster.events import Event, EventData
from muster.failure.causes import LATE
from muster.failure.failures import Failure, FailureKind
from muster.job import EndCause, Member, Status, Worker, WorkerSpec
from muster.pools.clocks import ClockOffset
from muster.run.bounds import MOST_NOTES, AgentBounds, Metrics
from muster.run.changes import Changes
from muster.run.ends import Ends
from muster.run.processes import RunProcesses, Source
from muster.run.silences import Silences
from muster.run.waits import Waits
from muster.runtime import clock
from muster.text.names import join_names, process_label, signal_name
from muster.text.traceback import with_cells
from muster.training.stages import IMPORTING

OF_PROCESSES = frozenset(
    (wire.Exited, wire.Suspended, wire.HungUp, wire.Progress, wire.Stage, wire.Warned, wire.Raised, wire.ProcessStacks)
)
UNNAMED = "an exception without a name"


class RunState:
    """The workers of one run.

    Args:
        specs: the workers, in launch order.
        emit: called with every event.
        spare: how many of the workers the attempt can do without, if the platform cannot provide them.
        ends: watches the order in which processes end; None where it is not watched.

    Attributes:
        workers: the workers as the platform knows them, by name.
        left_out: names of the workers that the attempt goes on without.
        members: the workers as their agents described them, by name; a worker is in it once its agent has said hello.
        agents: process ids of the agents, by name.
        preempted: names of the workers that the platform is about to take away, or has taken away.
        processes: every process that has been started, and the ranks as planned.
        listening: names of the workers whose server accepts connections.
        failures: all failures, in the order in which they became known.
        disconnected_at: when the connections of workers ended, on the monotonic clock.
        silences: the workers that do not go on.
        stacks: answers to the last request for stacks, by process.
        usage: resource usage of each worker, as last reported by its agent.
        lost_threads: texts about the threads and forks of scripts that were ended by an exception.
        first_step_at: when a process first reported a step, on the monotonic clock; None before that.
        is_planned: whether the plan has been made, or is being made, for the workers that are there.
        servers: names of the workers whose processes never end by themselves; set once there is a plan.
        restarts: called with the failure of a process; starts that process again while the others go on, where that is
            allowed, and returns whether it has done so.
        ends: watches the order in which processes end; None where it is not watched.
        ending: whether the run is being ended, so that the end of a process is no failure.
        waits: when the expected workers were placed, and why some of them wait.
        changed: wakes tasks that wait for a change of this state.
    """

    def __init__(
        self, specs: Iterable[WorkerSpec], emit: Callable[[Event], None], spare: int = 0, ends: Ends | None = None
    ) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.left_out: set[str] = set()
        self.is_planned = False
        self._spare = spare
        self._emit = emit
        self.ends = ends
        self.workers: dict[str, Worker] = {}
        self.members: dict[str, Member] = {}
        self._missing = dict.fromkeys(self.specs)  # in order, and quick to remove from
        self.agents: dict[str, int] = {}
        self.preempted: set[str] = set()
        self._stayed: set[str] = set()  # workers that were taken over from the attempt before
        self.processes = RunProcesses(self.specs)
        self.listening: set[str] = set()
        self.failures: list[Failure] = []
        self._failures_of: dict[str | None, list[Failure]] = {}  # the same failures, by worker
        self.disconnected_at: dict[str, float] = {}
        self._heard_at: dict[str, float] = {}  # when workers last said something, on the monotonic clock
        self.stacks: dict[Source, wire.ProcessStacks] = {}
        self.usage: dict[str, wire.Usage] = {}
        self._metrics = Metrics(self.specs)
        self.first_step_at: float | None = None
        self.imported_at = -math.inf
        self._bounds = AgentBounds(self.processes.expected)
        self.lost_threads: list[str] = []
        self.servers: frozenset[str] = frozenset()
        self.restarts: Callable[[Failure], bool] = lambda failure: False
        self._restarted: dict[str, Failure] = {}  # failures of processes that are being started again, by worker
        self.ending = False
        self.changed = Changes()
        self.waits = Waits(self.emit, self.changed.set)
        self.silences = Silences(self.emit)
        self._handlers: dict[type, Callable[[str, Any], None]] = {
            wire.Hello: self._on_hello,
            ClockOffset: self._on_clock,
            wire.Started: self._on_started,
            wire.Exited: self._on_exited,
            wire.Suspended: self._on_suspended,
            wire.Preempted: self._on_preempted,
            wire.HungUp: self._on_hung_up,
            wire.Broken: self._on_broken,
            wire.Listening: self._on_listening,
            wire.Output: self._on_output,
            wire.Usage: self._on_usage,
            wire.Progress: self._on_progress,
            wire.Stage: self._on_stage,
            wire.Warned: self._on_warned,
            wire.Returned: self._on_returned,
            wire.Raised: self._on_raised,
            wire.ProcessStacks: self._on_stacks,
            wire.Error: self._on_error,
        }

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def metrics(self) -> dict[str, float]:
        """Last reported value of each metric; where several ranks report one, that of the lowest such rank."""
        return self._metrics.values

    @property
    def missing(self) -> list[str]:
        """Names of the workers whose agents are expected and have not said hello yet."""
        return list(self._missing)

    @property
    def are_any_missing(self) -> bool:
        """True if agents are expected that have not said hello yet."""
        return bool(self._missing)

    @property
    def has_enough(self) -> bool:
        """True if the agents of at least as many workers as the attempt needs have said hello."""
        return len(self.members) >= len(self.specs) - self._spare

    def can_spare(self, number: int) -> bool:
        """Return whether the attempt can go on without ``number`` more of its workers."""
        return len(self.left_out) + number <= self._spare

    async def wait_while(self, busy: Callable[[], bool], seconds: float) -> None:
        """Wait while ``busy`` returns true, but at most ``seconds``."""
        await self.changed.until(lambda: not busy(), clock.now() + seconds)

    # -- from the platform --------------------------------------------------------------------------------------------

    def submitted(self, name: str, handle: str, since: float) -> None:
        """Record that the platform has accepted a worker and knows it by this handle.

        Until the platform says otherwise, the worker counts as placed since ``since``, on the monotonic clock.
        """
        self.workers[name] = worker = Worker(handle, name, created_at=clock.wall_time())
        self.waits.submitted(name, since)
        self.emit(events.WorkerState(status=str(worker.status), address=worker.address), name)
        self.changed.set()

    def take_over(self, before: RunState, names: Iterable[str]) -> None:
        """Take over workers of the attempt before, with what their agents reported in that attempt."""
        for name in names:
            self._stayed.add(name)
            self.submitted(name, before.workers[name].id, clock.now())
            self.agents[name] = before.agents[name]
            self._ready(before.members[name])

    def said_of_workers(self) -> str:
        """Return a text that says which workers have stayed from the attempt before and which are new."""
        new = [name for name in self.members if name not in self._stayed]
        without = f" It goes on without {join_names(sorted(self.left_out))}." if self.left_out else ""
        if not self._stayed:
            return f"All workers were launched anew.{without}"
        stayed = f"{len(self._stayed)} worker{'s have' if len(self._stayed) != 1 else ' has'} stayed.{without}"
        if new:
            return f"{join_names(new)} {'were' if len(new) > 1 else 'was'} replaced; {stayed}"
        if self.left_out:
            return stayed
        return f"All {stayed}" if len(self._stayed) > 1 else f"The {stayed[2:]}"

    @property
    def queued(self) -> list[str]:
        """Names of the workers that the platform has no place for yet."""
        return [name for name in self.missing if self.waits.is_queued(name)]

    def waits_of(self, workers: Iterable[str]) -> list[str]:
        """Return the platform's reasons why these workers wait: each text once, with names where the texts differ."""
        return self.waits.of(workers)

    def polled(self, workers: Sequence[Worker], connected: Iterable[str]) -> None:
        """Handle the platform's answer to a poll.

        A worker that has ended, is not connected, and whose end is not explained yet counts as lost.
        """
        coming, ended, suspected = [], [], {}
        for worker in workers:  # in one loop, as there may be thousands at every poll
            if worker.name in self.left_out:
                continue
            if worker.status.is_final:
                ended.append(worker)
            elif worker.name not in self.members:
                coming.append(worker)
            elif worker.reason:
                suspected[worker.name] = worker.reason
        self.silences.suspected = suspected
        for worker in coming:
            self.waits.polled(worker)
            self.move(worker.name, worker.status)
        statuses = {worker.name: self.workers[worker.name].status for worker in coming}
        self.waits.tell({worker.name: worker.reason or "" for worker in coming}, statuses)
        for worker in workers if self.silences.are_any_silent else ():
            self.silences.explain(worker.name, worker.reason)
        known = self.ends_known() | set(connected) if ended else set()
        for worker in ended:
            self.move(worker.name, worker.status, reason=worker.reason, finished_at=worker.finished_at)
            if worker.name not in known:
                self.lost(worker.name, worker.reason or f"the platform says it has {worker.status}", worker)

    def ends_known(self) -> set[str | None]:
        """Return the names of the workers whose end needs no further explanation.

        An echo explains nothing. Where there are only echoes, even a worker whose processes have ended well may be what
        explains them, if the platform has taken it away: as a launcher fails that was still connected to it.
        """
        explained = {failure.worker for failure in self.failures if not failure.is_echo}
        unexplained = {failure.worker for failure in self.failures if failure.is_echo}
        if self.failures and not explained:
            unexplained |= self.preempted
        return explained | ({worker for worker in self.specs if self.processes.is_over(worker)} - unexplained)

    def lost(self, worker: str, reason: str, known: Worker | None = None) -> None:
        """Count a worker as lost for this reason; the loss is dated to the end of its connection, if it had one.

        Args:
            known: the worker as its platform knows it, which may give the cause and advice.
        """
        if self.can_spare(1) and not (self.ending or self.is_planned or worker in self.left_out):
            self.members.pop(worker, None)
            self.leave_out([worker], reason)
            return
        when = self.disconnected_at.get(worker, clock.now())
        gone = FailureKind.PREEMPTED if worker in self.preempted else FailureKind.LOST
        kind = FailureKind(known.cause) if known and known.cause else gone
        advice = known.advice if known else None
        # An agent that is going away first ends the processes that it has started: failures that result from that
        # are results of the worker's loss.
        began = [failure.time - LATE for failure in _ended_unasked(self._failures_of.get(worker, ()))]
        heard = min([self._heard_at.get(worker, when), *began])
        is_told = bool(known and known.cause not in (None, EndCause.PEER))
        self.fail(Failure(kind, when, worker, message=reason, advice=advice, since=heard, is_told=is_told))

    def leave_out(self, workers: Sequence[str], reason: str) -> None:
        """Go on without workers that did not connect, or that were lost before the plan was made, for this reason."""
        reason = reason.rstrip(".")
        self.left_out.update(workers)
        for name in workers:
            self.waits.left_out(name)
            self._missing.pop(name, None)
            self.workers.setdefault(name, Worker("", name))  # one that could not be launched has no handle
            self.move(name, Status.STOPPED, reason=f"left out: {reason}", finished_at=clock.wall_time())
        left = len(self.specs) - len(self.left_out)
        names = join_names(sorted(workers))
        self.emit(events.Note(f"The run goes on without {names}, with {left} of {len(self.specs)} workers: {reason}."))
        self.changed.set()

    def ended_unasked(self) -> list[Failure]:
        """Return the failures of processes that agents ended without an order of the session or the end of a login."""
        return _ended_unasked(self.failures)

    def heard_at(self) -> float:
        """Return when any worker last sent a message, on the monotonic clock; minus infinity if none has."""
        return max(self._heard_at.values(), default=-math.inf)

    # -- from agents --------------------------------------------------------------------------------------------------

    def on_message(self, worker: str, message: Any) -> None:
        """Handle a message of an agent (:mod:`muster.agent.wire`), or a measurement of its clock's offset."""
        self._heard_at[worker] = clock.now()
        kind = type(message)
        handler = self._handlers.get(kind)
        if handler is None:
            self._bounds.doubt(worker, f"sent a {kind.__name__}, which no run expects")
        elif kind in OF_PROCESSES and not self.processes.has(worker, message.rank):
            self._bounds.doubt(worker, "tells of a rank that it has not started")
        else:
            handler(worker, message)

    def _on_hello(self, worker: str, hello: wire.Hello) -> None:
        spec = self.specs[worker]
        self.agents[worker] = hello.pid
        member = Member(
            worker,
            spec.role,
            spec.index,
            host=hello.host,
            ports=hello.ports,
            ssh_port=hello.ssh_port,
            host_key=hello.host_key,
            account=hello.account,
            no_ssh=hello.no_ssh,
            interfaces=hello.interfaces,
            cores=hello.cores,
            gpus=hello.gpus,
        )
        self._ready(member)

    def _ready(self, member: Member) -> None:
        self.waits.came(member.name)
        self._missing.pop(member.name, None)
        self.members[member.name] = member
        told = events.WorkerReady(member.host, member.ports, member.cores, member.gpus, self.agents[member.name])
        self.emit(told, member.name)
        self.changed.set()

    def _on_clock(self, worker: str, measured: ClockOffset) -> None:
        member = self.members[worker]
        self.members[worker] = replace(member, clock_offset=measured.offset, clock_error=measured.error)

    def _on_started(self, worker: str, started: wire.Started) -> None:
        if not self.processes.is_expected(worker, started.rank):
            self._bounds.doubt(worker, "tells of a process that nobody has asked it for")
            return
        if not self._bounds.allow_process(worker, started.rank, self.processes.of(worker)):
            return
        self.processes.add(worker, started.rank, started.pid)
        if self.ends:
            self.ends.watch(started.pid)
        self.emit(events.ProcessStarted(started.pid, started.rank), worker)
        self.changed.set()

    def _on_exited(self, worker: str, exited: wire.Exited) -> None:
        rank, code, signal, reason = exited.rank, exited.exit_code, exited.signal, exited.reason
        process = self.processes.of(worker).get(rank)
        if process is None or process.exit_status is not None:
            self._bounds.doubt(worker, "says that a process has ended which does not run")
            return
        self.silences.resumed(worker, rank)
        process.exit_status = -signal if signal else code or 0  # the message has either a signal or an exit code
        process.was_stopped = reason == "stopped"
        self.emit(events.ProcessExited(process.pid, rank, code, signal, reason), worker)
        kind = self._kind_of_failure(worker, exited)
        if kind and self._bounds.allow_failure(worker):
            used, limit = exited.memory, self.specs[worker].resources.memory_bytes
            when, error = self._happened(worker, exited.monotonic)
            failure = Failure(kind, when, worker, rank, exit_code=code, signal=signal, used=used, limit=limit)
            place = self.ends.place_of(process.pid) if self.ends else None
            failure = replace(failure, uncertainty=error + (exited.late or 0.0), place=place)
            if not self.ending and self.restarts(failure):
                self._begin_again(failure)
                return
            self.fail(failure)
        if self.processes.is_over(worker):
            self.move(worker, self._outcome(worker), exit_code=code, signal=signal, finished_at=clock.wall_time())
        self.changed.set()

    def _begin_again(self, failure: Failure) -> None:
        """Forget a process that is started again while the others go on, and keep its failure."""
        worker = failure.worker or ""
        del self.processes.of(worker)[failure.rank]
        self.listening.discard(worker)
        self._restarted[worker] = failure
        told = f"{worker} was ended by {signal_name(failure.signal)}, and is started again; the others go on."
        self.emit(events.Note(told))
        self.changed.set()

    def _on_suspended(self, worker: str, suspended: wire.Suspended) -> None:
        process = self.processes.of(worker).get(suspended.rank)
        if not suspended.is_suspended:
            self.silences.resumed(worker, suspended.rank)
        elif process is not None and process.exit_status is None and self._bounds.allow_suspension(worker):
            self.silences.suspended(worker, suspended.rank)

    def _on_preempted(self, worker: str, preempted: wire.Preempted) -> None:
        self.preempted.add(worker)
        told = f"{worker} is about to be taken away, as a signal to end tells its agent. Scripts are told."
        self._note(worker, told, worker)
        self.changed.set()

    def _on_hung_up(self, worker: str, hung_up: wire.HungUp) -> None:
        if self._bounds.allow_failure(worker):
            when, error = self._happened(worker, hung_up.monotonic)
            self.fail(Failure(FailureKind.HUNG_UP, when, worker, hung_up.rank, uncertainty=error))

    def _on_broken(self, worker: str, broken: wire.Broken) -> None:
        code = broken.code
        signal, exit_code = (code - 128, None) if code > 128 else (None, code)
        if self._bounds.allow_failure(worker):
            self.fail(Failure(FailureKind.DAEMON, clock.now(), worker, exit_code=exit_code, signal=signal))

    def _outcome(self, worker: str) -> Status:
        """Return the status of a worker whose processes have all ended.

        A process whose script raised an exception or called ``sys.exit`` may have been stopped before its interpreter
        had ended: its worker has failed all the same.
        """
        processes = self.processes.of(worker).values()
        own = (FailureKind.EXCEPTION, FailureKind.EXIT)
        has_ended_itself = any(failure.kind in own for failure in self._failures_of.get(worker, ()))
        if has_ended_itself or any(process.exit_status and not process.was_stopped for process in processes):
            return Status.FAILED
        return Status.STOPPED if any(process.was_stopped for process in processes) else Status.SUCCEEDED

    def _happened(self, worker: str, monotonic: float | None) -> tuple[float, float]:
        """Return when something happened on a worker, by the session's monotonic clock, and how uncertain that is.

        Args:
            monotonic: the time by the monotonic clock of the worker's machine. None: it happened just now.
        """
        member = self.members[worker]
        if monotonic is None or member.clock_offset is None or member.clock_error is None:
            return clock.now(), 0.0
        if abs(member.clock_offset) <= member.clock_error:
            return min(monotonic, clock.now()), 0.0  # such clocks count from the machine's start: it is the same one
        # A machine that was paused after its clock was measured is off by that, and an agent may tell anything.
        return min(monotonic - member.clock_offset, clock.now()), member.clock_error

    def _kind_of_failure(self, worker: str, exited: wire.Exited) -> FailureKind | None:
        """Return the kind of failure that the end of a process means; None for a success."""
        if exited.reason:  # where the session had the process stopped, the run is ending, and ``fail`` ignores this
            return FailureKind(exited.reason)
        if exited.signal:
            return FailureKind.SIGNAL
        if exited.exit_code:
            return FailureKind.EXIT
        return FailureKind.ENDED if worker in self.servers else None

    def _on_listening(self, worker: str, listening: wire.Listening) -> None:
        if worker in self.listening:
            return
        self.listening.add(worker)
        self.emit(events.Listening(listening.port), worker)
        before = self._restarted.pop(worker, None)
        if before is not None:
            self.emit(events.Note(f"{worker} is back after {clock.now() - before.time:.1f} s."))
        self.changed.set()

    def _on_output(self, worker: str, output: wire.Output) -> None:
        self.processes.touch(worker)
        self.emit(events.Output(output.text), worker)

    def _on_usage(self, worker: str, usage: wire.Usage) -> None:
        self.usage[worker] = usage
        self.emit(events.Usage(usage.cpu, usage.memory, usage.gpu, usage.gpu_memory), worker)

    def _on_progress(self, worker: str, progress: wire.Progress) -> None:
        metrics = progress.metrics or {}
        self._metrics.take(worker, progress.rank or 0, metrics)
        self.processes.touch(worker, progress.rank)
        told = events.Progress(
            progress.rank,
            progress.step,
            progress.steps,
            progress.epoch,
            progress.epochs,
            progress.examples,
            progress.bytes_sent,
            metrics,
        )
        self.emit(told, worker)
        if self.first_step_at is None and progress.step is not None:
            self.first_step_at = clock.now()
        for name, value in metrics.items():
            if "loss" in name and not math.isfinite(value):
                at = "" if progress.step is None else f" at step {progress.step}"
                self._note(
                    worker,
                    f"{process_label(worker, progress.rank)} reports {name} {value:g}{at}: its training diverges.",
                    name,
                )

    def _on_stage(self, worker: str, stage: wire.Stage) -> None:
        self.processes.touch(worker, stage.rank)
        if stage.stage.startswith(IMPORTING):
            self.imported_at = clock.now()
        process = self.processes.of(worker).get(stage.rank)
        if process is not None and process.stage == stage.stage:  # a repetition is only a sign of life
            return
        if not self._bounds.allow_stage(worker):
            return
        if process is not None:
            process.stage = stage.stage
        self.emit(events.Stage(stage.rank, stage.stage, stage.seconds), worker)

    def _on_warned(self, worker: str, warned: wire.Warned) -> None:
        if warned.is_of_thread and len(self.lost_threads) < MOST_NOTES and not self.ending:
            self.lost_threads.append(f"{process_label(worker, warned.rank)} {warned.text}")
        self._note(worker, f"{process_label(worker, warned.rank)} {warned.text}.", warned.text)

    def _on_returned(self, worker: str, returned: wire.Returned) -> None:
        for process in self.processes.of(worker).values():
            process.has_returned = True
        self.changed.set()

    def _on_raised(self, worker: str, raised: wire.Raised) -> None:
        if not self._bounds.allow_failure(worker):
            return
        if raised.status is not None:
            self._exits(worker, raised, raised.status)
            return
        raised = raised._replace(type=raised.type.strip() or UNNAMED, traceback=with_cells(raised.traceback))
        self.emit(events.ScriptRaised(raised.rank, raised.type, raised.message, raised.traceback), worker)
        when, error = self._happened(worker, raised.monotonic)
        failure = Failure(FailureKind.EXCEPTION, when, worker, raised.rank, raised.type, raised.message)
        failure = replace(failure, traceback=raised.traceback, uncertainty=error)
        self.fail(replace(failure, peer_was_gone=raised.peer_was_gone))

    def _exits(self, worker: str, raised: wire.Raised, code: int) -> None:
        """Count a process that called ``sys.exit`` with a nonzero status as failed at once.

        Its interpreter may end much later.
        """
        if code:
            when, error = self._happened(worker, raised.monotonic)
            failure = Failure(FailureKind.EXIT, when, worker, raised.rank, exit_code=code, uncertainty=error)
            self.fail(replace(failure, peer_was_gone=raised.peer_was_gone))

    def _on_stacks(self, worker: str, stacks: wire.ProcessStacks) -> None:
        if (worker, stacks.rank) in self.stacks:  # only the first answer counts: a new request clears them
            return
        self.stacks[worker, stacks.rank] = stacks
        self.emit(events.ProcessStacks(stacks.rank, stacks.text), worker)
        self.changed.set()

    def _on_error(self, worker: str, error: wire.Error) -> None:
        if self._bounds.allow_failure(worker):
            self.lost(worker, error.text.strip() or "its agent could not go on, and did not say why")

    # -- changes ------------------------------------------------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        """Record a failure, unless the run is being ended already."""
        if not self.ending:
            if failure.is_echo:  # another process could not go on without the restarted one, after all
                self.failures += [known for known in self._restarted.values() if known not in self.failures]
            self.failures.append(failure)
            self._failures_of.setdefault(failure.worker, []).append(failure)
            self.changed.set()

    def move(self, name: str, status: Status, **changes: Any) -> None:
        """Move a worker to this status; ignored where that would be a step back."""
        before = self.workers[name]
        after = before.moved(status, **changes)
        if after is not before and after != before:
            self.workers[name] = after
            news = {key: value for key, value in changes.items() if not key.endswith("_at")}
            self.emit(events.WorkerState(status=str(after.status), **news), name)
            self.changed.set()

    def _note(self, worker: str, text: str, subject: str) -> None:
        """Emit a note about a worker, once for each subject."""
        if self._bounds.allow_note(worker, subject):
            self.emit(events.Note(text))

    def emit(self, data: EventData, worker: str | None = None) -> None:
        """Emit an event with this data, about a worker or about the whole run."""
        self._emit(Event.of(data, worker, clock.wall_time()))


def _ended_unasked(failures: Iterable[Failure]) -> list[Failure]:
    hung_up = {failure.source for failure in failures if failure.kind is FailureKind.HUNG_UP}
    stopped = [failure for failure in failures if failure.kind is FailureKind.STOPPED]
    return [failure for failure in stopped if failure.source not in hung_up]
