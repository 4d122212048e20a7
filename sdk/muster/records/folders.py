"""The user's Muster folder, and the folders of runs in it, which nobody else may write to, whatever the umask is.

Each run has its own folder, ``runs/<id>`` in :func:`muster_home`, which contains::

    events.jsonl       the run's events, one a line; the first describes the request
    plan.json          what was started where
    result.json        how it ended; absent while it runs, and if its session died or the disk was full
    logs/<worker>.log  what each worker printed (``.log.1`` is its older part), and ``launcher.log``
    logs/ranks/rank-<number>.log  what each rank printed, where workers have several
    control.json       how other processes reach the run while it is under way, see ``muster.records.control``
    results/           what the script returned
    tensorboard/       TensorBoard's event files, if the script writes any to its MUSTER_TENSORBOARD
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
from muster.text.system_errors import naming
from muster.training.store import write_durably

ID_TIME = "%Y%m%d-%H%M%S"  # 15 characters; an id is this, a slug of the name and 4 random digits, joined by "-"
ID_PATTERN = re.compile(r"\d{8}-\d{6}-[a-z0-9-]+-[0-9a-f]{4}")
TENSORBOARD = "tensorboard"


def muster_home() -> Path:
    """Return the folder with all Muster files of this user: ``$MUSTER_HOME``, else ``~/.muster``."""
    home = os.environ.get("MUSTER_HOME") or Path.home() / ".muster"
    return Path(os.path.expanduser(home)).absolute()  # unlike pathlib's, it takes a user that is not known for a name


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Make a folder, and its parents, if they do not exist.

    Args:
        mode: greatest permissions of the folder; those of new parents are at most 0755.

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
    """Return a run's name as part of its id, in ASCII letters, digits and dashes that are safe in shells and paths.

    >>> slug_of("My model: MNIST!"), slug_of("Übung_2"), slug_of("обучение")
    ('my-model-mnist', 'ubung-2', '')
    """
    plain = unicodedata.normalize("NFKD", name.lower()).encode("ascii", "ignore").decode()  # without accents
    return re.sub(r"[^a-z0-9]+", "-", plain)[:40].strip("-")


def library(run_dir: Path) -> Path:
    """Return the folder of the files that a run ships to its workers, if these cannot read the session's /tmp."""
    return run_dir / "lib"


def write_json(path: Path, data: Any, mode: int | None = None) -> None:
    """Write ``data`` as JSON so that a reader finds the old file or the new one, never an incomplete one.

    It does not wait for the disk, so that after a power failure the file may be neither: it is for data about sessions,
    which end with them.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(2)}")
    try:
        if mode is not None:
            beside.touch(mode=mode)
        with naming(path):
            beside.write_text(_as_json(data), encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json_durably(path: Path, data: Any) -> None:
    """Write ``data`` as JSON, and wait for the disk: the old file or the new one survives a power failure."""
    write_durably(path, lambda beside: beside.write_text(_as_json(data), encoding="utf-8"))


def _as_json(data: Any) -> str:
    return json.dumps(data, indent=2, default=str) + "\n"


def run_ids() -> list[str]:
    """Return the ids of all recorded runs, newest first to the second, without reading any record."""
    folder = muster_home() / "runs"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(filter(ID_PATTERN.fullmatch, names), reverse=True)
