"""Progress of a training script, told to the agent of its worker: one JSON datagram for each report.

A report must never disturb training. It costs microseconds, blocks on nothing, and what the agent cannot take is lost.
Reports that come faster than `MAX_PER_SECOND` are merged into one: for each field the newest value wins. Where no more
come, a thread sends what was held back: a script that hangs is shown at the step at which it hangs.

Standard library and Python 3.6 syntax only (hence `Optional` and the like): any training interpreter imports this, and
waits for it, so that `typing` is left to those who check types.
"""

import atexit
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
RANK_VARIABLES = ("HOROVOD_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MUSTER_RANK")
MAX_PER_SECOND = 5  # of each process: as many as somebody who watches can read; agents and session forward them all
ARGUMENTS = ("step", "epoch", "steps", "epochs", "examples", "bytes_sent")  # of `report`, beside the metrics
NOTICE = "preempted"  # the file in the worker's scratch folder, which its agent makes
LIKENESS = 0.85  # of a metric's name to one of these, from which on it is taken for a slip
SAME_EXAMPLES = 5  # steps with as many of them as the first, which are taken for a slip
MAX_NAMES = 256  # of metrics that are looked at
SECONDS_PER_CHECK = 0.5  # of the thread that sends what was held back, where nothing has followed it
SECONDS_AT_EXIT = 0.5  # the last report may wait this long for room in the agent's queue: nothing trains any more


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
    """Tell the session how far this process has come; outside a Muster run, do nothing.

    In a loop of the script::

        for step, batch in enumerate(batches, start=1):
            loss = train(batch)
            report(step, steps=len(batches), epoch=1, epochs=1, examples=step * len(batch), loss=loss)

    Steps and epochs are counted from 1, or from 0 as `range` does: of a process that has reported step 0 (or epoch 0),
    step 59 of 60 is shown as the sixtieth. So the last one is 100 % either way. Events have them as they are reported.

    Args:
        step: Steps done, in this epoch where there are epochs, in total otherwise.
        epoch: The epoch under way.
        steps: Steps of one epoch where there are epochs, in total otherwise.
        epochs: Epochs in total.
        examples: Training examples that this process has taken since training began.
        bytes_sent: Bytes that this process has sent to the others for training since then.
        metrics: Anything that `float()` takes, such as a TensorFlow eager tensor or a NumPy scalar; NaN and infinity
            are sent by name. A value that `float()` refuses is left out, which the session is told of.

    Nothing is raised; of a name that looks like a misspelt argument the session is told, once. At most
    `MAX_PER_SECOND` reports are sent, but the first and the last of every epoch always are, and so are that of the last
    of `steps` and the last one before the process hangs or ends. Of the one before it hangs, metrics that are on
    another device stay there: asking for them could wait for ever.
    """
    if not os.environ.get(ADDRESS_VARIABLE):
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
    """Return whether a worker of this run is about to be taken away, so that now is the time to save a checkpoint.

    In a loop of the script::

        if preempted():
            save(step)

    The platform has told the agent of some worker to end: others need its machine, or somebody drains it. Every process
    of the run is told, each at some moment of its own: ranks that save together have to agree on one, as
    `muster.training.keras.SaveCheckpoints` does by itself. It looks for a file, which costs microseconds. A script can
    go on afterwards: what the platform takes away is ended by the platform.
    """
    scratch = os.environ.get("MUSTER_SCRATCH")
    return bool(scratch) and os.path.exists(os.path.join(str(scratch), NOTICE))


def warn(text: str) -> None:
    """Say something about this process that whoever trains should know; the session shows it with the run.

    It is not printed, but where there is no session: what the script prints is its own.
    """
    if os.environ.get(ADDRESS_VARIABLE):
        _tell({"kind": "warning", "text": text}, SECONDS_AT_EXIT)
    else:
        sys.stderr.write("muster: this process {}\n".format(text))


def thread_failed(thread: str, kind: str, message: str) -> None:
    """Say that an exception has ended a thread of the script, and nothing else."""
    lines = message.splitlines()
    text = "{}: {}".format(kind, lines[0][:500]) if lines else kind
    _tell(
        {"kind": "warning", "text": "has lost its thread {}: {}".format(thread[:100], text), "is_of_thread": True},
        SECONDS_AT_EXIT,
    )


def watch_stages() -> None:
    """Tell the agent from now on what the main thread is at, until its first step is done."""
    if not os.environ.get(ADDRESS_VARIABLE):
        return
    arguments = (_stages, threading.main_thread().ident)
    watching = threading.Thread(target=stages.watch, args=arguments, name="muster-stages", daemon=True)
    with contextlib.suppress(RuntimeError):  # there is no room for another thread: the script may do without
        watching.start()


def serves() -> None:
    """Expect no first step: this process serves others."""
    _stages.end()


def script_ended() -> None:
    """Note that the script has ended well; warn where it was to train with others and did not."""
    if not _stages.is_over:
        _stages.end()
        _warn_of_apart(stages.ENDED_ALONE)


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
    """Send one message of this process to its agent; wait at most so many seconds for room in its queue."""
    if os.environ.get(ADDRESS_VARIABLE):
        _send_datagram(dict(message, rank=_rank()), seconds)


class Reporter:
    """Merges reports and sends them at a bounded rate; safe to call from several threads.

    Args:
        send: Takes one finished message and how many seconds it may wait for room in the queue.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self, send: "Callable[[Dict[str, Any], float], None]", clock: "Callable[[], float]" = time.monotonic
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
        self._is_held = False  # something waits that nothing has been sent of
        self._is_watched = False  # the thread runs that sends it

    def report(self, counts: "Mapping[str, int]", metrics: "Mapping[str, Any]") -> None:
        """Take one report, and send it unless another one went out just now."""
        self._notice_fork()
        with self._lock:
            epoch = counts.get("epoch", self._epoch)
            if epoch != self._epoch:
                self.flush()  # the last word on the epoch before, which the new one must not overwrite
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
        """Send what is waiting, if anything is; wait at most so many seconds for room in the agent's queue."""
        self._notice_fork()
        with self._lock:
            if self._reported_at is None:
                return
            # Converted here and not in `report`: the value may still be on its way from a GPU, and most are never sent.
            self._tell(self._metrics, seconds)
            self._counts, self._metrics, self._reported_at = {}, {}, None

    def _notice_fork(self) -> None:
        """Begin anew in a fork, which has no thread but its own: what waits is its parent's, as is whoever locks it."""
        if self._pid != os.getpid():
            self._begin()

    def _hold(self) -> None:
        """Have what waits sent a moment later, where nothing follows that it goes with."""
        self._is_held = True
        if not self._is_watched:
            self._is_watched = True
            watching = threading.Thread(target=self._watch, name="muster-report", daemon=True)
            try:
                watching.start()
            except RuntimeError:  # there is no room for another thread, or the interpreter ends
                self._is_watched = False

    def _watch(self) -> None:
        """Send what has been held back for too long, until nothing is."""
        while True:
            time.sleep(SECONDS_PER_CHECK)
            with self._lock:
                if not self._is_held:
                    self._is_watched = False
                    return
                if self._clock() >= self._next_send:
                    self._send_what_is_here()

    def _send_what_is_here(self) -> None:
        """Send what waits, but for metrics that are elsewhere: they may never come, which must not hold up `report`."""
        here = {name: value for name, value in self._metrics.items() if _is_here(value)}
        self._tell(here, 0.0)
        self._metrics = {name: value for name, value in self._metrics.items() if name not in here}
        if not self._metrics:  # else they are sent with their step, once the process goes on
            self._counts, self._reported_at = {}, None

    def _tell(self, metrics: "Mapping[str, Any]", seconds: float) -> None:
        message = {"kind": "progress", "rank": _rank(), "time": self._reported_at}  # type: Dict[str, Any]
        message.update(self._counts)
        numbers = _converted(metrics, _json_number)
        if numbers:
            message["metrics"] = numbers
        self._is_held = False
        self._next_send = self._clock() + 1 / MAX_PER_SECOND
        self._send(message, seconds)


def _is_here(value: "Any") -> bool:
    """Tell whether a value is a number of Python's or NumPy's, which no device has to be asked for."""
    return isinstance(value, (int, float)) or type(value).__module__ == "numpy"


def _is_last(counts: "Mapping[str, int]") -> bool:
    """Tell whether a report is of the last step, counted from 1 or 0, which a script may be silent after for long."""
    return "step" in counts and counts["step"] >= counts.get("steps", float("inf")) - 1


def _converted(values: "Mapping[str, Any]", convert: "Callable[[Any], Any]") -> "Dict[str, Any]":
    """The values that `convert` takes, converted."""
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
    """Warn where the number of examples stays as it is while steps go on: it is of one step, most likely."""
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
    """The value as strict JSON has it: what is not finite is "NaN", "Infinity" or "-Infinity", as `float()` takes."""
    number = float(value)
    return number if math.isfinite(number) else json.dumps(number)


def _rank() -> "Optional[int]":
    """This process's global rank as its launcher put it into the environment; None where there is none."""
    for variable in RANK_VARIABLES:
        value = os.environ.get(variable, "")
        if value.isdecimal():
            return int(value)
    return None


def _send_datagram(message: "Mapping[str, Any]", seconds: float) -> None:
    """Send one message to the agent's socket; drop it where the queue stays full for so long or the agent is gone."""
    try:
        # A socket for each message: a few a second cost nothing, and none is shared with a forked child.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
            agent.settimeout(seconds)
            agent.sendto(json.dumps(message).encode(), os.environ.get(ADDRESS_VARIABLE, ""))
    except OSError:
        pass


_known_names = {}  # type: Dict[str, None]
_warned = {}  # type: Dict[str, str]
_first_examples = {}  # type: Dict[int, int]
_stages = stages.Stages(_tell)
_reporter = Reporter(_send_datagram)
atexit.register(_reporter.flush, SECONDS_AT_EXIT)
