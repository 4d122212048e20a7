"""The command that would repeat a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from muster.options.fields import flags_of


def repeat_command(job: Mapping[str, Any]) -> str:
    """Return the ``muster run`` command that repeats ``job``, as the event ``run_requested`` records it.

    Values of environment variables are not recorded: they are taken from the environment in which the command is run.
    Empty for a job that no command can run: a function of a notebook, or servers alone.

    >>> repeat_command({"strategy": "horovod", "n_workers": 2, "script": {"kind": "file", "target": "a b.py"}})
    "muster run -s horovod -n 2 'a b.py'"
    """
    script = job.get("script")
    if not isinstance(script, Mapping) or script.get("kind") not in ("file", "module", "executable"):
        return ""
    resources = _mapping(job.get("resources"))
    servers = _mapping(job.get("ps_resources"))
    options = {
        "-s": job.get("strategy"),
        "-n": job.get("n_workers"),
        "--ps": job.get("n_ps"),
        "--cpu": _unless(1, resources.get("cpu")),
        "--memory": _unless(2, resources.get("memory")),
        "--gpus": resources.get("gpu"),
        "--python": job.get("python"),
    }
    words = ["muster", "run"]
    for option, value in options.items():
        words += [option, str(value)] if value else []
    for option, key in (("--ps-cpu", "cpu"), ("--ps-memory", "memory"), ("--ps-gpus", "gpu")):
        words += [option, str(servers[key])] if servers.get(key) not in (None, resources.get(key)) else []
    older = {} if job.get("slots") in (None, 1) else {"slots": job["slots"]}  # all that old versions recorded
    words += flags_of(_mapping(job.get("options", older)))
    for name in _sequence(job.get("env")):
        words += ["--env", str(name)]
    words += ["-m"] if script["kind"] == "module" else []
    args = [str(word) for word in _sequence(job.get("args"))]
    end = ["--"] if any(word.startswith("-") for word in args) else []  # all words after it belong to the script
    return shlex.join([*words, str(script.get("target")), *end, *args])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}  # a record may be damaged


def _sequence(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple, Mapping)) else ()


def _unless(default: float, value: Any) -> Any:
    return None if value == default else value
