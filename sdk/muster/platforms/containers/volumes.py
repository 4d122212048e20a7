"""Folders and named volumes of the engine's machine that users have mounted into the workers' containers."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from muster.errors import JobError
from muster.text.arguments import Argument, ArgumentText

HOW = ArgumentText(
    Argument("volumes", ""),
    " SOURCE:TARGET or SOURCE:TARGET:ro, as docker run -v takes it; a target is an absolute path",
)
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
OWN = "/muster"  # where Muster has its files in a container


def binds(volumes: Sequence[str], is_here: bool) -> list[str]:
    """Return volumes as engines take them, with absolute paths.

    Args:
        volumes: each ``SOURCE:TARGET`` or ``SOURCE:TARGET:OPTIONS``. The source is a folder or file of the engine's
            machine, or the name of a volume.
        is_here: whether the engine sees this machine's files, so that sources must exist here.

    Raises:
        JobError: one of them cannot be mounted.
    """
    return [_bind(text, is_here) for text in volumes]


def _bind(text: str, is_here: bool) -> str:
    source, _, rest = text.partition(":")
    target, _, options = rest.partition(":")
    if source.startswith((".", "~")):
        source = os.path.abspath(os.path.expanduser(source))
    is_path = source.startswith("/")
    if not (is_path or NAME.fullmatch(source)):
        raise _refused(text, f"and {source!r} is neither a path nor the name of a volume")
    if not target.startswith("/") or ":" in options:
        raise _refused(text, "which names no absolute path as its target")
    if os.path.normpath(target) == "/" or Path(os.path.normpath(target)).is_relative_to(OWN):
        raise _refused(text, f"and {target} is where the worker's own files are")
    if is_path and is_here and not os.path.exists(source):
        raise _refused(text, f"and there is no {source} on this machine", advice="make that folder, or name another")
    return ":".join(filter(None, (source, target, options)))


def _refused(text: str, why: str, advice: ArgumentText | str = HOW) -> JobError:
    return JobError(ArgumentText(Argument("volumes"), f" has {text!r}, {why}."), advice=advice)
