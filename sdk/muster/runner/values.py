"""The value of a function, written to the file that the session reads."""

import binascii
import contextlib
import json
import os
import sys

from muster.training import progress

from .exceptions import OWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional  # noqa: F401  (type comments)

KINDS = "biufcSUMm"  # of NumPy arrays: numbers, texts, bytes and times
BROUGHT_BY_OTHERS = 2  # in the ``isbuiltin`` of a NumPy dtype
LONGEST_NUMBER = 10000  # bits of an integer that every Python reads from JSON


def place():
    # type: () -> str | None
    """Return the path of this process's value, without its ending; None if nobody wants it.

    It is to be asked for before the function is called, which may change the environment that tells it.
    """
    folder = os.environ.get("MUSTER_RESULTS")
    if not folder:
        return None
    rank = progress.global_rank()
    return os.path.join(folder, os.environ["MUSTER_WORKER"] if rank is None else "rank-{}".format(rank))


def save(value, path):
    # type: (object, str | None) -> None
    """Write a function's value to the file that the session reads, renamed into place so that it is never partial.

    What a fork of the process returns is not written: it would take the place of what the process itself returns.

    The file is synced to the disk before it gets its name, so that it survives a power cut, too: a run may have taken
    days for it. The value None is not worth that wait.

    Numbers, texts, bytes, lists, tuples, dicts and NumPy arrays are written so that reading them runs no code: as JSON,
    or with arrays as ``.npz``. Anything else is pickled.
    """
    if path is None or os.getpid() != OWN:
        return
    arrays = []  # type: list[Any]
    described = None
    try:
        described = json.dumps(_plain(value, arrays))
    except (TypeError, ValueError, RecursionError):
        path += ".pkl"
    else:
        path += ".npz" if arrays else ".json"
    try:
        if described is None:
            _pickle(value, path + ".part")
        else:
            _write(described, arrays, path + ".part")
        if value is not None:
            with open(path + ".part", "rb") as file:
                os.fsync(file.fileno())
        os.replace(path + ".part", path)
    except OSError as error:
        words = "what the function returned cannot be written: {}".format(error.strerror or error)
        raise OSError(error.errno, words, path) from None  # its frames are not the user's
    finally:
        with contextlib.suppress(OSError):  # it has its name, or was never made
            os.unlink(path + ".part")


def _write(described, arrays, path):
    # type: (str, list[Any], str) -> None
    with _opened(path) as file:
        if arrays:
            numpy = sys.modules["numpy"]
            numpy.savez(file, *arrays, value=numpy.array(described))
        else:
            file.write(described.encode("ascii"))


def _opened(path):
    # type: (str) -> Any
    """Return a new file in place of whatever has its name: what that links to belongs to others."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return open(path, "xb")


def _pickle(value, path):
    # type: (object, str) -> None
    import cloudpickle

    with _opened(path) as opened:
        file = _File(opened)
        try:
            cloudpickle.dump(value, file)
        except Exception as error:  # whatever its parts raise when they are pickled
            if error is file.error:
                raise
            what = "what the function returned, of type {}, cannot be sent back".format(type(value).__name__)
            raise TypeError("{}: {}".format(what, error)) from None  # its frames are not the user's


class _File:
    """An open file that keeps its own error, which is told by that from errors of whoever writes into it."""

    def __init__(self, file):
        # type: (Any) -> None
        self._file = file
        self.error = None  # type: Optional[OSError]

    def write(self, data):
        # type: (Any) -> int
        try:
            return self._file.write(data)  # type: ignore[no-any-return]
        except OSError as error:
            self.error = error
            raise


def _plain(value, arrays):
    # type: (Any, list[Any]) -> Any
    """Return a value for JSON: arrays are moved to ``arrays``, and types that JSON lacks become objects that name them.

    Raises TypeError for any other type. That includes subclasses, which would come back as their base class.
    """
    numpy = sys.modules.get("numpy")  # type: Any
    kind = type(value)
    if value is None or kind in (bool, float, str) or (kind is int and value.bit_length() < LONGEST_NUMBER):
        return value
    if kind is list:
        return [_plain(part, arrays) for part in value]
    if kind is tuple:
        return {"tuple": [_plain(part, arrays) for part in value]}
    if kind is dict:
        return {"dict": [[_plain(key, arrays), _plain(part, arrays)] for key, part in value.items()]}
    if kind is bytes:
        return {"bytes": binascii.b2a_base64(value, newline=False).decode("ascii")}
    is_array = numpy is not None and (kind is numpy.ndarray or isinstance(value, numpy.generic))
    if is_array and value.dtype.kind in KINDS and value.dtype.isbuiltin != BROUGHT_BY_OTHERS:
        arrays.append(numpy.asarray(value))
        return {"array" if kind is numpy.ndarray else "scalar": len(arrays) - 1}
    raise TypeError(kind)
