"""The result of a run."""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

from muster import errors
from muster.errors import JobError, MusterError, RunFailed
from muster.events import NOT_FINITE, metrics_from_json, metrics_to_json
from muster.text.arguments import ArgumentText
from muster.text.cleaning import is_file_name
from muster.text.frozen import frozen
from muster.text.reading import is_finite, open_regular, parse_json, read_regular

SUFFIXES = (".pkl", ".npz", ".json")  # of files with values; if a rank has several, the last suffix wins
NONSENSE = (  # exceptions from reading a file that Muster has not written
    ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, MemoryError,
)  # fmt: skip
OWN = re.compile(r"(rank|chief|worker|ps)-\d+")  # the script may write other files to the same folder


def exit_codes(exits: Mapping[tuple[str, int | None], int]) -> dict[str, int]:
    """Return exit statuses by ``rank 0`` or worker name, given those by worker and rank."""
    ordered = sorted(exits.items(), key=lambda item: (item[0][1] or 0, item[0][0]))
    return {worker if rank is None else f"rank {rank}": code for (worker, rank), code in ordered}


def discard_values(run_dir: Path) -> None:
    """Delete values returned in a failed attempt: the next may write a value to a file with another suffix."""
    for path in (run_dir / "results").glob("*"):
        if path.suffix in SUFFIXES and OWN.fullmatch(path.stem):
            path.unlink(missing_ok=True)


def mark_lost(run_dir: Path, names: Iterable[str]) -> None:
    """Leave an empty file in place of the values of these ranks or workers, which could not be got from their worker.

    Otherwise they would count as None.
    """
    for name in names:
        with contextlib.suppress(OSError):  # not even that has room
            (run_dir / "results" / f"{name}{SUFFIXES[0]}").touch()


@frozen
class Result:
    """The result of a run.

    Attributes:
        status: ``succeeded``, ``failed`` or ``stopped``.
        run_id, run_dir: the id of the run, and the folder that keeps its events, logs and results.
        exit_codes: exit status by ``rank 0`` or worker name; minus the number of a signal that ended it.
        timings: seconds that each phase took; and ``first_step``, from the start to the first step that was reported.
            After restarts, those of the last attempt.
        seconds: time from the call to the end.
        metrics: last values that the script reported, by name.
        error: the error that the run ended with; None if there was none.
    """

    status: str
    run_id: str
    run_dir: Path
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: MusterError | None = field(default=None, repr=False)

    @property
    def values(self) -> list[Any]:
        """Values that the function returned on each rank (or each worker that ran it), in order; empty for scripts.

        None for a rank that has ended without returning, as by ``sys.exit(0)`` or ``os._exit(0)``.

        Numbers, texts, bytes, lists, tuples, dicts and NumPy arrays are read without running any code. Anything else
        has been pickled, and unpickling runs code that the worker has chosen, with your permissions. If you trust
        workers less than this session, set ``MUSTER_UNPICKLE=0``.

        Raises:
            JobError: a value was pickled, and ``MUSTER_UNPICKLE`` is 0; or it could not be got from its worker; or
                Muster has not written the file.
        """
        folder = self.run_dir / "results"
        found = {
            path.stem: path for suffix in SUFFIXES for path in folder.glob(f"*{suffix}") if OWN.fullmatch(path.stem)
        }
        kinds = {_rank_of(name)[0] for name in found}
        ended = {name for name in (key.replace(" ", "-") for key in self.exit_codes) if OWN.fullmatch(name)}
        names = {*found, *(name for name in ended if _rank_of(name)[0] in kinds)}
        return [_value(found[name]) if name in found else None for name in sorted(names, key=_rank_of)]

    @property
    def value(self) -> Any:
        """Value that the function returned on the first rank; None for scripts."""
        return next(iter(self.values), None)

    @classmethod
    def from_dict(cls, recorded: Mapping[str, Any], run_id: str, run_dir: Path) -> Result:
        """Return the result that ``to_dict`` recorded and ``read_record`` has read."""
        worker = recorded.get("worker")
        log = run_dir / "logs" / f"{worker}.log" if worker and is_file_name(str(worker)) else run_dir / "logs"
        return cls(
            status=str(recorded.get("status", "failed")),
            run_id=run_id,
            run_dir=run_dir,
            exit_codes=recorded.get("exit_codes") or {},
            timings=recorded.get("timings") or {},
            seconds=float(recorded.get("seconds") or 0.0),
            metrics=recorded.get("metrics") or {},
            error=recorded_error(recorded, log),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, as in ``result.json``."""
        error = self.error
        return {
            "status": self.status,
            "seconds": self.seconds,
            "exit_codes": dict(self.exit_codes),
            "timings": dict(self.timings),
            "metrics": metrics_to_json(self.metrics),
            "error": type(error).__name__ if error else None,
            "reason": error.message if error else None,
            "advice": error.advice if error else None,
            "advice_parts": error.advice.to_json() if error and isinstance(error.advice, ArgumentText) else None,
            "worker": error.worker if error else None,
            "failure": (dict(error.failure) or None) if error else None,
            "details": error.details if error else None,
        }


def read_record(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid parts of a recorded result: a damaged part must not hide the others, or other runs.

    Metrics become numbers, also those that JSON has by name:

    >>> read_record({"status": "succeeded", "seconds": "long", "metrics": {"loss": "NaN"}, "worker": 7})
    {'status': 'succeeded', 'metrics': {'loss': nan}}
    """
    record = {name: told[name] for name, fits in FITS.items() if name in told and fits(told[name])}
    return {**record, "metrics": metrics_from_json(record["metrics"])} if "metrics" in record else record


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_finite, value.values()))


def _are_metrics(value: object) -> bool:
    return isinstance(value, dict) and all(is_finite(one) or one in NOT_FINITE for one in value.values())


def _is_advice(value: object) -> bool:
    try:
        return isinstance(value, list) and bool(ArgumentText.from_json(value))
    except (TypeError, ValueError, KeyError):
        return False


def _is_failure(value: object) -> bool:
    return value is None or (
        isinstance(value, dict)
        and isinstance(value.get("kind"), str)
        and all(
            isinstance(value.get(key), kinds) for key, kinds in (("worker", (str, NoneType)), ("rank", (int, NoneType)))
        )
    )


def _is_text(value: object) -> bool:
    return isinstance(value, (str, NoneType))


ENDS = ("succeeded", "failed", "stopped", "lost")
FITS: dict[str, Callable[[Any], bool]] = {
    "status": ENDS.__contains__,
    "seconds": is_finite,
    "exit_codes": _are_numbers,
    "timings": _are_numbers,
    "metrics": _are_metrics,
    "advice_parts": _is_advice,
    "failure": _is_failure,
    **dict.fromkeys(("error", "reason", "advice", "worker", "details"), _is_text),
}


def recorded_error(recorded: Mapping[str, Any], log: Path | None = None) -> MusterError | None:
    """Return the error that ``Result.to_dict`` or a controller has written down; None if there was none."""
    name = recorded.get("error")
    if not name:
        return None
    kind = getattr(errors, str(name), RunFailed)
    if not (isinstance(kind, type) and issubclass(kind, MusterError)):
        kind = RunFailed
    parts = recorded.get("advice_parts")
    error = kind(
        str(recorded.get("reason") or name),
        worker=recorded.get("worker"),
        log=log,
        advice=ArgumentText.from_json(parts) if isinstance(parts, list) else recorded.get("advice"),
        details=recorded.get("details"),
    )
    error.failure = recorded.get("failure") or {}
    if isinstance(error, RunFailed):
        error.rank = error.failure.get("rank")
    return error


def _value(path: Path) -> Any:
    """Return one value, as ``runner/values.py`` wrote it; a malicious worker may have written anything else."""
    if not read_regular(path, 1):  # as ``mark_lost`` leaves it
        raise JobError(
            f"What {path.stem} returned could not be got from its worker.",
            worker=path.stem,
            advice=f"muster explain {path.parent.parent.name}: it says why",
        )
    if path.suffix in (".json", ".npz"):
        try:
            return _read_plain(path)
        except NONSENSE as error:
            why = str(error).partition("\n")[0][:200] or type(error).__name__
            raise JobError(
                f"What {path.stem} returned cannot be read: {why}.",
                worker=path.stem,
                advice=f"look at {path}: whatever the worker runs can write there",
            ) from error
    if os.environ.get("MUSTER_UNPICKLE") == "0":
        raise JobError(
            f"What {path.stem} returned is in {path}, pickled: reading it would run code that the worker has chosen.",
            advice="return numbers, texts, lists, dicts and NumPy arrays, or unset MUSTER_UNPICKLE",
        )
    import pickle

    return pickle.loads(read_regular(path))


def _read_plain(path: Path) -> Any:
    """Return a value that consists of plain data. It takes at most a few times as much memory as its file has bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            raise ValueError(f"it has {size} bytes, more than this machine has memory")
        if path.suffix == ".json":
            return _restored(parse_json(file.read()), {})
        return _read_arrays(file, size)


def _read_arrays(file: BinaryIO, size: int) -> Any:
    """Return a value with arrays in it, from a file of ``size`` bytes."""
    import zipfile

    import numpy

    try:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts) or sum(p.file_size for p in parts) > size:
            raise ValueError("its arrays are larger than the file that they are in")
        file.seek(0)
        with numpy.load(file, allow_pickle=False) as arrays:
            described = parse_json(str(arrays["value"]))
            return _restored(described, {name: arrays[name] for name in arrays.files if name != "value"})
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from error


def _restored(described: Any, arrays: dict[str, Any]) -> Any:
    """Return the value that ``_plain`` of ``runner/values.py`` described, in which each array occurs once."""
    if isinstance(described, list):
        return [_restored(part, arrays) for part in described]
    if not isinstance(described, dict):
        return described
    ((kind, content),) = described.items()
    if kind == "tuple":
        return tuple(_restored(part, arrays) for part in content)
    if kind == "dict":
        return {_restored(key, arrays): _restored(part, arrays) for key, part in content}
    if kind == "bytes":
        return base64.b64decode(content)
    array = arrays.pop(f"arr_{content}")
    return array if kind == "array" else array[()]


def _rank_of(name: str) -> tuple[str, int]:
    """Return a sort key by which ``rank-10`` comes after ``rank-9``."""
    role, _, number = name.rpartition("-")
    return role, int(number) if number.isdecimal() else 0
