"""The platform ``slurm``: workers as tasks of a Slurm job."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from muster.agent import slurm_site
from muster.agent.places import is_symbolic
from muster.errors import HostUnreachable, JobError, LaunchRefused, PlatformError, PlatformUnsupported
from muster.job import EndCause, Resources, Status, Worker, WorkerSpec
from muster.options.fields import option
from muster.platforms.agents import default_log_cap
from muster.platforms.base import UNKNOWN, Platform, Reach, Relay, Storage, oldest_first, read_log
from muster.platforms.hosts.hostfile import NAME
from muster.platforms.slurm import script
from muster.platforms.slurm.commands import LimitReached, job_of
from muster.platforms.slurm.guard import JobGuard
from muster.platforms.slurm.login_node import LoginGuard, LoginNode, LoginRelay
from muster.platforms.slurm.nodes import limits_in_words
from muster.platforms.slurm.options import GIVEN, NODES_SECONDS, SlurmOptions
from muster.platforms.slurm.queue import QueuedJob
from muster.platforms.slurm.site import HERE, Site
from muster.platforms.slurm.states import state_of
from muster.platforms.slurm.submissions import HANDLE, Submission, Task, task_of
from muster.runtime import children
from muster.text.arguments import Argument, ArgumentText

END_SECONDS = 10.0  # time that cancelled jobs may take to end
KILL_SECONDS = 15.0  # time that the step may take that signals the tasks on a node to end
CHECK_SECONDS = 0.05  # between two checks whether cancelled tasks have ended
LOGIN_ADVICE = "run again; `ssh HOST` must stay connected for as long as the run, so run it where the network stays up"


@dataclass(eq=False, repr=False)
class SlurmPlatform(Platform):
    """Runs workers as tasks of a Slurm job or, for a session inside a job, as tasks of a step of that job.

    Args:
        login: the cluster's login node, as ssh knows it, for a session on another machine; everything that concerns
            Slurm then happens there, through one login.
        partition, account, qos, constraint, gres, reservation, nodelist, exclude: as sbatch takes them.
        nodes: number of nodes that the workers are spread over, as sbatch takes it.
        time: time limit of the job, such as ``4h`` or ``1-12:00:00``.
        sbatch_args: further options of sbatch, each in one word, such as ``--exclusive``.
        folder: folder on a file system that the login node and the compute nodes share, for the files of submissions.
        shared: whether the project's folder is on such a file system, too, so that no files have to be sent.
        log_cap: largest size of a worker's log in bytes.
    """

    login: str | None = option(
        None, "Login node to submit from, as ssh knows it", default="this machine is one", metavar="HOST"
    )
    partition: str | None = option(None, "Partition", default="Slurm's", metavar="NAME")
    time: str | None = option(None, "Longest time of the job, such as 4h", default="the partition's", metavar="TIME")
    account: str | None = option(None, "Account that is charged", default="yours", metavar="NAME")
    qos: str | None = option(None, "Quality of service", default="yours", metavar="NAME")
    constraint: str | None = option(None, "Features that the nodes must have", metavar="LIST")
    gres: str | None = option(None, "Generic resources of each node", metavar="LIST")
    reservation: str | None = option(None, "Reservation", metavar="NAME")
    nodelist: str | None = option(None, "Nodes to take", metavar="NODES")
    exclude: str | None = option(None, "Nodes not to take", metavar="NODES")
    nodes: str | None = option(None, "Number of nodes to spread workers over", default="as few as fit", metavar="N")
    sbatch_args: tuple[str, ...] = option((), "Further options of sbatch, in quotes", metavar="ARGS")
    folder: str | None = option(
        None, "Folder that the compute nodes see", default="slurm in Muster's own", metavar="PATH"
    )
    shared: bool = option(False, "The compute nodes see the project's folder: send nothing")
    log_cap: int | None = option(
        None, "Largest size of a worker's log in bytes", default="64 MiB", metavar="BYTES", minimum=1
    )
    name = "slurm"
    poll_seconds = (0.3, 2.0)
    explain_seconds = 7.0
    launches_there = True
    machines_fail_alone = False  # minutes later, once it has noticed, Slurm ends the whole job (NODE_FAIL)

    def __post_init__(self) -> None:
        self.storage = Storage.PROJECT if self.shared else Storage.NOTHING
        self.nodes = str(self.nodes) if self.nodes else None  # a number will do, too
        self._submissions: dict[str, Submission] = {}  # by folder
        self._workers: dict[str, Worker] = {}
        self._submitted: dict[str, list[str]] = {}
        self._steps: dict[str, subprocess.Popen[bytes]] = {}  # srun processes of steps, by folder
        self._login_node = LoginNode(self.login, self.lease_seconds) if self.login else None
        self._site: Site = self._login_node or HERE
        asked = {name: getattr(self, name) for name in GIVEN}
        self._options = SlurmOptions(self._site, asked, self.sbatch_args)
        self._guard: JobGuard | LoginGuard | None = None
        self._may_be_left = False  # whether there may be a job although its submission failed
        self._tried_at: dict[tuple[Resources, ...], float] = {}  # when sbatch would take a job of such workers
        self._owner = os.getpid()

    # -- before a launch ----------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Return, in words, the partition of the workers' job, or the job whose step they are."""
        if self._site.allocation:
            return f"{self.name}, steps of job {self._site.allocation}"
        through = f", through {self.login}" if self.login else ""
        names = ", ".join(partition.name for partition in self._options.chosen_partitions())
        return f"{self.name}, partition {names}{through}"

    def check(self) -> None:
        """Raise JobError for invalid options, and PlatformError where Slurm cannot be used."""
        if self._login_node is not None:
            self._check_login(self._login_node)
        self._site.check()
        script.check_raw(self.sbatch_args)
        script.check_words({"folder": str(self._home()), **self._options.flags()})
        if not self._site.allocation:
            self._options.chosen_partitions()

    def _check_login(self, site: LoginNode) -> None:
        """Log in to the login node. Raises JobError for an invalid option, and PlatformError."""
        if not re.fullmatch(NAME, site.host):
            raise JobError(
                f"login is {site.host!r}, which is no host.",
                advice=ArgumentText(Argument("login", "me@login1"), ": what ssh reaches, a name of ~/.ssh/config too"),
            )
        if self.shared:
            raise JobError(
                "shared has workers work in the project's folder, which is on this machine and not on the cluster.",
                advice="leave it out: the project is sent",
            )
        self.python = sys.executable if site.log_in() else "python3"

    def reach(self) -> Reach:
        """Return this machine's address on the network of the compute nodes, or the way through the login node."""
        if self._login_node is not None:
            return self._login_node.reach()
        address = self._address()
        return Reach(address, address)

    def reach_of_pool(self) -> Reach:
        """Return the same as ``reach``: later agents reach the session as earlier ones do."""
        return self.reach()

    def open_relay(self, host: str, port: int) -> Relay:
        """Return a relay of the login node's, which the compute nodes dial."""
        assert self._login_node is not None
        return LoginRelay(self._login_node, (host, port), self._address)

    def _address(self) -> str:
        """Return the address at which compute nodes reach the machine that submits. Raises PlatformUnsupported."""
        there = self._options.chosen_partitions()
        found = self._site.address([node.address for partition in there for node in partition.nodes])
        if found:
            return found
        if self.login:
            raise PlatformUnsupported(f"No compute node's address is known on {self.login}, so that none can dial it.")
        raise PlatformUnsupported(
            "No compute node's address is known here, so that nobody knows which of this machine's they could dial.",
            advice=ArgumentText(Argument("session_address", ""), " the one that they reach"),
        )

    def shortages(self, wanted: Sequence[Resources]) -> list[str]:
        """Return nothing: Slurm shares no resources. Raises ResourceError, or LaunchRefused, for what can never run."""
        if not self._site.allocation:
            self._options.check_fits([("each worker", each) for each in wanted])
            with contextlib.suppress(LimitReached):  # until the launch, which first ends jobs that were left behind
                self._try_out(wanted)
        return []

    def submission_text(self, specs: Sequence[WorkerSpec]) -> str:
        """Return the batch script that would be submitted, or the command of a step. Raises PlatformError."""
        folder = self._home() / "0000"
        if self._site.allocation:
            return f"{shlex.join(self._step_command(folder, 'muster', specs))}\n"
        wanted = [spec.resources for spec in specs]
        return self._script(folder, "muster", wanted, self._options.of_workers(wanted, specs[0].queue_seconds))

    def _script(self, folder: Path, label: str, wanted: Sequence[Resources], site: script.SiteOptions) -> str:
        return script.batch_script(str(folder), label, self._site.identity()["process"], wanted, site)

    def _try_out(self, wanted: Sequence[Resources]) -> None:
        """Have sbatch say, unless it just has, whether it would take a job of such workers.

        Raises:
            LaunchRefused: it would not.
            PlatformError: Slurm does not answer.
        """
        if time.monotonic() <= self._tried_at.get(tuple(wanted), float("-inf")) + NODES_SECONDS:
            return
        site = self._options.of_workers(wanted)
        text = self._script(self._home() / "0000", "muster", wanted, site)
        try:
            self._sbatch("--test-only", text, site)
        except LaunchRefused:
            # It counts nodes that are drained or down as if they were not there. Jobs that are submitted wait for them.
            if not any(node.is_out_of_service for node in self._options.nodes_now()):
                raise
        self._tried_at[tuple(wanted)] = time.monotonic()

    def _sbatch(self, option: str, text: str, site: script.SiteOptions, worker: str | None = None) -> str:
        """Hand a batch script to sbatch, and return what that prints. Raises LaunchRefused."""
        what, without = "The job could not be submitted", script.variables(site)
        return self._site.ask(
            "sbatch", option, given=text, without=without, what=what, error=LaunchRefused, worker=worker
        )

    def limits(self) -> list[str]:
        """Return what the partitions have that the job may go to, and what they allow; nothing within a job."""
        there = [] if self._site.allocation else self._options.chosen_partitions()
        return [limits_in_words(partition) for partition in there]

    def _home(self) -> Path:
        return self._site.home(self.folder)

    # -- workers ------------------------------------------------------------------------------------------------------

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Submit one job, or start one step, with a task per spec, so that all or none are launched."""
        if run_key in self._submitted:
            return self._submitted[run_key]
        self._site.check()
        if not self._site.allocation:
            self._options.check_fits([(spec.name, spec.resources) for spec in specs])
        _check_logs(specs)
        if self._guard is None:
            self._sweep()
            self._guard = JobGuard() if self._login_node is None else LoginGuard(self._login_node)
        made = Submission(self._home() / f"{_word(specs[0].run_id)}-{secrets.token_hex(4)}", self._site)
        self._guard.watch_folder(made.folder)
        try:
            ordered = script.by_part(specs)
            made.write(ordered, self._address(), self.log_cap or default_log_cap(), {})
            by_task = self._start(made, ordered) if self._site.allocation else self._batch(made, ordered)
        except OSError as error:
            with contextlib.suppress(PlatformError):
                made.remove()
            raise LaunchRefused(
                f"The submission's files cannot be written into {made.folder}: {error.strerror}.",
                worker=specs[0].name,
                advice=ArgumentText(Argument("folder", ""), " another one, which login and compute nodes see"),
            ) from error
        except BaseException:
            with contextlib.suppress(PlatformError):  # the login has ended: the guard there removes it
                made.remove()
            raise
        now = time.time()
        self._submissions[str(made.folder)] = made
        named = dict(zip(made.names, by_task, strict=True))
        handles = [named[spec.name] for spec in specs]
        for handle, spec in zip(handles, specs, strict=True):
            self._workers[handle] = Worker(handle, spec.name, created_at=now)
        self._submitted[run_key] = handles
        return handles

    def _batch(self, made: Submission, specs: Sequence[WorkerSpec]) -> list[str]:
        """Submit a job. Raises LaunchRefused."""
        assert self._guard is not None
        label = made.label
        wanted = [spec.resources for spec in specs]
        self._try_out(wanted)
        site = self._options.of_workers(wanted, specs[0].queue_seconds)
        text = self._script(made.folder, label, wanted, site)
        self._guard.watch(label)
        made.connection = self._site.connection
        try:
            out = self._sbatch("--parsable", text, site, worker=specs[0].name)
            if self._is_lost(made):
                raise HostUnreachable(f"The login to {self.login} ended as the job was submitted.", advice=LOGIN_ADVICE)
            return made.submitted(job_of(out))
        except BaseException:  # there may be a job all the same, as an answer can be lost
            self._may_be_left = True  # even after the cancellation: the controller may accept the job later
            with contextlib.suppress(PlatformError):
                self._site.cancel("--me", f"--name={label}")
            raise

    def _start(self, made: Submission, specs: Sequence[WorkerSpec]) -> list[str]:
        """Start a step of the job that this session runs in. Raises OSError."""
        assert isinstance(self._guard, JobGuard)
        command = self._step_command(made.folder, made.label, specs)
        with (made.folder / "output").open("ab") as output:
            step = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env=slurm_site.of_whole_job(),
            )  # fmt: skip
        self._steps[str(made.folder)] = step
        self._guard.watch_step(step.pid)
        return made.submitted(self._site.allocation, is_step=True)

    def _step_command(self, folder: Path, label: str, specs: Sequence[WorkerSpec]) -> list[str]:
        """Return the command that starts a step of the job that this session runs in."""
        wanted = [spec.resources for spec in specs]
        site = replace(self._options.of_workers(wanted), flags={})
        parts = []
        for count, resources in script.parts_of(wanted):
            spread = [f"--nodes={script.nodes_of(count, self.nodes)}"] if self.nodes else []
            arguments = script.worker_arguments(count, resources, site)
            parts.append([f"--jobid={self._site.allocation}", "--overlap", *spread, *arguments])
        return script.launch_command(str(folder), parts, label)

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Return the states of workers from their files and from the queue, which is polled rarely, once for all."""
        found: dict[str, Worker] = {}
        for made, of_one in self._by_submission(handles).items():
            for handle in of_one:
                known = self._workers.get(handle) or Worker(handle, handle)
                if made is None and not known.status.is_final:
                    known = known.moved(Status.FAILED, reason=UNKNOWN, finished_at=time.time())
                found[handle] = known
            if made is not None and any(not found[handle].status.is_final for handle in of_one):
                found.update(self._states_or_lost(made, {handle: found[handle] for handle in of_one}))
        self._workers.update((handle, worker) for handle, worker in found.items() if handle in self._workers)
        return [found[handle] for handle in handles]

    def _states_or_lost(self, made: Submission, known: Mapping[str, Worker]) -> dict[str, Worker]:
        """Return workers of a submission in their current states: failed where its login has ended for good."""
        if not self._is_lost(made):
            try:
                return self._states(made, known)
            except HostUnreachable:
                if not self._is_lost(made):
                    raise
        self._may_be_left = True  # the guard of that login may have been killed
        reason = (
            f"The login to {self.login}, through which its agent reached this session, has ended: its job is cancelled."
        )
        told = {"reason": reason, "cause": EndCause.LOST, "advice": LOGIN_ADVICE, "finished_at": time.time()}
        return {handle: worker.moved(Status.FAILED, **told) for handle, worker in known.items()}

    def _is_lost(self, made: Submission) -> bool:
        """Return whether the login has ended by which this object submitted: the guard there then ends the job."""
        return made.connection is not None and made.connection is not self._site.connection

    def _states(self, made: Submission, known: Mapping[str, Worker]) -> dict[str, Worker]:
        """Return workers of a submission in their current states. Raises PlatformError."""
        tasks = made.tasks()
        step = self._steps.get(str(made.folder))
        found = {}
        for handle, worker in known.items():
            number = task_of(handle)
            worker = replace(worker, name=made.names[number])
            found[handle] = state_of(worker, made, tasks.get(number), step)
        return found

    def _by_submission(self, handles: Sequence[str]) -> dict[Submission | None, list[str]]:
        found: dict[Submission | None, list[str]] = {}
        for handle in handles:
            match = HANDLE.fullmatch(handle)
            folder = match["folder"] if match else ""
            made = self._submissions.get(folder)
            if match and made is None:
                made = Submission.found(Path(folder), self._site)
            if made is not None and match is not None and int(match["task"]) >= len(made.names):
                made = None
            if made is not None:
                made = self._submissions.setdefault(folder, made)
            found.setdefault(made, []).append(handle)
        return found

    def stop(self, handles: Sequence[str]) -> None:
        """Ask agents to end: all of a job by cancelling it, some of them by steps that send SIGTERM."""
        for made, of_one in self._by_submission(handles).items():
            if made is None or self._is_lost(made):
                continue
            tasks, numbers = made.tasks(), [task_of(handle) for handle in of_one]
            over = {number for number, task in tasks.items() if task.outcome or task.was_stopped}
            wanted = [number for number in numbers if number not in over]
            if wanted:
                made.stop(wanted)
            elif not made.is_left:
                continue
            if len(over) + len(wanted) == len(made.names):
                made.is_left = True
                self._cancel(made)
                made.is_left = False
                continue
            self._end_tasks(made, {number: tasks[number] for number in wanted if number in tasks})

    @staticmethod
    def _end_tasks(made: Submission, tasks: Mapping[int, Task]) -> None:
        """End some tasks of a job by a step on each of their nodes, at the same time. Raises SlurmGone."""
        pids: dict[tuple[str, int | None], list[str]] = {}  # by node, and by part of the job
        for number, task in tasks.items():
            if task.pid:
                pids.setdefault((task.node, made.part_of(number)), []).append(str(task.pid))

        commands = []
        for (node, part), of_node in pids.items():
            group = [] if part is None else [f"--het-group={part}"]
            commands.append([
                "srun", f"--jobid={made.job}", *group, "--overlap", "--ntasks=1", "--nodes=1", "--mem=0",
                f"--nodelist={node}", "kill", "-TERM", *of_node,
            ])  # fmt: skip
        if commands:
            made.site.run_all(commands, KILL_SECONDS)

    def _cancel(self, made: Submission) -> None:
        """Cancel a submission's job, or its step in the job that this session runs in, but never that job."""
        if not made.is_step:
            self._site.cancel(made.job)
            return
        process = self._steps.get(str(made.folder))
        if made.step:
            # Without a signal Slurm would send SIGKILL, and agents could not remove their files.
            self._site.cancel("--signal=TERM", made.step)
        elif process is not None:
            children.send_signal(process, signal.SIGTERM)

    def list(self) -> list[Worker]:
        """Return all workers that this object has launched, oldest first."""
        return oldest_first(self.poll([*self._workers]))

    def logs(self, handle: str) -> Iterator[str]:
        """Yield the lines of a worker's log, if it is on a file system that this machine shares."""
        (made,) = self._by_submission([handle])
        log = made.logs[task_of(handle)] if made is not None else ""
        return read_log(Path(log)) if log and not is_symbolic(log) else iter(())

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all workers, wait until they are gone, and remove their files.

        Raises:
            PlatformError: Slurm fails to; the guard keeps trying.
        """
        if self._owner != os.getpid():  # a forked child's copy
            return
        guard = self._guard
        try:
            self._end_all()
        except BaseException:  # also an interrupt, as nobody else would wait for their ends
            self._guard = None
            if guard is not None:
                guard.clean_up()
            raise
        for handle, worker in self._workers.items():
            self._workers[handle] = worker.moved(Status.STOPPED, finished_at=time.time())
        self._guard = None
        if guard is not None and self._may_be_left:
            guard.clean_up()
        elif guard is not None:
            guard.close()
        self._may_be_left = False
        if self._login_node is not None:
            self._login_node.hang_up()

    def _end_all(self) -> None:
        """Cancel all workers, wait for their ends, and remove their files. Raises PlatformError."""
        self.stop([*self._workers])
        deadline = time.monotonic() + END_SECONDS
        while not all(self._is_over(made) for made in self._own()) and time.monotonic() < deadline:
            time.sleep(CHECK_SECONDS)
        with contextlib.suppress(PlatformError):
            self.poll([*self._workers])
        for folder, process in self._steps.items():
            self._end_step(process, self._submissions[folder].step, deadline)
        self._steps.clear()
        for made in self._own():
            made.remove()

    def _own(self) -> Sequence[Submission]:
        return [
            made
            for made in self._submissions.values()
            if any(handle in self._workers for handle in made.handles) and not self._is_lost(made)
        ]

    def _is_over(self, made: Submission) -> bool:
        """Return whether all tasks that have begun have ended, as far as their files or states tell."""
        living = {task_of(handle) for handle in made.handles if not self._workers[handle].status.is_final}
        return all(task.outcome or not task.pid for number, task in made.tasks().items() if number in living)

    def _sweep(self) -> None:
        """Cancel the jobs of sessions that were killed together with their guards, and remove their files."""
        jobs: list[QueuedJob] = []
        with contextlib.suppress(PlatformError):  # the submission that follows reports it
            jobs = [job for job in self._site.queue.look().values() if job.owner and not job.is_over]
        folders, orphaned = self._site.left_behind(self._home(), [job.owner for job in jobs])
        left = [Submission(folder, self._site) for folder in folders]
        with contextlib.suppress(PlatformError):
            for job in jobs:
                if job.owner in orphaned:
                    self._site.cancel(job.id.partition("+")[0])
            if left:  # also jobs from before a reboot
                self._site.cancel("--me", f"--name={','.join(made.label for made in left)}")
        for made in left:  # a job that is still queued will find no program, and end
            made.remove()

    def _end_step(self, process: subprocess.Popen[bytes], step: str, deadline: float) -> None:
        """Wait for a step that was asked to end, and cancel it at the deadline. Raises PlatformError."""
        if children.ends_within(process, max(deadline - time.monotonic(), 0.1)):
            return
        if step:
            self._site.cancel(step)
        children.send_signal(process, signal.SIGTERM)


def _word(text: str) -> str:
    """Return a run's id as a name for a folder and a job."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", text)[:60]


def _check_logs(specs: Sequence[WorkerSpec]) -> None:
    """Make the folders of logs in shared folders. Raises LaunchRefused."""
    for spec in specs:
        if is_symbolic(str(spec.log)) or not spec.log.is_absolute():
            continue
        try:
            spec.log.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchRefused(
                f"{spec.name} cannot write its log {spec.log}: {error.strerror}.", worker=spec.name
            ) from error
