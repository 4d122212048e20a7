"""Progress reports of a training script to its worker's agent: one JSON datagram for each report.

A report must never disturb training: it costs microseconds, and never blocks. Reports that come faster than
`MAX_PER_SECOND` are merged into one: for each field the newest value wins. If no more come, a thread sends what was
held back, so that a script that hangs is shown at the step at which it hangs; and what found the agent's queue full, as
many ranks may fill it at the end of an epoch.

Standard library and Python 3.6 syntax only (hence `Optional` and the like), since any training interpreter imports
this. The script waits for the import, so that `typing` is imported for type checkers only.
"""

import atexit
import collections
import contextlib
import json
import math
import os
import socket
import sys
import threading
import time

from . import stages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Mapping, Optional, SupportsFloat, SupportsInt, Union

ADDRESS_VARIABLE = "MUSTER_REPORT"
MARK_VARIABLE = "MUSTER_PROCESS"  # which of the agent's processes this one is, or descends from
RANK_VARIABLES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MUSTER_RANK")
KEPT_VARIABLES = (ADDRESS_VARIABLE, MARK_VARIABLE, *RANK_VARIABLES, "MUSTER_SCRATCH", "MUSTER_SERVES")
MAX_PER_SECOND = 5  # of each process: no person can read more; agents and session forward them all
ARGUMENTS = ("step", "epoch", "steps", "epochs", "examples", "bytes_sent")  # of `report`, beside the metrics
NOTICE = "preempted"  # the file in the worker's scratch folder, which its agent makes
LIKENESS = 0.85  # similarity of a metric's name to an argument's from which on it counts as a misspelling
SAME_EXAMPLES = 5  # steps after the first with the same number of examples, which then counts as a mistake
MAX_NAMES = 256  # of metrics that are checked
SECONDS_PER_CHECK = 0.5  # interval of the thread that sends what was held back
MOST_WAITING = 20  # messages that wait for room in the agent's queue: the last of each epoch
SECONDS_AT_EXIT = 0.5  # the last report may wait this long for room in the agent's queue: training is over by then


def report(
    step: "Optional[SupportsInt]" = None,
    *,
    epoch: "Optional[SupportsInt]" = None,
    steps: "Optional[SupportsInt]" = None,
    epochs: "Optional[SupportsInt]" = None,
    examples: "Optional[SupportsInt]" = None,
    bytes_sent: "Optional[SupportsInt]" = None,
    **metrics: "SupportsFloat",
) -> None:
    """Report this process's progress to the session; outside a Muster run, do nothing.

    In a loop of the script:

    >>> batches = [[1.0, 2.0], [3.0, 4.0]]
    >>> for step, batch in enumerate(batches, start=1):
    ...     loss = sum(batch)  # the training
    ...     report(step, steps=len(batches), epoch=1, epochs=1, examples=step * len(batch), loss=loss)

    Count steps and epochs from 1, or from 0 as `range` does: once a process has reported step 0 (or epoch 0), its step
    59 of 60 is shown as the sixtieth, so that the last one is 100 % either way. Events contain the numbers as reported.

    Args:
        step: Number of steps done: in this epoch if there are epochs, in total otherwise.
        epoch: Number of the epoch under way.
        steps: Number of steps of one epoch if there are epochs, in total otherwise.
        epochs: Number of epochs in total.
        examples: Number of training examples that this process has taken since training began.
        bytes_sent: Number of bytes that this process has sent to the others for training since then.
        metrics: Anything that `float()` takes, such as a TensorFlow eager tensor or a NumPy scalar; NaN and infinity
            are sent by name. A value that `float()` refuses is left out, with a warning in the session.

    Nothing is raised; for a name that looks like a misspelt argument the session shows a warning, once. At most
    `MAX_PER_SECOND` reports are sent per second. Always sent are the first and the last report of every epoch, the
    report of the last of `steps`, and the last one before the process hangs or ends. The one before a hang omits
    metrics that are on another device, as fetching them could block for ever.
    """
    if not variable(ADDRESS_VARIABLE):
        return
    counts = {
        "step": step,
        "epoch": epoch,
        "steps": steps,
        "epochs": epochs,
        "examples": examples,
        "bytes_sent": bytes_sent,
    }
    if step is not None and not _stages.is_over:
        _first_step()
    _check_names(metrics)
    numbers = _converted(counts, int)
    _check_examples(numbers)
    _reporter.report(numbers, metrics)


def preempted() -> bool:
    """Return whether the platform is about to end a worker of this run, so that now is the time to save a checkpoint.

    In a loop of the script:

    >>> if preempted():
    ...     print("saving")  # a checkpoint

    The platform has told some worker's agent to end: other jobs need its machine, or somebody is draining it. All
    processes of the run are notified, but not at the same moment: ranks that save together have to agree on a step, as
    `muster.training.keras.SaveCheckpoints` does by itself. The call looks for a file, which costs microseconds. A
    script can go on afterwards, until the platform ends the worker.
    """
    scratch = variable("MUSTER_SCRATCH")
    return bool(scratch) and os.path.exists(os.path.join(scratch, NOTICE))


def warn(text: str) -> None:
    """Warn the user about this process; the session shows the warning with the run.

    Without a session the warning is printed to standard error; otherwise it stays out of the script's output.
    """
    if variable(ADDRESS_VARIABLE):
        _tell({"kind": "warning", "text": text}, SECONDS_AT_EXIT)
    else:
        sys.stderr.write("muster: this process {}\n".format(text))


def thread_failed(thread: str, kind: str, message: str) -> None:
    """Warn that an exception has ended a thread of the script, but not the script."""
    _part_failed("thread {}".format(thread[:100]), kind, message)


def fork_failed(kind: str, message: str) -> None:
    """Warn that an exception has ended this process, a fork of the script's, but not the script."""
    _part_failed("fork, process {}".format(os.getpid()), kind, message)


def _part_failed(part: str, kind: str, message: str) -> None:
    lines = message.splitlines()
    text = "{}: {}".format(kind, lines[0][:500]) if lines else kind
    _tell({"kind": "warning", "text": "has lost its {}: {}".format(part, text), "is_of_thread": True}, SECONDS_AT_EXIT)


def keep_variables() -> None:
    """Keep the variables by which this process is known to its agent: the script may clear its environment."""
    _kept.clear()
    _kept.update((name, os.environ[name]) for name in KEPT_VARIABLES if name in os.environ)


def variable(name: str) -> str:
    """Return a variable that Muster or a launcher has set, also where the script has removed it; empty without one."""
    return os.environ.get(name) or _kept.get(name, "")


def watch_stages() -> None:
    """Start a thread that reports the main thread's stages to the agent, until its first step is done."""
    if not variable(ADDRESS_VARIABLE):
        return
    arguments = (_stages, threading.main_thread().ident)
    watching = threading.Thread(target=stages.watch, args=arguments, name="muster-stages", daemon=True)
    with contextlib.suppress(RuntimeError):  # no more threads can be started: the script works without this one
        watching.start()


def serves() -> None:
    """Note that this process is a server, which has no first step."""
    _stages.end()


def script_ended() -> None:
    """Note that the script has ended well; warn if it should have trained with others and did not."""
    if not _stages.is_over:
        _stages.end()
        _warn_of_apart(stages.ENDED_ALONE)


def send_last_report() -> None:
    """Send the last report, as the process is about to end without its exit functions."""
    _reporter.flush_at_once()


def _first_step() -> None:
    _stages.first_step()
    _warn_of_apart(stages.ALONE)


def _warn_of_apart(alone: str) -> None:
    if stages.trains_alone():
        warn(alone)
    elif stages.trains_apart():
        warn(stages.APART)
    elif stages.lacks_strategy():
        warn(stages.NO_STRATEGY)


def _tell(message: "Mapping[str, Any]", seconds: float = 0.0) -> None:
    """Send one message of this process to its agent; wait at most `seconds` for room in the agent's queue."""
    if variable(ADDRESS_VARIABLE):
        _send_datagram(dict(message, rank=global_rank()), seconds)


class Reporter:
    """Merges reports and sends them at a bounded rate; safe to call from several threads.

    Args:
        send: Function of a finished message, and of the seconds that it may wait for room in the agent's queue; returns
            whether there was room.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self, send: "Callable[[Dict[str, Any], float], bool]", clock: "Callable[[], float]" = time.monotonic
    ) -> None:
        self._send = send
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # re-entrant, because a signal handler may report in the middle of a report
        self._counts = {}  # type: Dict[str, int]
        self._metrics = {}  # type: Dict[str, Any]
        self._reported_at = None  # type: Optional[float]
        self._epoch = None  # type: Optional[int]
        self._next_send = float("-inf")
        self._is_held = False  # a report is held back, of which nothing has been sent
        self._waiting = collections.deque(maxlen=MOST_WAITING)  # type: collections.deque[Dict[str, Any]]
        self._is_watched = False  # the thread that sends them is running

    def report(self, counts: "Mapping[str, int]", metrics: "Mapping[str, Any]") -> None:
        """Take one report, and send it unless another one went out just now."""
        self._notice_fork()
        with self._lock:
            epoch = counts.get("epoch", self._epoch)
            if epoch != self._epoch:
                self.flush()  # the last report of the previous epoch, which the new one must not overwrite
                self._epoch = epoch
                self._next_send = float("-inf")
            self._counts.update(counts)
            self._metrics.update(metrics)
            self._reported_at = time.time()
            if self._clock() >= self._next_send or _is_last(counts):
                self.flush()
            else:
                self._hold()

    def flush(self, seconds: float = 0.0) -> None:
        """Send the waiting report, if there is one; wait at most `seconds` for room in the agent's queue."""
        self._notice_fork()
        with self._lock:
            if self._reported_at is None:
                self._send_waiting(seconds)
                return
            # Converted here and not in `report`: the value may still be on its way from a GPU, and most are never sent.
            self._tell(self._metrics, seconds)
            self._counts, self._metrics, self._reported_at = {}, {}, None

    def flush_at_once(self) -> None:
        """Send the waiting report, without waiting for ever for a thread that is stuck in sending it."""
        self._notice_fork()
        if self._lock.acquire(timeout=SECONDS_AT_EXIT):
            try:
                if self._reported_at is not None:
                    self._send_what_is_here()
                self._send_waiting(SECONDS_AT_EXIT)
            finally:
                self._lock.release()

    def _notice_fork(self) -> None:
        """Begin anew in a forked child: the waiting report, and any thread that holds the lock, are the parent's."""
        if self._pid != os.getpid():
            self._begin()

    def _hold(self) -> None:
        """Have the waiting report sent a moment later, unless it is merged into a later one before that."""
        self._is_held = True
        self._watch_soon()

    def _watch_soon(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            watching = threading.Thread(target=self._watch, name="muster-report", daemon=True)
            try:
                watching.start()
            except RuntimeError:  # no more threads can be started, or the interpreter is shutting down
                self._is_watched = False

    def _watch(self) -> None:
        """Send reports that have been held back for too long, or found no room, until there are none."""
        while True:
            time.sleep(SECONDS_PER_CHECK)
            with self._lock:
                if not (self._is_held or self._waiting):
                    self._is_watched = False
                    return
                if self._is_held and self._clock() >= self._next_send:
                    self._send_what_is_here()
                self._send_waiting(0.0)

    def _send_what_is_here(self) -> None:
        """Send the waiting report without metrics on other devices: fetching them could block `report` for ever.

        Those metrics are sent with a later report.
        """
        here = {name: value for name, value in self._metrics.items() if _is_here(value)}
        self._tell(here, 0.0)
        self._metrics = {name: value for name, value in self._metrics.items() if name not in here}
        if not self._metrics:  # else they are sent with their step, once the process goes on
            self._counts, self._reported_at = {}, None

    def _tell(self, metrics: "Mapping[str, Any]", seconds: float) -> None:
        message = {"kind": "progress", "rank": global_rank(), "time": self._reported_at}  # type: Dict[str, Any]
        message.update(self._counts)
        numbers = _converted(metrics, _json_number)
        if numbers:
            message["metrics"] = numbers
        self._is_held = False
        self._next_send = self._clock() + 1 / MAX_PER_SECOND
        self._enqueue(message)
        self._send_waiting(seconds)

    def _enqueue(self, message: "Dict[str, Any]") -> None:
        """Have a message wait for room, merged with the one before it if that is of the same epoch."""
        last = self._waiting.pop() if self._waiting else message
        if last.get("epoch") == message.get("epoch"):
            metrics = dict(last.get("metrics", {}), **message.get("metrics", {}))
            message = dict(last, **message)
            if metrics:
                message["metrics"] = metrics
        else:
            self._waiting.append(last)
        self._waiting.append(message)

    def _send_waiting(self, seconds: float) -> None:
        """Send the messages that wait for room, the oldest first, and keep those for which there is none."""
        deadline = time.monotonic() + seconds
        while self._waiting:
            oldest = self._waiting[0]
            if not self._send(oldest, max(0.0, deadline - time.monotonic()) if seconds else 0.0):
                break
            if self._waiting and self._waiting[0] is oldest:  # no signal handler has reported meanwhile
                self._waiting.popleft()
        if self._waiting:
            self._watch_soon()


def _is_here(value: "Any") -> bool:
    """Return whether a value is a Python or NumPy number, which need not be fetched from a device."""
    return isinstance(value, (int, float)) or type(value).__module__ == "numpy"


def _is_last(counts: "Mapping[str, int]") -> bool:
    """Return whether a report is of the last step, counted from 1 or 0; none may follow it for a long time."""
    return "step" in counts and counts["step"] >= counts.get("steps", float("inf")) - 1


def _converted(values: "Mapping[str, Any]", convert: "Callable[[Any], Any]") -> "Dict[str, Any]":
    """Return the converted values, without None and, with a warning, without those that `convert` refuses."""
    converted = {}
    for name, value in values.items():
        if value is None:
            continue
        try:
            converted[name] = convert(value)
        except Exception:  # a foreign tensor type may raise anything, and a report must not end a training run
            kind = type(value).__name__  # the value itself may be secret, or long
            text = "reports {} as a value of type {}, which is no number: it is left out".format(name, kind)
            if isinstance(value, dict):
                text += "; metrics are given by name, as in report({}=...), or report(**metrics)".format(
                    next((key for key in value if isinstance(key, str) and key.isidentifier()), "loss")
                )
            _warn_once(name, text)
    return converted


def _check_names(metrics: "Mapping[str, Any]") -> None:
    """Warn of metrics that look like a misspelt argument of `report`."""
    for name in metrics:
        if name in _known_names:
            continue
        if len(_known_names) >= MAX_NAMES:
            return
        _known_names[name] = None
        import difflib  # most processes never get here with a new name again

        near = difflib.get_close_matches(name.lower(), ARGUMENTS, n=1, cutoff=LIKENESS)
        near = near or [known for known in ARGUMENTS if sorted(known) == sorted(name.lower())]  # such as setp
        if near:
            text = "reports {}=, which is shown as a metric; the argument of report() is {}=".format(name, near[0])
            _warn_once(name, text)


def _check_examples(counts: "Mapping[str, int]") -> None:
    """Warn if the number of examples stays the same from step to step: most likely it is that of one step."""
    step, examples = counts.get("step"), counts.get("examples")
    if step is None or not examples or len(_first_examples) > SAME_EXAMPLES:
        return
    _first_examples[step] = examples
    if len(_first_examples) > SAME_EXAMPLES and set(_first_examples.values()) == {examples}:
        text = "reports examples={0} at every step; it is to be their number since training began, such as step * {0}"
        _warn_once("examples", text.format(examples))


def _warn_once(name: str, text: str) -> None:
    if name not in _warned and len(_warned) < MAX_NAMES:
        _warned[name] = text
        _tell({"kind": "warning", "text": text})


def _json_number(value: "Any") -> "Union[float, str]":
    """Return a value for strict JSON: the float, or "NaN", "Infinity" or "-Infinity", which `float()` reads back."""
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the largest float
        number = math.inf if value > 0 else -math.inf
    return number if math.isfinite(number) else json.dumps(number)


def global_rank() -> "Optional[int]":
    """Return this process's global rank, which its launcher put into the environment; None if there is none."""
    for name in RANK_VARIABLES:
        value = variable(name)
        if value.isdecimal():
            return int(value)
    return None


def _send_datagram(message: "Mapping[str, Any]", seconds: float) -> bool:
    """Send one message to the agent's socket, unless the agent is gone; return False if the queue is full.

    Wait at most `seconds` for room in the queue.
    """
    mark = variable(MARK_VARIABLE)
    marked = dict(message, process=mark) if mark else message
    try:
        # A new socket for each message: a few per second cost nothing, and none is shared with a forked child.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
            agent.settimeout(seconds)
            agent.sendto(json.dumps(marked).encode(), variable(ADDRESS_VARIABLE))
    except (BlockingIOError, socket.timeout):
        return False
    except OSError:
        pass
    return True


_kept = {}  # type: Dict[str, str]
_known_names = {}  # type: Dict[str, None]
_warned = {}  # type: Dict[str, str]
_first_examples = {}  # type: Dict[int, int]
_stages = stages.Stages(_tell)
_reporter = Reporter(_send_datagram)
atexit.register(_reporter.flush, SECONDS_AT_EXIT)
