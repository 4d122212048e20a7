"""Command lines that start the user's script, or a TensorFlow server, through the runner."""

from __future__ import annotations

from muster.job import Job
from muster.strategies.base import Facts


def script_command(job: Job, facts: Facts) -> tuple[str, ...]:
    """Return the command that starts the job's script, in the user's interpreter unless the script is an executable."""
    assert job.script is not None, "a job without a script starts servers only"
    if job.script.kind == "executable":
        return (job.script.target, *job.args)
    runner = (job.python or facts.session_python, "-u", str(facts.runner))
    if job.script.kind == "function":
        return (*runner, "function", str(facts.library / FUNCTION_FILE), *job.args)
    if job.script.is_task:
        return (*runner, "task", job.script.target, *job.args)
    return (*runner, "program" if job.script.kind == "file" else "module", job.script.target, *job.args)


def server_command(job: Job, facts: Facts) -> tuple[str, ...]:
    """Return the command that starts a TensorFlow server in the user's interpreter."""
    return (job.python or facts.session_python, "-u", str(facts.runner), "serve")


FUNCTION_FILE = "function.pkl"
