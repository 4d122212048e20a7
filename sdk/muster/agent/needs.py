"""Checks of a worker's interpreter, packages and GPUs, where the session cannot check them itself."""

import json
import subprocess

from .hardware import parse_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OLDEST = [3, 6]
PROBE_SECONDS = 60  # which a start of Python from a cold disk may take
PROBE = """
import importlib.util, json, sys
def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
print(json.dumps([list(sys.version_info[:3]), [name for name in sys.argv[1:] if not is_there(name)]]))
"""


def lacking_gpus(wanted: int, environ: "dict[str, str]") -> str:
    """Return, in words, how many GPUs this worker sees, if fewer than ``wanted``; empty where it sees enough.

    Of a GPU that is partitioned (MIG), each part that the worker sees counts as one, as where GPUs are given out.
    Some backends accept a request for GPUs, and start a worker without them.
    """
    try:
        listing = subprocess.check_output(["nvidia-smi", "-L"], timeout=PROBE_SECONDS, env=environ)
        seen = len(parse_gpus(listing.decode("utf-8", "replace")))
    except (OSError, subprocess.SubprocessError):
        seen = 0
    if seen >= wanted:
        return ""
    gpus = "1 GPU" if wanted == 1 else "{} GPUs".format(wanted)
    return "It was to have {} and sees {} (as nvidia-smi -L lists them).".format(gpus, seen)


def what_lacks(needs: "dict[str, Any]", environ: "dict[str, str]") -> str:
    """Return, in words, which of its script's needs this worker does not meet; empty where it meets them all.

    Args:
        needs: ``python``, path or name of the interpreter; ``packages`` that it must have; and ``version``, its
            required version (major and minor), or None.
        environ: the worker's environment.
    """
    python = needs["python"]
    try:
        answer = subprocess.check_output(
            [python, "-c", PROBE] + list(needs["packages"]),
            stderr=subprocess.STDOUT,
            timeout=PROBE_SECONDS,
            env=environ,
        )
        version, missing = json.loads(answer.decode("utf-8", "replace").splitlines()[-1])
    except FileNotFoundError:
        return "There is no {} here.".format(python)
    except subprocess.CalledProcessError as error:
        words = error.output.decode("utf-8", "replace").strip().splitlines()
        return "{} is no usable Python interpreter here: {}.".format(python, words[-1] if words else "it fails")
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        return "{} is no usable Python interpreter here: {}.".format(python, error)
    dotted = ".".join(map(str, version))
    if version[:2] < OLDEST:
        return "{} is Python {} here; the runner of scripts needs 3.6 or later.".format(python, dotted)
    if missing:
        return "{} (Python {}) has no {} here.".format(python, dotted, " and no ".join(missing))
    if needs["version"] and version[:2] != needs["version"]:
        return "{} is Python {} here; a function of the session's Python {} cannot be sent to it.".format(
            python, dotted, ".".join(map(str, needs["version"]))
        )
    return ""
