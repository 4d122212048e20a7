"""Which files are a project's: what git would track."""

from __future__ import annotations

import glob
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from muster.agent.places import find
from muster.checks.places import facts_by_places, job_by_places, script_to_send
from muster.checks.planning import make_facts
from muster.checks.project import find_project
from muster.checks.script import make_script
from muster.errors import JobError
from muster.job import Job


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    write(folder, "train.py", "model/net.py", "data/big.bin", "notes.log", "model/__pycache__/net.pyc", ".hidden")
    (folder / ".gitignore").write_text("*.log\n")
    monkeypatch.chdir(folder)
    return folder


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"print({name!r})\n")


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", *identity, "-C", str(folder), *words], check=True, capture_output=True)


def job(script: str | None = "train.py") -> Job:
    return Job(make_script(script) if script else None, 1, cwd=os.getcwd())


def names(asked: object = None, script: str | None = "train.py") -> list[str]:
    return [name for name, _ in find_project(job(script), asked).files or ()]


def test_of_a_folder_without_git(folder: Path) -> None:
    assert names() == [".gitignore", ".hidden", "data/big.bin", "model/net.py", "train.py"]
    (folder / ".musterignore").write_text("/data\n!notes.log\n")
    assert ".musterignore" in names()
    assert "data/big.bin" not in names()


def test_of_a_working_tree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(folder, "init", "-q")
    git(folder, "add", "-f", "notes.log", "train.py", "data")
    git(folder, "commit", "-qm", "first")
    (folder / "data/big.bin").unlink()
    write(folder, "sub/.git/config", "tree/inner.py", "tree/left.log")
    git(folder, "init", "-q", "tree")
    everything = [".gitignore", ".hidden", "model/net.py", "notes.log", "train.py", "tree/inner.py", "tree/left.log"]
    assert names() == everything, "tracked though ignored, untracked and not ignored, what is there; trees in the tree"
    (folder / ".musterignore").write_text("notes.log\nmodel/\n")
    assert names() == [".gitignore", ".hidden", ".musterignore", "train.py", "tree/inner.py", "tree/left.log"]
    monkeypatch.chdir(folder / "model")
    found = find_project(job("../train.py"))
    assert found.root == folder, "the whole working tree, wherever in it one is"
    there = job_by_places(job("../train.py"), found)
    assert there.script is not None
    assert [there.cwd, there.script.target] == ["\0project\0/model", "\0project\0/train.py"]
    monkeypatch.setenv("PYTHONPATH", f"/usr/lib:{folder}/sub")
    given = replace(job("../train.py"), env={"PYTHONPATH": f"{folder}/model:/opt/x:{folder}"})
    facts = make_facts(given, folder / "run", folder / "scratch", by_places=True)
    search_path = facts_by_places(facts, found).environment["PYTHONPATH"]
    assert search_path == "\0library\0:\0project\0/model:/opt/x:\0project\0:\0project\0/sub"


@pytest.mark.parametrize("setting", ["core.fsmonitor", "remote.origin.uploadpack"])
def test_no_command_is_run_that_a_tree_within_the_tree_configures(folder: Path, tmp_path: Path, setting: str) -> None:
    command = tmp_path / "command"
    command.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\nexit 1\n")
    command.chmod(0o755)
    git(folder, "init", "-q")
    git(folder / "model", "init", "-q")
    git(folder / "model", "add", ".")
    git(folder / "model", "commit", "-qm", "first")
    tree = folder / "data/tree"
    git(folder, "clone", "-q", "--sparse", f"file://{folder}/model", str(tree))
    git(tree, "sparse-checkout", "set", "--cone", "--sparse-index", "none")
    git(tree, "config", "extensions.partialClone", "origin")
    git(tree, "config", setting, str(command))
    for lacking in tree.glob(".git/objects/pack/*"):
        lacking.unlink()

    assert "data/tree/net.py" in names()
    assert not (tmp_path / "was-run").exists()


def test_without_git_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JobError, match=r"\.gitignore cannot be read without git"):
        names()
    (folder / ".gitignore").unlink()
    assert names() == [".hidden", "data/big.bin", "model/net.py", "notes.log", "train.py"]


def test_what_is_asked_for(folder: Path) -> None:
    assert names("model", script=None) == ["net.py"]
    assert names(["train.py", "model", "d*/*.bin"]) == ["data/big.bin", "model/net.py", "train.py"]
    assert names("none") == names([]) == []
    assert script_to_send(job(), find_project(job(), "model")) == folder / "train.py", "then it goes by itself"
    for asked, error in {
        "nowhere": "is no folder", 7: "must be a folder, or a list",
    }.items():  # fmt: skip
        with pytest.raises(JobError, match=error):
            names(asked)
    for item in ("nowhere", "../elsewhere", "/etc/passwd", "z*"):
        with pytest.raises(JobError, match="of project="):
            names(["train.py", item])


def test_a_script_elsewhere_takes_its_folder_along(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found = find_project(job(str(folder / "train.py")))
    assert found.root == folder
    assert job_by_places(job(str(folder / "train.py")), found).cwd == "\0project\0"


def test_too_much_is_refused_with_the_largest(folder: Path) -> None:
    (folder / "data/huge.bin").write_bytes(bytes(2_500_000))
    with pytest.raises(JobError) as raised:
        find_project(job(), None, 1)
    assert "6 files, 2.5 MB, is more than the 1 MB" in str(raised.value)
    assert "The largest: data/huge.bin (2.5 MB)." in str(raised.value)
    assert "project_limit=3" in str(raised.value)
    for limit in (0, -1, "much", True, float("inf")):
        with pytest.raises(JobError, match="project_limit is"):
            find_project(job(), None, limit)


def test_of_too_many_small_files_their_folders_are_named(folder: Path) -> None:
    for number in range(40):
        (folder / f"data/{number}.jpg").write_bytes(bytes(40_000))
        (folder / f"model/{number}.h5").write_bytes(bytes(10_000))
    with pytest.raises(JobError, match=r"The largest: data/ \(1\.6 MB\), model/ \(0\.4 MB\)\."):
        find_project(job(), None, 1)


@pytest.mark.parametrize("link", [False, True], ids=["a file", "where a link leads"])
def test_names_that_are_no_text_are_refused_unless_they_are_left_out(folder: Path, link: bool) -> None:
    odd = "caf\udce9.txt"
    if link:
        (folder / "link").symlink_to(odd)
    else:
        (folder / odd).touch()
    with pytest.raises(JobError, match=r"caf\\xe9.txt'.* not UTF-8") as raised:
        find_project(job())
    str(raised.value).encode()  # so that it can be printed
    (folder / ".musterignore").write_text("link\n" if link else "caf*\n")
    assert "train.py" in names()


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**", "a.h5 d/b.h5 d/e/c[1].txt d/e/d.h5"),
        ("*", "a.h5 d/b.h5 d/e/c[1].txt d/e/d.h5"),  # a folder is all that is in it
        ("*.h5", "a.h5"),
        ("**/*.h5", "a.h5 d/b.h5 d/e/d.h5"),
        ("d", "d/b.h5 d/e/c[1].txt d/e/d.h5"),
        ("d/", "d/b.h5 d/e/c[1].txt d/e/d.h5"),
        ("./d/*/**", "d/e/c[1].txt d/e/d.h5"),
        ("d/e/[!c]*", "d/e/d.h5"),
        ("d/?.h5", "d/b.h5"),
        (glob.escape("d/e/c[1].txt"), "d/e/c[1].txt"),
        ("nothing/*", ""),
        ("a.h5/b", ""),
    ],
)
def test_patterns_for_files_of_workers(tmp_path: Path, pattern: str, found: str) -> None:
    write(tmp_path, "a.h5", "d/b.h5", "d/e/c[1].txt", "d/e/d.h5")
    assert [path for path, _ in find(str(tmp_path), pattern)] == found.split()


@pytest.mark.parametrize("pattern", ["epoch[9-0].h5", "x[!]"])
def test_patterns_that_are_none_are_refused_and_end_nobody(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(OSError, match="no pattern"):
        list(find(str(tmp_path), pattern))
