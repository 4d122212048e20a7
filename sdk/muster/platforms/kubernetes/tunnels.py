"""The session's side of tunnels to agents that cannot dial it: a stream through the cluster's exec for each.

One thread serves all tunnels. The other end, in the pod, is ``muster/agent/pod_tunnel.py``, which documents the format.
A broken stream is opened again as long as the pod runs, and its agent dials again until its lease has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from muster.agent.pod_tunnel import BEAT, BEAT_SECONDS, END, HERE, LARGEST, PATIENCE, ROOM, SILENCE, Frames, frame
from muster.errors import MusterError
from muster.job import WorkerSpec
from muster.platforms.base import Relay
from muster.platforms.kubernetes import causes, exec_stream
from muster.platforms.kubernetes.client import ApiRefused
from muster.platforms.kubernetes.exec_stream import ExecStream
from muster.platforms.kubernetes.pods import pod_name

logger = logging.getLogger("muster")

AT_ONCE = 8  # streams that are opened at the same time
TURN_SECONDS = 0.1  # between two checks of what is due
DIALS_SECONDS = 5.0  # in which a pod's agent may reach the session by dialling, before a tunnel is opened
PAUSES = (0.1, 0.3, 0.6, 1.0, 2.0)  # seconds until a stream is opened again; the last one repeats

Opener = Callable[[str], ExecStream]  # given a pod's name; raises what ``open_exec`` raises


class Tunnels(Relay):
    """The relay of one pool's agents: tunnels through a cluster's exec for those that cannot dial the session.

    Args:
        open_stream: given the name of a pod, starts the program at the other end there.
        session: host and port that the session listens on.
        always: whether all agents need a tunnel; else it is for those that do not reach the session within seconds.
    """

    def __init__(self, open_stream: Opener, session: tuple[str, int], *, always: bool) -> None:
        self._open_stream = open_stream
        self._session = session
        self._always = always
        self._lock = threading.Lock()
        self._pods: dict[str, _Pod] = {}
        self._is_closed = False
        self._opened: queue.SimpleQueue[tuple[_Pod, ExecStream | None]] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._openers = ThreadPoolExecutor(AT_ONCE, "muster-exec")
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def addresses_for(self, specs: Sequence[WorkerSpec]) -> list[tuple[str, int]]:
        """Return the session's address for each worker, or where all use tunnels, that of the tunnel in the pod."""
        with self._lock:
            self._pods.update((pod_name(spec), _Pod(pod_name(spec), spec.name)) for spec in specs)
        return [(HERE, self._session[1]) if self._always else self._session] * len(specs)

    def has(self, pod: str) -> bool:
        """Return whether this relay has a pod's agent, which may come through a tunnel."""
        return pod in self._pods

    def connected(self, worker: str) -> None:
        """Note that a worker's agent has reached the session."""
        with self._lock:
            for pod in self._pods.values():
                if pod.worker == worker:
                    pod.has_come = True

    def refusal(self, pod: str) -> ApiRefused | None:
        """Return the cluster's refusal of a tunnel that a pod needs; None where there is none.

        An agent that may be able to dial the session gets as long for that as its pod waits for a tunnel, as dialling
        may take long on a busy machine.
        """
        known = self._pods.get(pod)
        if known is None or known.refusal is None or self._always:
            return known.refusal if known is not None else None
        if known.runs_since is None or known.has_come:
            return None
        is_late = time.monotonic() - known.runs_since > PATIENCE
        return known.refusal if is_late or not known.is_running else None  # it may have ended at its own time limit

    def update(self, seen: Mapping[str, Mapping[str, Any]]) -> None:
        """Update the states of pods, by name, and start to open streams to running ones that need one."""
        now = time.monotonic()
        with self._lock:
            for name, pod in self._pods.items():
                found = seen.get(name)
                is_there = found is not None and not found["metadata"].get("deletionTimestamp")
                pod.is_running = is_there and causes.running_since(found or {}) is not None
                if pod.is_running and pod.runs_since is None:
                    pod.runs_since = now
            has_work = any(pod.is_running and not pod.is_busy for pod in self._pods.values())
        if has_work and self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._run, name="muster-tunnels", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End all tunnels."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._process != os.getpid():  # a forked child's copy
            return
        self._wake()
        self._openers.shutdown(wait=False, cancel_futures=True)
        if self._thread is not None:
            self._thread.join(2 * BEAT_SECONDS)
        else:
            self._end_all()
        self._waker.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._tend()
                for key, events in self._selector.select(TURN_SECONDS):
                    if key.data is None:
                        self._admit()
                    elif not key.data.is_over:
                        key.data.serve(key.fileobj, events)
        finally:
            self._end_all()

    def _end_all(self) -> None:
        for pod in self._pods.values():
            if pod.tunnel is not None:
                pod.tunnel.end()
        self._admit(is_late=True)
        self._selector.close()
        self._woken.close()

    def _tend(self) -> None:
        """Open the streams that are due, send heartbeats, and drop broken streams."""
        now = time.monotonic()
        with self._lock:
            pods = list(self._pods.values())
        needs_all = self._always or any(pod.was_carried for pod in pods)
        for pod in pods:
            if pod.tunnel is not None:
                pod.tunnel.beat(now)
                if pod.tunnel.is_over:
                    pod.ended(now)
            if pod.is_due(now, needs_all):
                pod.is_busy = True
                with contextlib.suppress(RuntimeError):  # closed meanwhile
                    self._openers.submit(self._open, pod)

    def _open(self, pod: _Pod) -> None:
        """Open a pod's stream, on a thread of the openers."""
        stream = None
        try:
            stream = self._open_stream(pod.name)
        except ApiRefused as error:
            if error.code == 403:
                pod.refusal = error
            elif error.code == 404:
                pod.is_running = False
            pod.trouble = str(error)
        except MusterError as error:
            pod.trouble = str(error)
        except Exception as error:  # from a library; the stream is opened again, as after other errors
            pod.trouble = repr(error)
        with self._lock:  # nothing would close a stream that is put into the queue after ``close``
            if not self._is_closed:
                self._opened.put((pod, stream))
                stream = None
        if stream is not None:
            stream.close()
        self._wake()

    def _admit(self, *, is_late: bool = False) -> None:
        """Take over the streams that have been opened."""
        with contextlib.suppress(OSError):
            self._woken.recv(1 << 10)
        with contextlib.suppress(queue.Empty):
            while True:
                pod, stream = self._opened.get_nowait()
                if stream is None:
                    pod.ended(time.monotonic())
                elif is_late:
                    stream.close()
                else:
                    pod.tunnel = _Tunnel(self._selector, stream, self._session, pod)


class _Pod:
    """The known state of a pod, and its tunnel."""

    def __init__(self, name: str, worker: str) -> None:
        self.name = name
        self.worker = worker
        self.has_come = False  # its agent has reached the session, by any route
        self.was_carried = False  # its agent has reached the session through a tunnel
        self.is_running = False
        self.runs_since: float | None = None
        self.is_busy = False  # a stream is being opened, or is open
        self.tunnel: _Tunnel | None = None
        self.refusal: ApiRefused | None = None
        self.trouble = ""
        self._tries = 0
        self._due_at = 0.0

    def is_due(self, now: float, needs_all: bool) -> bool:
        """Return whether the pod's stream is to be opened now."""
        if not self.is_running or self.is_busy or self.refusal is not None or now < self._due_at:
            return False
        if self.was_carried:
            return True
        return not self.has_come and (needs_all or (self.runs_since or now) + DIALS_SECONDS <= now)

    def ended(self, now: float) -> None:
        """Note that the pod's stream has ended, or could not be opened."""
        if self.tunnel is not None and self.tunnel.has_carried:
            self._tries = 0
        if self.tunnel is not None and self.tunnel.trouble:
            self.trouble = self.tunnel.trouble
        if self.trouble:
            logger.debug("the stream to the pod %s has ended: %s", self.name, self.trouble)
        self.tunnel = None
        self.is_busy = False
        self._due_at = now + PAUSES[min(self._tries, len(PAUSES) - 1)]
        self._tries += 1


class _Tunnel:
    """One stream, and the connection to the session that it carries."""

    def __init__(
        self, selector: selectors.BaseSelector, stream: ExecStream, session: tuple[str, int], pod: _Pod
    ) -> None:
        self.is_over = False
        self.has_carried = False
        self.trouble = ""
        self._selector = selector
        self._stream = stream
        self._address = session
        self._pod = pod
        self._session: socket.socket | None = None
        self._frames = Frames()
        self._to_session = bytearray()
        self._watched: dict[Any, int] = {}
        self._heard_at = self._sent_at = time.monotonic()
        self._stream.send(BEAT)
        self._turn(self._stream.transmit)

    def serve(self, side: Any, events: int) -> None:
        """Read from and write to one side, the stream or the session, as it is ready."""
        if side is self._stream:
            if events & selectors.EVENT_WRITE:
                self._turn(self._stream.transmit)
            if events & selectors.EVENT_READ and not self.is_over:
                self._turn(self._hear)
        else:
            if events & selectors.EVENT_WRITE:
                self._turn(self._write_session)
            if events & selectors.EVENT_READ and not self.is_over:
                self._turn(self._read_session)

    def beat(self, now: float) -> None:
        """Send a heartbeat if nothing else was sent, and end the tunnel if nothing was received for too long."""
        if self.is_over:
            return
        if len(self._to_session) >= ROOM:
            self._heard_at = now  # the stream is not being read, so its silence means nothing
        elif now - self._heard_at > SILENCE:
            self.trouble = f"nothing has come through it for {SILENCE:g} s"
            self.end()
            return
        if now - self._sent_at >= BEAT_SECONDS and not self._stream.unsent:
            self._sent_at = now
            self._stream.send(BEAT)
            self._turn(self._stream.transmit)

    def end(self) -> None:
        """Close the stream and the connection to the session."""
        if self.is_over:
            return
        self.is_over = True
        for side in self._watched:
            self._selector.unregister(side)
        self._watched.clear()
        if self._session is not None:
            with contextlib.suppress(OSError):
                self._stream.send(END)
                self._stream.transmit()
            self._session.close()
        self._stream.close()

    def _turn(self, step: Callable[[], None]) -> None:
        """Run a step, and then select the events that are waited for next."""
        try:
            step()
        except (OSError, ValueError) as error:
            self.trouble = self.trouble or str(error)
            self.end()
            return
        if not self.is_over:
            self._watch(self._stream, len(self._to_session) < ROOM, bool(self._stream.unsent))
            if self._session is not None:
                self._watch(self._session, len(self._stream.unsent) < ROOM, bool(self._to_session))

    def _watch(self, side: Any, reads: bool, writes: bool) -> None:
        wanted = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        before = self._watched.get(side, 0)
        if wanted == before:
            return
        if not before:
            self._selector.register(side, wanted, self)
        elif wanted:
            self._selector.modify(side, wanted, self)
        else:
            self._selector.unregister(side)
        self._watched[side] = wanted
        if not wanted:
            del self._watched[side]

    def _hear(self) -> None:
        """Read from the pod, and pass its data on to the session."""
        for channel, data in self._stream.receive():
            self._heard_at = time.monotonic()
            if channel == exec_stream.OUTPUT:
                self._to_session += self._frames.feed(data)
            elif channel == exec_stream.TROUBLE:
                self.trouble = (self.trouble + data.decode("utf-8", "replace"))[:500]
            elif channel == exec_stream.OUTCOME:
                self.trouble = self.trouble or exec_stream.outcome(data)
                self._frames.has_ended = True
        if self._to_session and self._session is None:
            self._pod.was_carried = self.has_carried = True
            self._session = socket.create_connection(self._address, BEAT_SECONDS)
            self._session.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._session.setblocking(False)
        if self._to_session:
            self._write_session()
        if self._frames.has_ended or not self._stream.is_open:
            if self._session is not None and self._to_session:
                self._session.settimeout(BEAT_SECONDS)
                self._session.sendall(self._to_session)
            self.end()

    def _write_session(self) -> None:
        assert self._session is not None
        with contextlib.suppress(BlockingIOError):
            while self._to_session:
                del self._to_session[: self._session.send(self._to_session[:ROOM])]

    def _read_session(self) -> None:
        assert self._session is not None
        data = self._session.recv(LARGEST)
        if not data:
            self.end()
            return
        self._sent_at = time.monotonic()
        self._stream.send(frame(data))
        self._stream.transmit()


def command_of(python: str, home: str) -> Sequence[str]:
    """Return the command of the program at the other end, in a pod."""
    return [python, "-I", "-S", f"{home}/agent/pod_tunnel.py", f"{home}/tunnel"]
