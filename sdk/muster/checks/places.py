"""A job whose paths are named by places, for workers that share no files with the session.

Places are folders that every such worker has somewhere: ``project`` with the user's files, ``library`` with what the
session sends, ``run`` with what comes back, and ``scratch``. Its agent knows their paths (:mod:`muster.agent.places`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from muster.agent.places import is_symbolic, symbol
from muster.checks.project import Project
from muster.job import Job
from muster.strategies.base import Facts

SCRIPTS = "scripts"  # folder of the library that has a script from outside the project


def job_by_places(job: Job, project: Project | None = None) -> Job:
    """Return the job for workers that share no files: its folder is in the project, and so is its script.

    Args:
        job: the job.
        project: the files that go along; None for all that its folder has.

    A script from elsewhere is sent with the library (``script_to_send``). A program from elsewhere keeps its path:
    it is to be installed where it runs. So do the user's arguments and variables, which are the user's words.
    """
    project = project or Project(Path(job.cwd))
    script = job.script
    if script is not None and script.kind in ("file", "executable"):
        inside = project.inside(script.target)
        if inside is not None:
            script = replace(script, target=f"{symbol('project')}/{inside}")
        elif script.kind == "file":
            script = replace(script, target=f"{symbol('library')}/{SCRIPTS}/{Path(script.target).name}")
    return replace(job, script=script, cwd=_by_place(job.cwd, project) or symbol("project"))


def facts_by_places(facts: Facts, project: Project) -> Facts:
    """Return the facts with folders of the project that scripts import from named by the project's symbol."""
    here = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    given = facts.environment["PYTHONPATH"].split(os.pathsep)
    found = [folder if is_symbolic(folder) else _by_place(folder, project) or folder for folder in given]
    found += filter(None, (_by_place(folder, project) for folder in here))
    environment = {**facts.environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(found))}
    return replace(facts, environment=environment, places={**facts.places, "project": str(project.root)})


def script_to_send(job: Job, project: Project) -> Path | None:
    """Return the job's script if it is not among the project's files; None if it is, or is not a Python file."""
    script = job.script
    if script is None or script.kind != "file" or project.inside(script.target) is not None:
        return None
    return Path(script.target)


def _by_place(folder: str, project: Project) -> str:
    """Return the path of a folder on workers, by symbol; empty if it is not in the project."""
    inside = project.inside(folder) if folder else None
    if inside is None:
        return ""
    return symbol("project") if inside == "." else f"{symbol('project')}/{inside}"
