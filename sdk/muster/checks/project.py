"""The files of a project, which are sent to workers that share no files with the session.

In a git working tree these are the tracked files, and untracked files that are not ignored; in other folders git's
rules are applied as if they were working trees. A file ``.musterignore`` in the project's folder, written like a
``.gitignore``, leaves out more.
"""

from __future__ import annotations

import difflib
import glob
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from muster.agent.project import MOST_FILES
from muster.errors import JobError
from muster.job import Job
from muster.records.folders import muster_home
from muster.text.arguments import Argument, ArgumentText
from muster.text.frozen import frozen

IGNORE = ".musterignore"
NOTHING = "none"
ALWAYS_LEFT_OUT = ("__pycache__", ".ipynb_checkpoints", ".git")  # folders
LIMIT = 100.0  # MB
LARGEST_NAMED = 5
GIT_SECONDS = 60.0
# A tree of data within the project may be a stranger's: git runs no command that its configuration names, be it to
# watch files, as a hook, or to fetch what a partial clone lacks.
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
GIT_ENVIRONMENT = {"GIT_ALLOW_PROTOCOL": "none"}


@frozen
class Project:
    """The files that are sent to the workers.

    Attributes:
        root: the folder of the project.
        files: the relative paths of the files, sorted, with their sizes in bytes, 0 for links; None for all files.
    """

    root: Path
    files: Sequence[tuple[str, int]] | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """The size of all files together, in bytes."""
        return sum(size for _, size in self.files or ())

    def __str__(self) -> str:
        count = len(self.files or ())
        return f"{self.root}: {count} {'file' if count == 1 else 'files'}, {megabytes(self.size)}"

    def inside(self, path: str) -> str | None:
        """Return the path of a file or folder of the project relative to its root; None for any other path."""
        inner = _relative(path, self.root)
        if inner is None or inner == "." or self.files is None:
            return inner
        is_sent = any(name == inner or name.startswith(inner + "/") for name, _ in self.files)
        return inner if is_sent or os.path.isdir(path) else None


def megabytes(size: int) -> str:
    """Return a number of bytes in MB, with the unit.

    >>> megabytes(1_234_567), megabytes(12_345_678)
    ('1.2 MB', '12 MB')
    """
    return f"{size / 1e6:.1f} MB" if size < 10e6 else f"{size / 1e6:.0f} MB"


def find_project(job: Job, asked: Any = None, limit: Any = LIMIT) -> Project:
    """Return the project of a job.

    Args:
        job: the job, with its script resolved.
        asked: a folder; or a list of files, folders and patterns in the working directory; ``none`` or an empty list
            for no files. None for the git working tree that has the script, or without one the working directory if
            the script is in it, or else the script's folder.
        limit: the MB that all files together may have.

    Raises:
        JobError: there is no such folder or file, a file is not in the working directory, git cannot list the files,
            one has a name that is not UTF-8, or they are too many or too large.
    """
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < float("inf"):
        raise JobError(f"project_limit is {limit!r}; it must be a number of MB greater than 0.")
    root, names = _chosen(job, asked)
    _refuse_if_too_many(root, names)
    project = Project(root, tuple(_with_sizes(root, names)))
    if project.size > limit * 1e6:
        _refuse(project, limit)
    return project


def _chosen(job: Job, asked: Any) -> tuple[Path, list[str]]:
    """Return the project's folder, and the names of its files."""
    if asked is False or asked == NOTHING or (isinstance(asked, (list, tuple)) and list(asked) == [NOTHING]):
        return Path(job.cwd), []
    if isinstance(asked, (list, tuple)) and len(asked) == 1 and os.path.isdir(os.path.join(job.cwd, str(asked[0]))):
        asked = asked[0]
    if asked is None:
        root = _root(job)
        return root, _tracked(root)
    if isinstance(asked, (str, os.PathLike)):
        root = Path(os.path.realpath(os.path.join(job.cwd, os.path.expanduser(asked))))
        if not root.is_dir():
            raise JobError(
                f"The project {root} is no folder.",
                advice=_instead(str(root)),
            )
        return root, _tracked(root)
    if isinstance(asked, (list, tuple)) and all(isinstance(item, (str, os.PathLike)) for item in asked):
        root = Path(os.path.realpath(job.cwd))
        return root, sorted({name for item in asked for name in _listed(root, os.fspath(item))})
    raise JobError(f"project is {asked!r}; it must be a folder, or a list of files and folders.")


def refuse_missing(job: Job, asked: Any) -> None:
    """Raise JobError if a file or folder that the user named for the project does not exist.

    This is checked also if workers share the files, and nothing is sent.
    """
    for item in asked if isinstance(asked, (list, tuple)) else [asked]:
        if isinstance(item, (str, os.PathLike)) and item != NOTHING and not glob.has_magic(os.fspath(item)):
            path = os.path.join(job.cwd, os.path.expanduser(item))
            if not os.path.lexists(path):
                raise JobError(
                    ArgumentText("There is no ", path, ", which is given as ", Argument("project"), "."),
                    advice=_instead(path),
                )


def _instead(path: str) -> ArgumentText:
    """Return advice for a folder that does not exist: a folder of a similar name beside it, if there is one."""
    folder, name = os.path.split(path)
    beside = [entry.name for entry in os.scandir(folder) if entry.is_dir()] if os.path.isdir(folder) else []
    near = difflib.get_close_matches(name, beside, n=1)
    if near:
        return ArgumentText(Argument("project", os.path.join(folder, near[0])))
    return ArgumentText(Argument("project", ""), " a folder, or a list of files; by default it is the script's own")


def _root(job: Job) -> Path:
    script = job.script
    cwd = os.path.realpath(job.cwd)
    start = os.path.realpath(os.path.dirname(script.target)) if script and script.kind == "file" else cwd
    top = _git("-C", start, "rev-parse", "--show-toplevel")
    if top:
        return Path(os.fsdecode(top).rstrip("\n"))
    return Path(cwd if _relative(start, Path(cwd)) is not None else start)


def _listed(root: Path, item: str) -> Iterator[str]:
    """Yield the files that an item of the user's list stands for."""
    inner = _relative(os.path.join(root, os.path.expanduser(item)), root)
    found = [inner] if inner is not None and os.path.lexists(root / inner) else []
    if inner is not None and not found and glob.has_magic(inner):
        found = glob.glob(inner, root_dir=root, recursive=True)
    if not found:
        why = "is not there" if inner is not None else f"is not in the working directory {root}"
        raise JobError(
            ArgumentText(f"{item}, of ", Argument("project", ""), f", {why}."),
            advice=ArgumentText(Argument("project", ""), " files and folders in the working directory"),
        )
    for name in found:
        if (root / name).is_dir() and not (root / name).is_symlink():
            yield from (os.path.normpath(os.path.join(name, inside)) for inside in _tracked(root / name))
        else:
            yield os.path.normpath(name)


def _tracked(root: Path) -> list[str]:
    """Return the files of a folder that git would track."""
    is_tree = bool(_git("-C", str(root), "rev-parse", "--is-inside-work-tree"))
    ignore = root / IGNORE
    if is_tree:
        names = _names(_git_or_fail("-C", str(root), "ls-files", "-coz", "--exclude-standard"))
        if ignore.is_file():
            names -= _names(_git_or_fail("-C", str(root), "ls-files", "-ciz", "-X", str(ignore)))
            names -= _names(_git_or_fail("-C", str(root), "ls-files", "-oiz", "-X", str(ignore)))
    elif shutil.which("git"):
        with tempfile.TemporaryDirectory(prefix="muster-git-") as empty:
            _git_or_fail("init", "-q", "--bare", "--template=", empty)
            also = ["-X", str(ignore)] if ignore.is_file() else []
            tree = [f"--git-dir={empty}", f"--work-tree={root}", "-C", str(root)]
            names = _names(_git_or_fail(*tree, "ls-files", "-oz", "--exclude-standard", *also))
    else:
        for name in (IGNORE, ".gitignore"):
            if (root / name).is_file():
                raise JobError(
                    f"{root / name} cannot be read without git.",
                    advice=ArgumentText("install git, or ", Argument("project", ""), " a list"),
                )
        names = set(_walked(root))
    found = []
    for name in sorted(names):
        if name.endswith("/") or (os.path.isdir(root / name) and not os.path.islink(root / name)):  # a nested tree
            inner = name.rstrip("/")
            found += [f"{inner}/{inside}" for inside in _tracked(root / inner)] if inner not in ("", ".") else []
        else:
            found.append(name)
    return list(_without_leftovers(root, found))


def _without_leftovers(root: Path, names: Iterable[str]) -> Iterator[str]:
    """Leave out files that nobody means to send: compiled Python, virtual environments, Muster's own folder."""
    home = _relative(str(muster_home()), root)
    is_environment: dict[str, bool] = {}
    for name in names:
        folders = name.split("/")[:-1]
        if not set(folders).isdisjoint(ALWAYS_LEFT_OUT) or (home and f"{name}/".startswith(f"{home}/")):
            continue
        prefix, is_left_out = "", False
        for folder in folders:
            prefix += f"{folder}/"
            if prefix not in is_environment:
                is_environment[prefix] = os.path.lexists(root / prefix / "pyvenv.cfg")
            is_left_out = is_left_out or is_environment[prefix]
        if not is_left_out:
            yield name


def _walked(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in links and name not in ALWAYS_LEFT_OUT]
        for name in files + links:
            yield os.path.relpath(os.path.join(folder, name), root)


def _with_sizes(root: Path, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        try:
            found = os.lstat(root / name)
            is_link = stat.S_ISLNK(found.st_mode)
            target = os.readlink(root / name) if is_link else ""
        except OSError:  # a tracked file that has been removed
            continue
        _refuse_if_no_text(root, name, target)
        if is_link:
            yield name, 0
        elif stat.S_ISREG(found.st_mode):
            yield name, found.st_size


def _refuse_if_no_text(root: Path, name: str, target: str) -> None:
    """Raise JobError unless a file's name, and where it leads as a link, can be written in UTF-8, as messages are."""
    for text, what in ((name, "The name of the file"), (target, f"The target of the link {name},")):
        try:
            text.encode()
        except UnicodeEncodeError:
            shown = repr(os.fsencode(text))[1:]
            raise JobError(
                f"{what} {shown} in the project {root} is not UTF-8, so that it cannot be sent to workers.",
                advice=ArgumentText(
                    f"another name, a line for it in {root / IGNORE}, or ",
                    Argument("project", ""),
                    " only what workers need",
                ),
            ) from None


def _refuse_if_too_many(root: Path, names: Sequence[str]) -> None:
    if len(names) <= MOST_FILES:
        return
    counts: dict[str, int] = {}
    for name in names:
        top = name.split("/")[0]
        counts[top] = counts.get(top, 0) + 1
    most = sorted(counts, key=lambda name: -counts[name])[:LARGEST_NAMED]
    told = ", ".join(f"{name} ({counts[name]})" for name in most)
    raise JobError(
        f"The project {root} has {len(names)} files, more than the {MOST_FILES} that can go to workers. Most: {told}.",
        advice=ArgumentText(
            f"name what workers do not need in {root / IGNORE}, or ", Argument("project", ""), " only what they need"
        ),
    )


def _refuse(project: Project, limit: float) -> None:
    told = ", ".join(f"{name} ({megabytes(size)})" for name, size in _largest(project))
    raise JobError(
        f"The project {project}, is more than the {limit:g} MB that may go to each worker. The largest: {told}.",
        advice=ArgumentText(
            f"name what workers do not need in {project.root / IGNORE} (written like a .gitignore), ",
            Argument("project", ""),
            " only what they need, or ",
            Argument("project_limit", max(int(project.size / 1e6) + 1, 1)),
        ),
    )


def _largest(project: Project) -> list[tuple[str, int]]:
    """Return the names and sizes of the largest files, or of the largest folders where no few files are most of it."""
    largest = sorted(project.files or (), key=lambda item: -item[1])[:LARGEST_NAMED]
    if sum(size for _, size in largest) < project.size / 2:
        sizes: dict[str, int] = {}
        for name, size in project.files or ():
            top, slash, _ = name.partition("/")
            sizes[top + slash] = sizes.get(top + slash, 0) + size
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:LARGEST_NAMED]
    return [(name, size) for name, size in largest if size >= largest[0][1] / 100]


def _relative(path: str, root: Path) -> str | None:
    """Return a path relative to a folder, ``.`` for the folder itself; None if it is outside.

    Symbolic links in its parent folders are followed; if it is a link itself, only if it would be outside otherwise.
    """
    folder, name = os.path.split(os.path.abspath(path))
    inner = os.path.relpath(os.path.join(os.path.realpath(folder), name), os.path.realpath(root))
    if inner == ".." or inner.startswith("../"):
        inner = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
    return None if inner == ".." or inner.startswith("../") else inner


def _names(output: bytes) -> set[str]:
    return {os.fsdecode(name) for name in output.split(b"\0") if name}


def _git(*words: str) -> bytes:
    """Return the output of a git command; empty if it fails, or git is not installed."""
    try:
        return _git_or_fail(*words)
    except JobError:
        return b""


def _git_or_fail(*words: str) -> bytes:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | GIT_ENVIRONMENT
    try:
        done = subprocess.run(
            [*GIT, *words], capture_output=True, stdin=subprocess.DEVNULL, env=environment, timeout=GIT_SECONDS,
            check=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise JobError(f"git cannot list the files of the project: {said}.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobError(
            f"git cannot list the files of the project: {error}.",
            advice=ArgumentText(Argument("project", ""), " a list of files"),
        ) from error
    return done.stdout
