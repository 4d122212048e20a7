"""Checks of the parts of Horovod that a script uses: known traps, its extensions, and an allreduce of two ranks."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.checkup.report import Finding
from muster.failure.advice import HOROVOD_KERAS, build_horovod_again
from muster.run.checked import CheckedRun
from muster.text.arguments import Argument, ArgumentText
from muster.text.reading import parse_last_line

ALLREDUCE = Path(__file__).with_name("allreduce.py")
ALLREDUCE_SECONDS = 120.0
KERAS = ("horovod.keras", "horovod.tensorflow.keras")
COLLECTIVES = ("horovod.tensorflow", "horovod.torch")


def modules_of(imported: Sequence[str]) -> list[str]:
    """Return the modules of Horovod that a script needs, given its imports; those with the collectives first."""
    wanted = [name for name in (*COLLECTIVES, *KERAS) if any(f"{found}.".startswith(f"{name}.") for found in imported)]
    has_collectives = any(name in COLLECTIVES for name in wanted)
    return wanted if has_collectives else [COLLECTIVES[0], *wanted]


def traps(imported: Sequence[str], keras: str, env: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on imports that are known to fail on any machine."""
    used = [name for name in KERAS if name in modules_of(imported)]
    if used and keras.partition(".")[0].isdecimal() and int(keras.partition(".")[0]) >= 3:
        if env.get("TF_USE_LEGACY_KERAS", "").lower() in {"1", "true"}:
            return
        text = f"the script imports {used[0]}, which does not work with Keras {keras}"
        yield Finding("error", "horovod", text, HOROVOD_KERAS)


def try_allreduce(checked: CheckedRun, imported: Sequence[str]) -> Iterator[Finding]:
    """Test that two ranks on this machine can import the script's Horovod modules and add up a number."""
    job = checked.job
    modules = modules_of(imported)
    command = [job.python, "-c", ALLREDUCE.read_text(), *modules]
    try:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", cwd=job.cwd, env={**os.environ, **job.env}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        text = f"{job.python} cannot be started: {error.strerror}"
        yield Finding("error", "horovod", text, ArgumentText(Argument("python", ""), " an interpreter that runs"))
        return
    with started as process:
        try:
            output, errors = process.communicate(timeout=ALLREDUCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text = f"two ranks on this machine have not found each other within {ALLREDUCE_SECONDS:.0f} s"
            yield Finding("error", "horovod", text, "see whether something blocks connections on lo")
            return
        finally:
            _kill_rest(process.pid)
    answer = _answer(output, errors)
    if not answer["problem"]:
        yield Finding("ok", "horovod", f"two ranks import {', '.join(modules)} and add up a number over gloo")
        return
    keras = next((name for name in KERAS if name in answer["problem"]), None)
    fix = HOROVOD_KERAS if keras else build_horovod_again(answer["problem"], job.python)
    yield Finding("error", "horovod", f"Horovod of {job.python}: {answer['problem']}", fix, details=answer["details"])


def _answer(output: str, errors: str) -> dict[str, Any]:
    try:
        return parse_last_line(output)
    except ValueError:
        return {"problem": (errors.strip().splitlines() or ["it said nothing"])[-1], "details": errors[-3000:]}


def _kill_rest(group: int) -> None:
    """Kill the ranks that are left in a process group: they may wait for one that has ended."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
