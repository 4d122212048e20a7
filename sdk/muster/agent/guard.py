"""The guard: one process per platform object, which outlives whatever may happen to the session.

It forks the agents, so that they start at once with everything imported; answers for their states; and when the
session is gone, or hangs up, ends all of them and whatever they left behind, however it was detached.

It talks to its platform in lines of JSON over a socket that it inherits: ``launch``, ``poll``, ``stop`` and ``close``,
each answered by one line. Secrets go over that socket and into the agents' memory, never onto a command line or into
an environment. Other processes of the same user may ``poll`` and ``stop``, too (``visitors.py``).
"""

import os
import signal
import socket
import time

from . import agent, frames, linux
from .claims import Claim, claim, claim_cores, core_numbers
from .loop import Loop
from .processes import signal_name
from .scratch import remove_scratch
from .visitors import Visitors, guard_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


AGENT_GRACE = 3.0  # seconds that an agent gets for ending its processes and itself
SESSION_CHECK = 0.5  # seconds between two checks of the session's process, where the kernel has no pidfd


class GuardedWorker:
    """One worker, as the guard knows it. ``facts`` are its answer to ``poll``."""

    def __init__(self, config: "dict[str, Any]", pid: int, upstream: socket.socket, claims: "list[Claim]") -> None:
        self.pid = pid
        self.upstream = upstream
        self.decoder = frames.Decoder()
        self.claims = claims
        self.last_words: "dict[str, object]" = {}
        self.run: str = config["run"]
        self.scratch: str = config["scratch"]
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

    def let_go(self) -> None:
        """Close everything that is held for it."""
        self.upstream.close()
        for held in self.claims:
            held.close()


class Guard:
    """The guard of one platform object, which talks to it over ``channel``."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._decoder = frames.Decoder(limit=None)
        self._unsent = bytearray()
        self._workers: "dict[str, GuardedWorker]" = {}
        self._submitted: "dict[str, list[GuardedWorker]]" = {}
        self._session: "tuple[int, int] | None" = None
        self._loop = Loop()
        self._visitors = Visitors(self._loop, self._answer_visitor)
        self._pidfd: "int | None" = None

    def run(self) -> None:
        """Serve until the session closes the platform or is gone; then end everything."""
        linux.adopt_orphans()
        for signum in (signal.SIGINT, signal.SIGHUP):  # an interrupt of the notebook is no end
            signal.signal(signum, signal.SIG_IGN)
        self._loop.on_signal(signal.SIGTERM, self._loop.stop)
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._channel.setblocking(False)
        self._loop.on_readable(self._channel, self._receive)
        self._visitors.listen(guard_address(os.getpid(), linux.start_of(os.getpid())))
        self._loop.run()
        self._end_everything()

    # Requests

    def _receive(self) -> None:
        try:
            data = self._channel.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.stop()
            return
        for message in self._decoder.feed(data):
            self._reply(self._answer(message, ("launch", "poll", "stop", "close")))

    def _answer_visitor(self, message: "dict[str, Any]") -> "dict[str, Any]":
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
            self._loop.on_writable(self._channel, self._transmit)
            return
        except OSError:
            self._loop.stop()
            return
        self._loop.on_writable(self._channel, None)

    def _do_launch(
        self,
        run_key: str,
        session: "list[int]",
        environ: "dict[str, str]",
        claims: "dict[str, Any]",
        sshd: "dict[str, Any] | None",
        workers: "list[dict[str, Any]]",
    ) -> "dict[str, Any]":
        self._watch_session(session[0], session[1])
        if run_key in self._submitted:  # the answer to the first time was lost
            return {"workers": [worker.facts for worker in self._submitted[run_key]]}
        common = {"session_process": session, "environ": environ, "sshd": sshd}
        started: "list[GuardedWorker]" = []
        cores = claim_cores(claims["folder"], claims["cores"], [config["cpu"] for config in workers])
        # The workers of a cluster share its cores: a rank has threads beside the one that computes, and pinned to a
        # single core they would wait for one another while the core of a waiting rank is idle.
        common["cores"] = sorted(number for held in cores for number in core_numbers(held))
        for config in workers:
            gpus = claim(claims["folder"], claims["gpus"], config["gpu"])
            try:
                if gpus is None:
                    raise OSError("fewer than {} GPUs are free; other clusters have taken them".format(config["gpu"]))
                started.append(self._fork_agent(dict(config, **common), cores[len(started)], gpus))
            except OSError as error:
                for held in cores[len(started) :] + ([gpus] if gpus else []):
                    held.close()
                for worker in started:
                    self._stop(worker)
                return {"refused": config["name"], "why": str(error)}
        self._submitted[run_key] = started
        return {"workers": [worker.facts for worker in started]}

    def _do_poll(self) -> "dict[str, Any]":
        return {"workers": [worker.facts for worker in self._workers.values()]}

    def _do_stop(self, ids: "list[str]") -> "dict[str, Any]":
        for worker in [self._workers[worker_id] for worker_id in ids if worker_id in self._workers]:
            self._stop(worker)
        return {}

    def _do_close(self) -> "dict[str, Any]":
        self._loop.stop()
        return {}

    # Agents

    def _fork_agent(self, config: "dict[str, Any]", cores: Claim, gpus: Claim) -> GuardedWorker:
        config.update(gpus=gpus.devices)
        ours, theirs = socket.socketpair()
        guard = os.getpid()
        # The agent is to get signals from its first moment on, but not before it has handlers of its own.
        signal.pthread_sigmask(signal.SIG_BLOCK, agent.SIGNALS)
        pid = os.fork()
        if pid == 0:
            try:
                linux.signal_at_parent_death(signal.SIGTERM)
                if os.getppid() == guard:
                    self._let_go()
                    ours.close()
                    os.setsid()
                    linux.hide(config["hidden"])
                    agent.main(config, theirs.detach())
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, agent.SIGNALS)
        theirs.close()
        ours.setblocking(False)
        worker = GuardedWorker(config, pid, ours, [cores, gpus])
        self._workers[config["id"]] = worker
        self._loop.on_readable(ours, lambda: self._hear(worker))
        return worker

    def _let_go(self) -> None:
        """Close, in an agent just forked, everything that is the guard's."""
        self._loop.close()
        self._channel.close()
        self._visitors.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        for worker in self._workers.values():
            worker.let_go()

    def _hear(self, worker: GuardedWorker) -> None:
        """Take in what an agent says about its worker."""
        try:
            data = worker.upstream.recv(1 << 16)
        except OSError:
            return
        if not data:
            self._loop.forget(worker.upstream)
            return
        for news in worker.decoder.feed(data):
            del news["type"]
            if "status" in news:
                worker.last_words = news
            elif worker.facts["status"] == "starting":
                worker.facts.update(news, status="running", running_at=time.time())

    def _stop(self, worker: GuardedWorker) -> None:
        if worker.has_ended or worker.facts["status"] == "stopping":
            return
        worker.facts["status"] = "stopping"
        linux.kill(worker.pid, signal.SIGTERM)
        self._loop.call_later(AGENT_GRACE, lambda: self._kill_agent(worker))

    @staticmethod
    def _kill_agent(worker: GuardedWorker) -> None:
        if not worker.has_ended:
            linux.kill(worker.pid)

    def _reap(self) -> None:
        """Collect agents that have ended. Every other child is the orphan of an agent that was killed."""
        by_pid = {worker.pid: worker for worker in self._workers.values()}
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in by_pid:
                    self._record_end(by_pid.pop(pid), status)
        except ChildProcessError:
            pass
        agents = {worker.pid for worker in self._workers.values() if not worker.has_ended}
        orphans = [pid for pid in linux.children() if pid not in agents]
        if orphans:
            processes = linux.snapshot()
            for orphan in orphans:
                for pid in [orphan] + linux.descendants(orphan, processes):
                    linux.kill(pid)

    def _record_end(self, worker: "GuardedWorker", status: int) -> None:
        self._hear(worker)  # its last words may not have been read yet
        self._loop.forget(worker.upstream)
        worker.let_go()
        if not worker.last_words:
            how = signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else "an error of its own"
            worker.last_words = {"status": "failed", "reason": "Its agent was ended by {}.".format(how)}
        if worker.facts["status"] == "stopping":
            worker.last_words = {"status": "stopped"}
        worker.facts.update(worker.last_words, finished_at=time.time())
        self._remove_scratch(worker)

    def _remove_scratch(self, worker: GuardedWorker) -> None:
        if self._session is not None:
            remove_scratch(worker.scratch, self._session)

    # The session

    def _watch_session(self, pid: int, start: int) -> None:
        """Watch the session's process itself: a child that it forked may keep its socket open after it has died."""
        if self._session is not None:
            return
        self._session = (pid, start)
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(pid)
                self._loop.on_readable(self._pidfd, self._loop.stop)
                return
            except OSError:  # an older kernel, or the session is gone: the check below tells
                pass
        self._loop.call_every(SESSION_CHECK, self._check_session)

    def _check_session(self) -> None:
        if self._session is not None and not linux.is_running(*self._session):
            self._loop.stop()

    # The end

    def _end_everything(self) -> None:
        alive = [worker for worker in self._workers.values() if not worker.has_ended]
        for worker in alive:
            linux.kill(worker.pid, signal.SIGTERM)
        deadline = time.monotonic() + AGENT_GRACE
        while any(not worker.has_ended for worker in alive) and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)
        linux.kill_descendants()
        for run in {worker.run for worker in self._workers.values()}:
            for pid in linux.marked("MUSTER_RUN_ID", run):
                linux.kill(pid)
        for worker in self._workers.values():
            self._remove_scratch(worker)


def main(descriptor: int) -> None:
    """Run the guard that answers on the socket ``descriptor``."""
    Guard(socket.socket(fileno=descriptor)).run()
