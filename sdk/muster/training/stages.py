"""The stages of a training process up to its first step, reported to its worker's agent as they happen.

The wait for the first step is mostly imports, and the tracing and compiling of that step. A separate thread checks ten
times a second what the main thread is doing, and ends with the first step. Standard library and Python 3.6 syntax.
"""

import atexit
import json
import os
import sys
import threading
import time
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable, Dict, List, Optional, Tuple  # noqa: F401  (type comments)

    Tell = Callable[[Dict[str, Any]], None]

RUNNING = "running the script"
IMPORTING = "importing "  # and the name of a package
BUILDING = "building the first step"
JOINING = "waiting for the other ranks"
TRAINING = "training"
CHECK_SECONDS = 0.1
SLOW_CHECK_SECONDS = 0.5  # after the first minute: the wait may then take an hour
SHORTEST = 0.3  # seconds that a stage must last to be reported
AGAIN_SECONDS = 0.5  # between two reports of the same import
SILENT_SECONDS = 5.0  # after the first step seems to be built: a script that has reported no step by then never will

BUILDERS = (  # a package, and a part of the paths of its files that build steps
    ("tensorflow", "/polymorphic_function/"),
    ("tensorflow", "/eager/def_function.py"),
    ("tensorflow", "/client/session.py"),
    ("torch", "/_dynamo/"),
    ("torch", "/_inductor/"),
    ("jax", "/interpreters/"),
)
JOINERS = (("horovod", "/common/basics.py"),)
HOROVOD = ("horovod.tensorflow.mpi_ops", "horovod.torch.mpi_ops", "horovod.mxnet.mpi_ops")
HOROVODRUN_SIZE = "HOROVOD_SIZE"
SIZES = (HOROVODRUN_SIZE, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # variables of the launchers of ranks that Horovod joins
ALONE = (
    "has begun to train without having called hvd.init(), as did others perhaps: every rank trains a model of its own, "
    "and none learns from the others. What joins them: muster.training.horovod.init(), or hvd.init(), and a "
    "DistributedOptimizer"
)
ENDED_ALONE = (
    "has ended without having called hvd.init(), as did others perhaps: every rank did all of the work by itself. "
    "What joins them: muster.training.horovod.init(), or hvd.init(), and a DistributedOptimizer"
)

NO_STRATEGY = (
    "has not made a tf.distribute.MultiWorkerMirroredStrategy(), as others have not perhaps: every worker trains a "
    "model of its own, and none learns from the others"
)
APART = (
    "trains with Horovod's own Keras integration, which does not average gradients under Keras 3: every rank trains a "
    "model of its own. muster.training.keras takes its place"
)


class Stages:
    """The stages of a process up to its first step.

    Args:
        tell: Function that sends a message to the agent.
        clock: Monotonic time in seconds.
    """

    def __init__(self, tell: "Tell", clock: "Callable[[], float]" = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._stage = ""
        self._since = clock()
        self._candidate = ("", None)  # type: Tuple[str, Optional[FrameType]]
        self._candidate_since = self._since
        self._checked_at = self._since
        self._began = self._since
        self._built_at = None  # type: Optional[float]
        self._told_at = self._since
        self._modules = 0
        self._lock = threading.Lock()
        self.is_over = False

    def record(self, stage: str, call: "Optional[FrameType]" = None) -> None:
        """Record the stage that the process is in now, and the frame of the call that shows it."""
        now = self._clock()
        with self._lock:
            if self.is_over:
                return
            if (stage, call) != self._candidate:
                # The stage began after the last check, which may be long ago: another thread may have held the GIL.
                self._candidate, self._candidate_since = (stage, call), self._checked_at
            self._checked_at = now
            if stage != self._stage and now - self._candidate_since >= SHORTEST:
                self._enter(stage, self._candidate_since)
            if stage == BUILDING:
                self._built_at = None if self._stage != BUILDING else now
            elif self._built_at is not None and now - self._built_at > SILENT_SECONDS:
                self._end()

    def came_further(self, modules: int) -> None:
        """Report the stage again if more modules are loaded by now, so that a long import does not look like a hang."""
        now = self._clock()
        with self._lock:
            if self._stage and modules != self._modules and now - self._told_at >= AGAIN_SECONDS and not self.is_over:
                self._modules, self._told_at = modules, now
                self._tell({"kind": "stage", "stage": self._stage, "seconds": 0.0})

    def first_step(self) -> None:
        """Note that the first step is done."""
        with self._lock:
            if not self.is_over:
                if self._stage:  # without an earlier report the session shows no stages
                    self._enter(TRAINING, self._clock())
                self._end()

    def end(self) -> None:
        """Note that there will be no first step."""
        with self._lock:
            self._end()

    def seconds_to_next_check(self) -> float:
        """Return the seconds to wait before the next check."""
        return CHECK_SECONDS if self._checked_at - self._began < 60 else SLOW_CHECK_SECONDS

    def _end(self) -> None:
        self.is_over = True
        self._candidate = ("", None)  # keeps no frame alive

    def _enter(self, stage: str, since: float) -> None:
        self._tell({"kind": "stage", "stage": stage, "seconds": round(max(since - self._since, 0.0), 3)})
        self._stage, self._since, self._told_at = stage, since, self._clock()


def importing() -> "Optional[str]":
    """Return the package that is being imported, the outermost one outside the script's folder if there is one."""
    found = []
    own = str(sys.path[0]) if sys.path else ""
    for name, module in list(sys.modules.items()):
        if "." in name or not isinstance(module, ModuleType):
            continue
        try:
            spec = object.__getattribute__(module, "__dict__").get("__spec__")  # of a lazy module, without loading it
            if getattr(spec, "_initializing", False):
                found.append((name, str(getattr(spec, "origin", "") or "")))
        except Exception:  # sys.modules may contain any object
            continue
    others = [name for name, origin in found if not own or os.path.dirname(origin).rstrip("/") != own.rstrip("/")]
    return others[0] if others else found[0][0] if found else None


def outermost(frame: "Optional[FrameType]", files: "Tuple[Tuple[str, str], ...]") -> "Optional[FrameType]":
    """Return the outermost frame of a stack whose file matches one of `files`; None if there is none."""
    found = None
    while frame is not None:
        path = frame.f_code.co_filename
        if any(package in path and part in path for package, part in files):
            found = frame
        frame = frame.f_back
    return found


def watch(stages: Stages, thread: int) -> None:
    """Sample the stage of a thread until its first step is done."""
    while not stages.is_over:
        name = importing()
        if name:
            stages.record(IMPORTING + name)
            stages.came_further(len(sys.modules))
        else:
            frame = sys._current_frames().get(thread)
            joins, builds = outermost(frame, JOINERS), outermost(frame, BUILDERS)
            del frame
            if joins is not None and joins.f_code.co_name == "init":
                stages.record(JOINING, joins)
            elif builds is not None:
                stages.record(BUILDING, builds)
            else:
                stages.record(RUNNING)
            del joins, builds
        time.sleep(stages.seconds_to_next_check())


def trains_alone() -> bool:
    """Return whether `horovodrun` started this process as one of several, and it has never initialised Horovod.

    Ranks of MPI, and plain processes, may do without Horovod.
    """
    if _number(HOROVODRUN_SIZE) < 2:
        return False
    modules = [sys.modules.get(name) for name in HOROVOD]
    basics = [getattr(module, "_basics", None) for module in modules if module is not None]
    return not any(_was_initialised(horovod) for horovod in basics)


def trains_apart() -> bool:
    """Return whether this is one of several ranks, and uses Horovod's Keras integration with Keras 3."""
    keras = str(getattr(sys.modules.get("keras"), "__version__", ""))
    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    is_one_of_several = any(_number(name) > 1 for name in SIZES)
    return "horovod._keras" in sys.modules and is_one_of_several and keras.startswith("3.") and not is_legacy


def lacks_strategy() -> bool:
    """Return whether this is one of several workers for a MultiWorkerMirroredStrategy whose script has made none."""
    if not os.environ.get("MUSTER_SERVES"):
        return False
    try:
        workers = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    except (KeyError, TypeError, ValueError):
        return False
    if len(workers) < 2:
        return False
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    return context is None or getattr(context, "_collective_ops_server_def", ()) is None


def _number(name: str) -> int:
    """Return the number of ranks in a launcher's variable; 1 if it has started none."""
    size = os.environ.get(name, "1")
    return int(size) if size.isdecimal() else 1


class _Registered:
    """Collects the functions registered with `atexit`: its `unregister` compares each of them with this object."""

    def __init__(self):
        # type: () -> None
        self.functions = []  # type: List[Any]
        atexit.unregister(self)  # type: ignore[arg-type]

    def __eq__(self, function):
        # type: (object) -> bool
        self.functions.append(function)
        return False

    __hash__ = None  # type: ignore[assignment]


def _was_initialised(horovod: "Any") -> bool:
    """Return whether Horovod is, or has ever been, initialised: `init()` registers its shutdown with `atexit`."""
    try:
        return bool(horovod.is_initialized()) or any(
            getattr(function, "__self__", None) is horovod for function in _Registered().functions
        )
    except Exception:  # a version that does not tell
        return True
