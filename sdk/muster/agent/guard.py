"""The guard: one process per platform object, which survives the session's end.

It forks the agents, so that they start at once with everything imported; reports their states; and when the session is
gone, or hangs up, it ends all of them and all processes that they have left behind, even detached ones.

It talks to its platform in lines of JSON over a socket that it inherits: ``launch``, ``poll``, ``stop`` and ``close``,
each answered by one line. Secrets go over that socket and into the agents' memory, never onto a command line or into
an environment. Other processes of the same user may ``poll`` and ``stop``, too (``guard_clients.py``).
"""

import contextlib
import os
import signal
import socket
import time

from . import agent, frames, linux
from .channels import SocketChannel
from .claims import Claim, claim, claim_cores, core_numbers
from .guard_clients import GuardClients, guard_address
from .leftovers import SECONDS, Leftovers, kill_all, kill_descendants
from .loop import Loop
from .processes import signal_name
from .scratch import remove_scratch
from .templates import Templates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channels import PipeChannel


agent.import_all()  # once, for all agents, which are forks of it

AGENT_GRACE = 3.0  # seconds that an agent gets for ending its processes and itself
SUSPENDED = "Its agent is suspended, by SIGSTOP or a debugger."
SESSION_CHECK = 0.5  # seconds between two checks of the session's process, where the kernel has no pidfd


class GuardedWorker:
    """One worker, as the guard knows it. ``facts`` is the guard's answer about it to ``poll``."""

    def __init__(self, config: "dict[str, Any]", pid: int, upstream: socket.socket, claims: "list[Claim]") -> None:
        self.pid = pid
        self.upstream = upstream
        self.decoder = frames.Decoder()
        self.claims = claims
        self.outcome: "dict[str, object]" = {}
        self.run_id: str = config["run_id"]
        self.scratch: str = config["scratch"]
        self.imports: "dict[str, Any] | None" = config.get("imports")
        self.facts = {
            "id": config["id"],
            "name": config["name"],
            "status": "starting",
            "log": config["log"],
            "created_at": time.time(),
        }  # type: dict[str, object]
        self.facts["placed_at"] = self.facts["created_at"]

    @property
    def has_ended(self) -> bool:
        """True if its agent is gone."""
        return "finished_at" in self.facts

    def release(self) -> None:
        """Close everything that is held open for it."""
        self.upstream.close()
        for held in self.claims:
            held.close()


class Guard:
    """The guard of one platform object, with which it communicates over ``channel``."""

    requests: "tuple[str, ...]" = ("launch", "poll", "stop", "close", "warmth")  # that its platform may make

    def __init__(self, channel: "SocketChannel | PipeChannel") -> None:
        self._channel = channel
        self._decoder = frames.Decoder(limit=None)
        self._unsent = bytearray()
        self._workers: "dict[str, GuardedWorker]" = {}
        self._submitted: "dict[str, list[GuardedWorker]]" = {}
        self._session: "tuple[int, int] | None" = None
        self._loop = Loop()
        self._leftovers = Leftovers()
        self._templates = Templates(self._loop)
        self._clients = GuardClients(self._loop, self._answer_client)
        self._pidfd: "int | None" = None
        self._is_ending = False

    def run(self) -> None:
        """Serve until the session closes the platform or is gone; then end everything."""
        linux.adopt_orphans()
        for signum in (signal.SIGINT, signal.SIGHUP):  # an interrupt of the notebook is not meant for it
            signal.signal(signum, signal.SIG_IGN)
        self._loop.on_signal(signal.SIGTERM, self._loop.stop)
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._loop.on_readable(self._channel.reader, self._receive)
        with contextlib.suppress(OSError):  # its address is taken: then other processes cannot ask it
            self._clients.listen(guard_address(os.getpid(), linux.start_of(os.getpid())))
        self._loop.run()
        self._end_everything()

    # Requests

    def _receive(self) -> None:
        try:
            data = self._channel.receive(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._channel_ended()
            return
        for message in self._decoder.feed(data):
            self._reply(self._answer(message, self.requests))

    def _channel_ended(self) -> None:
        """Handle the end of the connection to the platform."""
        self._loop.stop()

    def _answer_client(self, message: "dict[str, Any]") -> "dict[str, Any]":
        return self._answer(message, ("poll", "stop"))

    def _answer(self, message: "dict[str, Any]", allowed: "tuple[str, ...]") -> "dict[str, Any]":
        kind = message.pop("type")
        try:
            if kind not in allowed:
                raise ValueError("there is no request {!r}".format(kind))
            return dict(getattr(self, "_do_" + kind)(**message))
        except Exception as error:
            return {"error": "{}: {}".format(type(error).__name__, error)}

    def _reply(self, answer: "dict[str, Any]") -> None:
        self._unsent += frames.encode("reply", **answer)
        self._transmit()

    def _transmit(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._channel.send(self._unsent)]
        except BlockingIOError:
            self._loop.on_writable(self._channel.writer, self._transmit)
            return
        except OSError:
            self._channel_ended()
            return
        self._loop.on_writable(self._channel.writer, None)

    def _do_launch(
        self,
        run_key: str,
        session: "list[int] | None",
        environ: "dict[str, str]",
        claims: "dict[str, Any]",
        sshd: "dict[str, Any] | None",
        workers: "list[dict[str, Any]]",
    ) -> "dict[str, Any]":
        if session:
            self._watch_session(session[0], session[1])
        if run_key in self._submitted:  # the answer to the first request was lost
            return {"workers": [worker.facts for worker in self._submitted[run_key]]}
        common: "dict[str, Any]" = {"session_process": session, "environ": environ, "sshd": sshd}
        started: "list[GuardedWorker]" = []
        cores = claim_cores(claims["cores"], [config["cpu"] for config in workers])
        # The workers of a cluster share its cores: a rank has threads beside the one that computes, and pinned to a
        # single core they would wait for one another while the core of a waiting rank is idle.
        runs = {config["run_id"] for config in workers}
        running = [worker for worker in self._workers.values() if worker.run_id in runs and not worker.has_ended]
        of_each = [core_numbers(held) for held in cores + [worker.claims[0] for worker in running]]
        common["cores"] = sorted(number for numbers in of_each for number in numbers) if all(of_each) else []
        why_cold = self._templates.reason_against(workers[0].get("imports")) if workers else ""
        common["cold"] = why_cold or ""
        for config in workers:
            claimed = [cores[len(started)]]
            try:
                gpus = self._claim_gpus(claims, config["gpu"])
                if gpus is None:
                    raise OSError("too few GPUs are free; other clusters may have them")
                claimed.append(gpus)
                claimed.append(self._claim_memory(config["memory"]))
                forks = len(workers) if why_cold is None else 0
                started.append(self._start_agent(dict(config, **common), claimed, forks))
            except OSError as error:
                for held in claimed + cores[len(started) + 1 :]:
                    held.close()
                for worker in started:
                    self._stop(worker)
                return {"refused": config["name"], "why": str(error)}
        self._submitted[run_key] = started
        return {"workers": [worker.facts for worker in started]}

    def _do_poll(self, ids: "list[str] | None" = None) -> "dict[str, Any]":
        """Return the known workers with these ids; all of them if ``ids`` is None."""
        wanted = self._workers if ids is None else [worker_id for worker_id in ids if worker_id in self._workers]
        return {"workers": [self._workers[worker_id].facts for worker_id in wanted]}

    def _do_warmth(self) -> "dict[str, Any]":
        found = self._templates
        return {"state": found.state, "why": found.why, "pid": found.pid}

    def _do_stop(self, ids: "list[str]") -> "dict[str, Any]":
        for worker in [self._workers[worker_id] for worker_id in ids if worker_id in self._workers]:
            self._stop(worker)
        return {}

    def _do_close(self) -> "dict[str, Any]":
        self._loop.stop()
        return {}

    # Agents

    def _claim_gpus(self, claims: "dict[str, Any]", count: int) -> "Claim | None":
        """Claim ``count`` GPUs for one worker alone; return None where fewer are free. Raises OSError."""
        return claim(claims["gpus"], count)

    def _claim_memory(self, amount: int) -> Claim:
        """Return a claim on bytes of memory for one worker: here none, as nobody asks for it. Raises OSError."""
        return Claim()

    def _start_agent(self, config: "dict[str, Any]", claims: "list[Claim]", warm: int) -> GuardedWorker:
        """Fork an agent: from the template if ``warm``, the number of its agents, is not 0, and else from the guard.

        The guard holds the claims open until the agent has ended.
        """
        config.update(gpus=claims[1].devices)
        ours, theirs = socket.socketpair()
        pid = self._templates.fork(config, theirs, warm) if warm else 0
        pid = pid or self._fork_agent(config, ours, theirs)
        theirs.close()
        ours.setblocking(False)
        worker = GuardedWorker(config, pid, ours, claims)
        self._workers[config["id"]] = worker
        self._loop.on_readable(ours, lambda: self._read_from_agent(worker))
        return worker

    def _fork_agent(self, config: "dict[str, Any]", ours: socket.socket, theirs: socket.socket) -> int:
        guard = os.getpid()
        # Signals to the agent must not be lost, but be delivered only once it has handlers of its own.
        signal.pthread_sigmask(signal.SIG_BLOCK, agent.SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    linux.signal_at_parent_death(signal.SIGTERM)
                    if os.getppid() == guard:
                        self._close_inherited()
                        ours.close()
                        os.setsid()
                        linux.hide(config["hidden"])
                        agent.main(config, theirs.detach())
                finally:
                    os._exit(0)
        finally:  # also where nothing can be forked: the guard would hear of no end any more
            signal.pthread_sigmask(signal.SIG_UNBLOCK, agent.SIGNALS)
        return pid

    def _close_inherited(self) -> None:
        """Close everything that belongs to the guard, in an agent that has just been forked."""
        self._loop.close()
        self._channel.close()
        self._clients.close()
        self._templates.close_inherited()
        if self._pidfd is not None:
            os.close(self._pidfd)
        for worker in self._workers.values():
            worker.release()

    def _read_from_agent(self, worker: GuardedWorker) -> None:
        """Handle messages of an agent about its worker."""
        try:
            data = worker.upstream.recv(1 << 16)
        except OSError:
            return
        if not data:
            self._loop.forget(worker.upstream)
            return
        for message in worker.decoder.feed(data):
            del message["type"]
            if "recipe" in message:
                self._templates.note(message["recipe"])
            elif "cold" in message:
                self._templates.refuse(message["cold"])
            elif "status" in message:
                worker.outcome = message
            elif worker.facts["status"] == "starting":
                worker.facts.update(message, status="running", running_at=time.time())

    def _stop(self, worker: GuardedWorker) -> None:
        if worker.has_ended or worker.facts["status"] == "stopping":
            return
        worker.facts["status"] = "stopping"
        with contextlib.suppress(OSError):  # the byte tells the agent that the signal comes from the guard
            worker.upstream.send(b".")
        linux.kill(worker.pid, signal.SIGTERM)
        self._loop.call_later(AGENT_GRACE, lambda: self._kill_agent(worker))

    @staticmethod
    def _kill_agent(worker: GuardedWorker) -> None:
        if not worker.has_ended:
            linux.kill(worker.pid)

    def _reap(self) -> None:
        """Collect agents that have ended. Every other child is the orphan of an agent that was killed."""
        by_pid = {worker.pid: worker for worker in self._workers.values() if not worker.has_ended}
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                if pid == 0:
                    break
                if not (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
                    if pid in by_pid:
                        by_pid[pid].facts["reason"] = SUSPENDED if os.WIFSTOPPED(status) else None
                elif pid in by_pid:
                    self._record_end(by_pid.pop(pid), status)
                else:
                    self._templates.ended(pid)
        except ChildProcessError:
            pass
        agents = {worker.pid for worker in self._workers.values() if not worker.has_ended}
        orphans = [pid for pid in linux.children() if pid not in agents and pid != self._templates.pid]
        if orphans:
            processes = linux.snapshot()
            for orphan in orphans:
                if self._leftovers.kill([orphan] + linux.descendants(orphan, processes)):
                    self._loop.call_later(SECONDS, self._reap)

    def _record_end(self, worker: "GuardedWorker", status: int) -> None:
        self._read_from_agent(worker)  # its last messages may not have been read yet
        self._loop.forget(worker.upstream)
        worker.release()
        if not worker.outcome:
            how = signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else "an error of its own"
            worker.outcome = {"status": "failed", "reason": "Its agent was ended by {}.".format(how)}
        if worker.facts["status"] == "stopping":
            worker.outcome = {"status": "stopped"}
        worker.facts.pop("reason", None)  # it was that of a silence
        worker.facts.update(worker.outcome, finished_at=time.time())
        self._remove_scratch(worker)
        if worker.imports is not None and not self._is_ending and all(w.has_ended for w in self._workers.values()):
            self._templates.prepare()

    def _remove_scratch(self, worker: GuardedWorker) -> None:
        remove_scratch(worker.scratch, self._session)

    # The session

    def _watch_session(self, pid: int, start: int) -> None:
        """Watch the session's process, as a child that it forked may keep its socket open after its end."""
        if self._session is not None:
            return
        self._session = (pid, start)
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(pid)
                self._loop.on_readable(self._pidfd, self._loop.stop)
                return
            except OSError:  # an older kernel, or the session is gone, which the check below notices
                pass
        self._loop.call_every(SESSION_CHECK, self._check_session)

    def _check_session(self) -> None:
        if self._session is not None and not linux.is_running(*self._session):
            self._loop.stop()

    # The end

    def _end_everything(self) -> None:
        self._is_ending = True
        self._templates.drop("")
        alive = [worker for worker in self._workers.values() if not worker.has_ended]
        for worker in alive:
            self._stop(worker)
        deadline = time.monotonic() + AGENT_GRACE
        while any(not worker.has_ended for worker in alive) and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)
        kill_descendants()
        runs = {worker.run_id for worker in self._workers.values()}
        kill_all(lambda: linux.marked("MUSTER_RUN_ID", *runs))
        for worker in self._workers.values():
            self._remove_scratch(worker)


def main(descriptor: int) -> None:
    """Run a guard that answers requests on the socket ``descriptor``, and end this process."""
    os.set_inheritable(descriptor, False)  # only forked agents inherit it, and close it
    Guard(SocketChannel(socket.socket(fileno=descriptor))).run()
    os._exit(0)  # the session waits for this: to take an interpreter apart takes as long as all of the end before
