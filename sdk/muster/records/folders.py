"""The user's own folder, and the folders of runs in it, which nobody else may write to, whatever the umask is.

Each run has a folder of its own, ``runs/<id>`` in :func:`muster_home`, which holds::

    events.jsonl       what happened, one event a line; the first says who asked for what
    plan.json          what was started where
    result.json        how it ended; absent while it runs, where its session died, and where the disk was full
    logs/<worker>.log  what each worker printed (``.log.1`` is its older part), and ``launcher.log``
    logs/ranks/rank-<number>.log  what each rank printed, where workers have several
    control.json       how other processes reach the run while it is under way, see ``muster.records.control``
    results/           what the script returned
    tensorboard/       event files, where the script writes any: its MUSTER_TENSORBOARD
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
import unicodedata
from pathlib import Path
from typing import Any

from muster.agent.removal import remove_folder
from muster.training.store import write_durably

ID_TIME = "%Y%m%d-%H%M%S"  # 15 characters; an id is this, a slug of the name and 4 random digits, joined by "-"
ID_PATTERN = re.compile(r"\d{8}-\d{6}-[a-z0-9-]+-[0-9a-f]{4}")
TENSORBOARD = "tensorboard"


def muster_home() -> Path:
    """The folder that keeps everything of this user: ``$MUSTER_HOME``, else ``~/.muster``."""
    return Path(os.environ.get("MUSTER_HOME") or Path.home() / ".muster").expanduser().absolute()


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Make a folder, and those around it, where there is none. None of them is open to more than ``mode`` says.

    Raises:
        OSError: it cannot be made.
    """
    around = path.parent
    if not around.is_dir():
        make_folder(around)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is no folder")


def make_run_folder(name: str) -> Path:
    """Make the folder of a new run, readable by its owner only, and return it. Its name is the run's id."""
    parent = muster_home() / "runs"
    make_folder(parent)
    slug = slug_of(name) or "run"
    while True:
        path = parent / f"{time.strftime(ID_TIME)}-{slug}-{secrets.token_hex(2)}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        try:
            (path / "logs").mkdir()
            (path / "results").mkdir()
        except OSError:
            remove_folder(path)
            raise
        return path


def slug_of(name: str) -> str:
    """The part of a run's id that tells its name, in ASCII, which every shell, path and variable takes.

    >>> slug_of("My model: MNIST!"), slug_of("Übung_2"), slug_of("обучение")
    ('my-model-mnist', 'ubung-2', '')
    """
    plain = unicodedata.normalize("NFKD", name.lower()).encode("ascii", "ignore").decode()  # without accents
    return re.sub(r"[^a-z0-9]+", "-", plain)[:40].strip("-")


def library(run_dir: Path) -> Path:
    """Return the folder of what a run under way ships to workers, if they do not see the session's /tmp."""
    return run_dir / "lib"


def write_json(path: Path, data: Any, mode: int | None = None) -> None:
    """Write ``data`` as JSON so that a reader finds the old file or the new one, never half of one.

    After a power cut it may be neither: the disk is not waited for, as what says where a session is ends with it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(2)}")
    try:
        if mode is not None:
            beside.touch(mode=mode)
        beside.write_text(_as_json(data), encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json_durably(path: Path, data: Any) -> None:
    """Write ``data`` as JSON, down to the disk: after a power cut, too, there is the old file or the new one."""
    write_durably(path, lambda beside: beside.write_text(_as_json(data), encoding="utf-8"))


def _as_json(data: Any) -> str:
    return json.dumps(data, indent=2, default=str) + "\n"


def run_ids() -> list[str]:
    """Ids of all recorded runs, newest first to the second; nothing of them is read."""
    folder = muster_home() / "runs"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(filter(ID_PATTERN.fullmatch, names), reverse=True)
