"""The agent: one per worker. It starts the worker's processes, reports to the session, and leaves nothing behind.

It runs in a single thread, obeys the session (:mod:`~muster.agent.wire`), and tells the guard that forked it its
address and, at the end, its outcome. When the session hangs up, or SIGTERM comes, it ends all processes and leaves.
"""

import contextlib
import os
import re
import signal
import sys
import time

from . import fields, frames, linux, notice, wire
from .cgroup import MemoryKills
from .environment import resolved, worker_environment
from .files import Files
from .launcher import LauncherHere
from .leftovers import kill_descendants
from .link import Link, Unreachable
from .logfile import LogFile, RankLogs
from .loop import Loop
from .pace import Pace
from .package import PROGRAM, program
from .places import is_symbolic, resolve, symbol
from .ports import PortHold, hold_ports
from .processes import Child, Children, cannot_start, outcome_of
from .report_socket import ReportSocket
from .scratch import remove_scratch
from .stacks import ask_for_stacks, without_stacks
from .streams import Streams
from .usage import UsageMeter
from .waiting import connections_of, is_stopped
from .warm_starts import WarmStarts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .gpus import GpuMeter
    from .loop import Timer
    from .ranks import Ranks
    from .sshd import Sshd

SIGNALS = (signal.SIGTERM, signal.SIGCHLD)  # signals that the agent handles; blocked until it is ready to
LOG_TICK = 0.01  # seconds between two checks of the size of logs, while one of them grows fast
TICK = 0.1  # seconds between two checks of what the kernel gives no notice of: output, listening ports, orphans
NOTICE_SECONDS = 20.0  # from a SIGTERM to the agent until its processes are ended, which get a notice at once
TOGETHER = 1.0  # seconds between a process's SIGTERM and the agent's, if both were sent to end the worker
POLITE_GRACE = 1.0  # seconds between SIGTERM and SIGKILL, unless an order gives another time
NEEDED = (wire.Start, wire.Expect, wire.Launch, wire.Stop, wire.StopLauncher, wire.End)  # orders that runs depend on
OUTPUT_AT_ONCE = 64  # messages, of 64 KiB each
OUTPUT_SECONDS = 0.01  # between two attempts to send the rest of it at the end
OUTPUT_AT_END = 256  # messages, at the end of a process


class Agent:
    """One worker's agent.

    Args:
        config: the worker, as its platform describes it.
        upstream: descriptor of the socket to the guard, which takes lines of JSON.

    Raises:
        OSError: the worker's log cannot be opened.

    Attributes:
        environment: the environment of the worker's processes; empty until the worker has an address.
        expected: the session's order about ranks that a launcher will start: ``argv`` (None: the launcher's command
            line), ``env``, ``cwd``; None before it, and from the end of an attempt until that of the next.
    """

    def __init__(self, config: "dict[str, Any]", upstream: int) -> None:
        self.config = config
        self.environment: "dict[str, str]" = {}
        self.expected: "dict[str, Any] | None" = None
        self._upstream = upstream
        self._parent = os.getppid()
        self._scratch: str = config["scratch"]
        self._loop = Loop()
        os.makedirs(os.path.dirname(config["log"]), 0o700, exist_ok=True)
        self._log = LogFile(config["log"], config["log_cap"])
        self._rank_logs = RankLogs(self._log)
        self._next_look: "Timer | None" = None  # timer of the next check of logs, while one of them grows fast
        self._link = Link(self._loop, self._obey, self._session_lost)
        self._pace = Pace(self._link.send)
        self._link.on_welcome = lambda welcome: setattr(self._pace, "interval", welcome.interval)
        self._files = Files(self._loop, self._link.send, config["places"], config.get("cache"))
        self.processes = Children(self._loop, self._log.descriptor)
        self.processes.on_suspended = self._process_suspended
        self._launcher = LauncherHere(self._loop, self.processes, config, self._link.send, self._stop_if_all_left)
        self._streams = Streams(self._loop, self.processes, self._link.send, lambda: self._address)
        self._address = ""
        self._ports: "list[PortHold]" = []
        self._watched_ports: "set[int]" = set()
        self._sshd: "Sshd | None" = None
        self._ranks: "Ranks | None" = None
        self._no_ssh = ""
        self._gpus: "GpuMeter | None" = None
        self._memory_kills = MemoryKills.of(config.get("has_cgroup"))
        self._warm_starts = WarmStarts(config, self._send_to_guard, self._log.write)
        self._is_leaving = self._has_notice = False
        self._process_told_at = float("-inf")  # when a process ended because somebody had sent it SIGTERM
        self._outcome: "dict[str, object]" = {"status": "stopped"}
        self._orders: "dict[type, Callable[[Any], object]]" = {
            wire.Refused: self._refused,
            wire.Ping: self._answer_ping,
            wire.Start: self._start,
            wire.Expect: self._expect,
            wire.Launch: self._launcher.start,
            wire.StopLauncher: self._launcher.stop,
            wire.Watch: self._watch,
            wire.AskStacks: self._ask_stacks,
            wire.Release: self._release,
            wire.Notice: lambda order: notice.leave(self._scratch),
            wire.Stop: self._stop,
            wire.End: self._end,
            wire.Execute: self._execute,
            wire.Dial: self._streams.dial,
            wire.Data: self._streams.data,
            wire.Credit: self._streams.credit,
            wire.Eof: self._streams.eof,
            wire.Resize: self._streams.resize,
            wire.Close: self._streams.end,
            wire.Put: self._files.put,
            wire.Get: self._files.get,
            wire.Find: self._files.find,
            wire.Sync: self._files.sync,
            wire.Have: self._files.have,
            wire.Chunk: self._files.chunk,
            wire.Missing: self._files.missing,
        }

    def run(self) -> "dict[str, object]":
        """Set up, serve until told to end, and clean up. Return the worker's outcome."""
        try:
            self._set_up()
            self._loop.run()
        except Exception as error:  # any error must be reported to the worker's owner
            if isinstance(error, Unreachable):  # its text says it all
                self._log.write("the agent failed: {}".format(error))
            else:
                import traceback

                self._log.write("the agent failed\n" + traceback.format_exc())
            self._outcome = {"status": "failed", "reason": "Its agent failed: {}.".format(error)}
        finally:
            self._clean_up()
        return self._outcome

    # Setting up

    def _set_up(self) -> None:
        linux.adopt_orphans()
        # Systems send SIGTERM to a worker's agent and its processes alike. A process that ended for that must not be
        # reported as if it had ended by itself. So SIGTERM is handled first where both signals are pending, and looked
        # for again before an end is reported.
        self._loop.on_signal(signal.SIGTERM, self._told_to_end)
        self._loop.on_signal(signal.SIGCHLD, self.processes.reap)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if self.config["cores"]:
            os.sched_setaffinity(0, self.config["cores"])  # inherited by everything that this worker starts
        folders = [self._scratch, os.path.join(self._scratch, "tmp")]
        if "run" in self.config["places"]:
            folders.append(os.path.join(self.config["places"]["run"], "results"))
        if self.config["places"].get("project", "").startswith(self._scratch + "/"):
            folders.append(self.config["places"]["project"])
        for folder in folders:
            os.makedirs(folder, 0o700, exist_ok=True)
        if self.config["ssh"]:
            self._start_sshd()  # first, so that it starts while the rest is done
        self._reports = ReportSocket(self._loop, self._scratch, self._report, self._log.write)
        self._ports = hold_ports(self.config["ports"], self.config["port_range"])
        self._loop.call_every(TICK, self._tick)
        usage = UsageMeter(self._loop, self.processes, self.config["memory"], self._report_usage, self._too_much_memory)
        if self.config.get("template"):
            from .warm import share_of  # only here, as few agents need it

            usage.shared = share_of(self.config["template"])
        if self._sshd is None:
            self._ready(self.config["address"])

    def _start_sshd(self) -> None:
        from .ranks import Ranks  # only here, as those that need none of it would wait for its import
        from .sshd import Sshd

        self._ranks = Ranks(self._loop, self, os.path.join(self._scratch, "agent.sock"))
        self._sshd = Sshd(self._loop, self.processes, self.config, self._ready, self._sshd_failed)
        try:
            self._sshd.start()
        except OSError as error:
            if self.config["ssh"]["is_required"]:
                self._sshd_failed(str(error))
            else:
                self._do_without_sshd(str(error))

    def _do_without_sshd(self, why: str) -> None:
        self._sshd = None
        self._no_ssh = why.splitlines()[0]
        self.remark("nobody can log in to this worker: {}".format(why))

    def _ready(self, address: str) -> None:
        """Tell the session and the guard that the worker is ready, and start the process of its config, if any."""
        self._address = address
        self.environment = worker_environment(self.config, address)
        if self.config["gpus"]:
            from .gpus import GpuMeter

            self._gpus = GpuMeter(self._loop, self.processes, self.config["gpus"], self.environment)
        self._send_to_guard(address=address)
        if self.config["session"]:
            self._say_hello(address, self.config.pop("session"))
        if self.config["process"]:
            self._start(wire.Start(**self.config["process"]))

    def _say_hello(self, address: str, session: "dict[str, Any]") -> None:
        # Not earlier, since the session soon ends a connection on which it gets no hello.
        self._link.dial(session)
        hello = wire.Hello(
            version=wire.VERSION,
            token=session["token"],
            worker=self.config["name"],
            generation=self.config["generation"],
            pid=os.getpid(),
            host=address,
            ports=tuple(port.number for port in self._ports),
            ssh_port=self._sshd.port if self._sshd else None,
            host_key=self._sshd.host_key if self._sshd else None,
            account=self._sshd.account if self._sshd else None,
            no_ssh=self._no_ssh,
            interfaces=tuple(name for name in linux.interfaces_of(address) if re.match(fields.INTERFACE, name)),
            cores=max(1, int(self.config["cpu"])),
            gpus=tuple(self.config["gpus"]),
            python=".".join(str(part) for part in sys.version_info[:3]),
        )
        self._link.introduce(hello)

    # Orders of the session

    def _obey(self, message: "dict[str, Any]") -> None:
        try:
            order = wire.from_session(message)
            obey = self._orders[type(order)]
        except (wire.Misfit, KeyError) as error:
            text = "the agent cannot do what the session says: {}".format(error)
            transfer = message.get("transfer")
            if type(transfer) is int and transfer >= 0:  # it concerns one file
                self._link.send(wire.Missing(transfer, text))
            else:
                self.complain(text)
            return
        try:
            obey(order)
        except OSError as error:
            tell = self.complain if isinstance(order, NEEDED) else self.remark
            tell("the agent could not do what the session says: {}".format(error))

    def _answer_ping(self, ping: wire.Ping) -> None:
        self._link.send(wire.Clock(ping.number, time.monotonic(), time.time()))

    def _refused(self, refused: wire.Refused) -> None:
        self._outcome = {"status": "failed", "reason": "The session refused its agent: {}".format(refused.text)}
        self._leave()

    def _start(self, order: wire.Start) -> None:
        self._begin(order)
        argv, env, cwd = self._resolved(order)
        try:
            self.start_process(argv, env, cwd, order.rank, self.process_ended)
        except OSError as error:
            text = cannot_start(argv, error)
            self.complain(text)
            if self.config["process"]:
                self._outcome = {"status": "failed", "reason": text}
                self._leave()

    def _expect(self, order: wire.Expect) -> None:
        self._begin(order)
        argv, env, cwd = self._resolved(order)
        # A launcher knows only the session's paths: if the command line names places, the session's one is used.
        self.expected = {"argv": argv if any(map(is_symbolic, order.argv)) else None, "env": env, "cwd": cwd}
        if self._ranks is not None:
            self._ranks.start_early()

    def _begin(self, order: "wire.Start | wire.Expect") -> None:
        """Reset the state left by an attempt before, if no process runs except the launcher."""
        self._rank_logs.are_wanted = order.split
        if all(child is self._launcher.child for child in self.processes.running.values()):
            self._outcome = {"status": "stopped"}
            if not self._has_notice:
                notice.take_away(self._scratch)

    def _resolved(self, order: "wire.Start | wire.Expect") -> "tuple[list[str], dict[str, str], str | None]":
        """Return command line, environment and working directory, with this worker's paths in place of symbols."""
        places = self.config["places"]
        env = resolved(order.env, self.config)
        cwd = order.cwd and resolve(order.cwd, places)
        if cwd and cwd != order.cwd:  # a folder of the project without files has not been sent
            os.makedirs(cwd, 0o700, exist_ok=True)
        return [resolve(word, places) for word in order.argv], env, cwd

    def _execute(self, order: wire.Execute) -> None:
        places = dict(self.config["places"], agent=PROGRAM, python=sys.executable)
        if symbol("agent") in order.argv:
            program()
        order = order._replace(argv=tuple(resolve(word, places) for word in order.argv))
        cwd = resolve(order.cwd, self.config["places"]) if order.cwd else self.config["cwd"]
        self._streams.execute(order, dict(self.environment, **resolved(order.env, self.config)), cwd)

    def _watch(self, order: wire.Watch) -> None:
        self._watched_ports.add(order.port)

    def _ask_stacks(self, order: wire.AskStacks) -> None:
        asked = ask_for_stacks(self._loop, self._scratch, self._stacks_came)
        told = {self._reports.owner_of(pid) for pid in asked}  # also of those that have left their rank's tree
        for child in self._reports.reporters:
            if child not in told:
                self._stacks_came(*without_stacks(child.pid))

    def _release(self, order: wire.Release) -> None:
        """Let a process end that has returned and serves others (``runner.py``)."""
        with contextlib.suppress(OSError):  # it has been ended meanwhile
            self._reports.release()

    def _stop(self, order: wire.Stop) -> None:
        self.expected = None  # a rank that is asked for from here on is one of the next attempt
        for child in list(self.processes.running.values()):
            if child is not self._launcher.child:
                self.processes.end(child, order.grace, "stopped")

    # Events of the worker

    def start_process(
        self,
        argv: "list[str]",
        env: "dict[str, str]",
        cwd: "str | None",
        rank: "int | None",
        on_exit: "Callable[[Child], object]",
    ) -> Child:
        """Start a process of the worker, and report it to the session. Raises OSError where it cannot be started."""
        environment = dict(self.environment, **env)
        output = self._rank_logs.open(rank)
        folder = cwd or self.config["cwd"]
        become = self._warm_starts.become(argv, environment, folder)
        child = self.processes.start(argv, environment, folder, rank, on_exit, output, become=become)
        self._reports.expect_from(child)
        self._link.send(wire.Started(child.pid, rank))
        return child

    def process_ended(self, child: Child) -> None:
        """Report the end of a process to the session, and stop if the agent has nothing left to do."""
        self._rank_logs.close(child.rank)
        self._reports.forget(child)  # its reports, and its output, are sent before its end
        self._send_output(OUTPUT_AT_END)
        if self._memory_kills and self._memory_kills.has_more() and child.signal == signal.SIGKILL:
            child.reason, child.memory = child.reason or "memory", child.memory or self._memory_kills.peak()
        is_told = self._has_notice or self._loop.has_come(signal.SIGTERM)
        if is_told and child.exit_code != 0:  # the system has sent SIGTERM to agent and processes alike
            child.reason = child.reason or "stopped"
        if (is_told or child.signal == signal.SIGTERM) and not child.is_asked:
            self._process_told_at = child.ended_at
        facts = {
            name: getattr(child, name) for name in ("pid", "rank", "exit_code", "signal", "reason", "memory", "late")
        }
        self._pace.flush()
        self._link.send(wire.Exited(monotonic=child.ended_at, **facts))
        if self._outcome["status"] != "failed":
            self._outcome = outcome_of(child)
        if self.config["process"]:
            self._loop.stop()
        self._stop_if_all_left()

    def _process_suspended(self, child: Child, is_suspended: bool) -> None:
        if child is not self._launcher.child:
            self._link.send(wire.Suspended(child.rank, is_suspended))

    def _stop_if_all_left(self) -> None:
        if self._is_told_to_end and not self.processes.running:
            self._loop.stop()

    def send_to_session(self, message: "tuple[Any, ...]") -> None:
        """Send a message about ranks of a launcher to the session (see :mod:`~muster.agent.wire`)."""
        self._link.send(message)

    def remark(self, text: str) -> None:
        """Write a remark to the worker's log alone."""
        self._log.write(text)

    def complain(self, text: str) -> None:
        """Report an error to the session, which counts the worker as lost for it, and write it to the log."""
        self._log.write(text)
        if self.environment:  # before the hello the session takes no message, and learns of it from the platform
            self._link.send(wire.Error(text))

    def _sshd_failed(self, what: str) -> None:
        if self._is_leaving:  # sshd was told to end, as this agent was
            return
        never_listened = not self.environment
        if never_listened and not self.config["ssh"]["is_required"]:
            self._do_without_sshd(what)
            self._ready(self.config["address"])
            return
        self.complain(what)
        if never_listened:
            self._outcome = {"status": "failed", "reason": what}
            self._leave()

    def _stacks_came(self, pids: "list[int]", text: str) -> None:
        owner = self._reports.owner_of(pids[0])
        rank = owner.rank if owner else None
        self._link.send(wire.ProcessStacks(text, rank, any(map(is_stopped, pids)), connections_of(pids)))

    def _report_usage(self, cpu: float, memory: int) -> None:
        if self._link.takes_output:
            gpus = (self._gpus.busy, self._gpus.memory) if self._gpus else ()
            self._pace.usage(wire.Usage(cpu, memory, *gpus))

    def _too_much_memory(self, used: int) -> None:
        for child in list(self.processes.running.values()):
            child.reason, child.memory = "memory", used
            self.processes.kill(child)

    def _tick(self) -> None:
        if self.processes.running:
            self.processes.kill_leftovers()
            self._check_listeners()
        self._pace.tick()
        self._send_output()
        self._keep_logs_small()

    def _keep_logs_small(self) -> None:
        """Rotate full logs, and check again soon if one of them might outgrow its cap before the next tick."""
        self._log.rotate_when_full(wait_for_reader=self._link.is_open)
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if self._log.is_filling or self._rank_logs.are_filling():
            self._next_look = self._loop.call_later(LOG_TICK, self._look_at_logs)

    def _look_at_logs(self) -> None:
        self._rank_logs.copy()
        self._keep_logs_small()

    def _send_output(self, most: int = OUTPUT_AT_ONCE) -> None:
        self._rank_logs.copy()
        if self._link.takes_output:
            self._launcher.tell()
        for _ in range(min(self._log.unread(), most)):  # endless output must not hold up anything else
            text = self._log.read() if self._link.takes_output else ""
            if text:
                self._link.send(wire.Output(text))

    def _check_listeners(self) -> None:
        if not self._watched_ports:
            return
        pids = linux.descendants(os.getpid(), linux.snapshot())
        for port in sorted(self._watched_ports):
            if linux.is_listening(port, pids):
                self._watched_ports.discard(port)
                self._link.send(wire.Listening(port))

    def _report(self, report: "tuple[Any, ...]") -> None:
        """Pass a report of a process on to the session."""
        if not self._link.takes_reports:
            return
        if isinstance(report, wire.Progress):
            self._pace.progress(report)
        elif isinstance(report, wire.Raised) and self._is_told_to_end:
            pass  # a script may raise an exception because it is told to end
        elif isinstance(report, wire.Raised) or self._pace.has_room():
            self._pace.flush()
            self._link.send(report)

    # Leaving

    @property
    def _is_told_to_end(self) -> bool:
        return self._is_leaving or self._has_notice

    def _told_to_end(self) -> None:
        """Handle SIGTERM. If the platform is about to take the worker away, scripts get time to save a checkpoint."""
        # Only if the session can be told: it has the other workers save as well.
        is_orphaned = os.getppid() != self._parent  # the agent's parent is dead, and the signal is the result of that
        is_at_work = bool(self.processes.running) or time.monotonic() < self._process_told_at + TOGETHER
        is_notice = is_at_work and self._link.is_welcome and not (self._is_leaving or is_orphaned)
        if not is_notice or self._has_notice or notice.is_stopped_by_guard(self._upstream):
            self._leave_politely()
            return
        self._has_notice = True
        self._loop.call_later(NOTICE_SECONDS, self._leave_politely)
        self._link.send(wire.Preempted(NOTICE_SECONDS))
        if self.config.get("news"):  # the platform asks a guard instead, where there is one
            self._send_to_guard(told_to_end_at=time.time())
        self._log.write("this worker is about to be taken away: SIGTERM has come, and scripts are told")
        notice.leave(self._scratch)
        self._stop_if_all_left()

    def _session_lost(self, cause: str) -> None:
        self._leave_politely()  # first, so that an error in the rest keeps no process alive
        self._log.write("the connection to the session is gone: {}".format(cause))

    def _leave_politely(self) -> None:
        """Ask all processes to end, and leave when they have ended or their time of grace is over."""
        if self._is_leaving:  # a second order must not signal the processes twice
            return
        self._is_leaving = True
        self._launcher.stop(wire.StopLauncher(POLITE_GRACE))
        self._stop(wire.Stop(POLITE_GRACE))
        if not self.processes.running:
            self._leave()
        self._loop.call_later(POLITE_GRACE, self._leave)

    def _end(self, order: wire.End) -> None:
        if order.after_output:
            for child in list(self.processes.running.values()):
                self.processes.kill(child)
            self._leave_after_output()
        else:
            self._leave()

    def _leave_after_output(self) -> None:
        """Leave once all output has been sent, which takes long if there is much of it."""
        self._send_output()
        if self._link.has_sent_all and not (self._log.unread() and self._link.is_open):
            self._leave()
        else:
            self._loop.call_later(OUTPUT_SECONDS, self._leave_after_output)

    def _leave(self) -> None:
        if self.processes.running:
            self._outcome = {"status": "stopped"}
        self._loop.stop()

    def _clean_up(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        kill_descendants()
        self._send_output()
        rest = "" if self._log.unread() else self._log.rest()
        if rest and self._link.takes_output:
            self._link.send(wire.Output(rest))
        self._link.close()
        self._files.close()
        for port in self._ports:
            port.close()
        remove_scratch(self._scratch, self.config["session_process"])
        self._send_to_guard(**self._outcome)

    def _send_to_guard(self, **facts: object) -> None:
        with contextlib.suppress(OSError):  # it may be gone
            os.write(self._upstream, frames.encode("worker", **facts))


def import_all() -> None:
    """Import what an agent imports only where it needs it: for a process whose forks all agents are."""
    from . import gpus, ranks, sshd  # noqa: F401


def main(config: "dict[str, Any]", upstream: int) -> "dict[str, object]":
    """Run the agent of the worker that ``config`` describes, until it ends. Return the worker's outcome."""
    try:
        return Agent(config, upstream).run()
    except OSError as error:  # its log cannot be opened, so only the guard can be told
        outcome: "dict[str, object]" = {"status": "failed", "reason": "Its agent failed: {}.".format(error)}
        os.write(upstream, frames.encode("worker", **outcome))
        return outcome
