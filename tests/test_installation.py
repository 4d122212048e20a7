"""The built package in fresh environments: in an empty folder, with each extra, beside packages that are there."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.support import tracked_files

ROOT = Path(__file__).resolve().parent.parent
# What each extra is there for: a module that the base does not bring.
EXTRAS = {
    "": "cryptography",
    "workbench": "requests",
    "containers": "docker",
    "kubernetes": "yaml",
    "trust": "paramiko",
    "serve": "uvicorn",
    "notebook": "anywidget",
    "demo": "sklearn",
    "tensorflow": "tensorflow",
    "tensorflow,horovod": "horovod",
}
OTHER_VERSIONS = {"requests": "2.32.0", "click": "8.1.7", "rich": "13.8.0"}

pytestmark = [pytest.mark.slow, pytest.mark.installation]


def part_of_set_up(name: str) -> ModuleType:
    """A file of scripts/ as a module."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def uv() -> str:
    """The program that set-up brings, whose cache has what is installed here."""
    module = part_of_set_up("setup")
    path = Path(module.CACHE, module.UV.replace("==", "-"), "bin", "uv")
    if not path.exists():
        pytest.skip(f"there is no {path}, which set-up brings")
    return str(path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist of what is tracked here."""
    source, there = tracked_files(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("wheel")
    build = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"
    run([sys.executable, "-c", build.format("sdist"), str(there)], source)
    (sdist,) = there.glob("*.tar.gz")
    shutil.unpack_archive(sdist, there, filter="data")
    run([sys.executable, "-c", build.format("wheel"), str(there)], there / sdist.name.removesuffix(".tar.gz"))
    return next(there.glob("*.whl"))


def run(command: list[str], folder: Path) -> str:
    """Run a command and return what it prints, in this folder as somebody without our environment would."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Fresh:
    """A new environment, beside an empty folder."""

    def __init__(self, uv: str, folder: Path) -> None:
        self.uv, self.folder = uv, folder / "empty"
        self.folder.mkdir()
        self.bin = folder / "venv" / "bin"
        run([uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(self.bin.parent)], self.folder)

    def install(self, *requirements: str, constraints: bool = True) -> None:
        """Install these, in the versions of the lock where they are free to be those."""
        command = [self.uv, "pip", "install", "--quiet", "--python", str(self.bin / "python"), *requirements]
        if constraints:  # what the cache has from set-up
            command += ["--constraint", str(ROOT / "requirements.lock")]
        run(command, self.folder)

    def versions(self, *names: str) -> dict[str, str]:
        """The installed versions of these packages."""
        program = "import importlib.metadata, sys\nfor name in sys.argv[1:]: print(importlib.metadata.version(name))"
        return dict(
            zip(names, run([str(self.bin / "python"), "-c", program, *names], self.folder).split(), strict=True)
        )


@pytest.fixture
def fresh(uv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fresh:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    return Fresh(uv, tmp_path)


def test_the_oldest_environment_has_the_versions_that_are_declared(uv: str) -> None:
    oldest = Path(part_of_set_up("matrix").lowest(sys.executable)).read_text(encoding="utf-8")
    resolved = {
        canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", oldest, re.M)
    }
    declared = configparser.ConfigParser(inline_comment_prefixes=("#",))
    declared.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = declared["options.extras_require"]
    tested = [extras[extra] for extra in extras if extra not in part_of_set_up("matrix").NOT_OLDEST_EXTRAS]
    lines = "\n".join([declared["options"]["install_requires"], *tested]).splitlines()
    newer = {}
    for requirement in (Requirement(line) for line in lines if line.strip()):
        found = resolved.get(canonicalize_name(requirement.name), "")  # none where a marker leaves it out
        bounds = [part.version for part in requirement.specifier if part.operator == ">="]
        if found and bounds and found not in SpecifierSet(f"=={bounds[0]}.*"):
            newer[requirement.name] = f"declared from {bounds[0]}, tested with {found}"
    assert newer == {}


@pytest.fixture(scope="module")
def horovod() -> str:
    """The folder with Horovod's wheel, which set-up has compiled."""
    module = part_of_set_up("horovod_wheel")
    folder = Path(module.wheel_folder())
    if not folder.exists():
        pytest.skip(f"there is no {folder}, which set-up makes")
    return str(folder)


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_wheel_runs_from_an_empty_folder_with_each_extra(
    fresh: Fresh, wheel: Path, extra: str, request: pytest.FixtureRequest
) -> None:
    compiled = ["--find-links", request.getfixturevalue("horovod")] if "horovod" in extra else []
    fresh.install(f"muster{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}", *compiled)
    run([str(fresh.bin / "python"), "-c", f"import {EXTRAS[extra]}"], fresh.folder)
    if extra == "tensorflow":
        run_tutorial(fresh)
        return
    (fresh.folder / "hello.py").write_text('print("hello")\n')  # as docs/installation.md has it
    strategy = "horovod" if compiled else "processes"
    # Horovod imports TensorFlow for the first time here, which compiles it.
    command = [str(fresh.bin / "muster"), "run", "-s", strategy, "-n", "2", "--timeout", "200", "hello.py"]
    run(command, fresh.folder)
    assert "hello" in run([str(fresh.bin / "muster"), "logs", "last"], fresh.folder)


def run_tutorial(fresh: Fresh) -> None:
    """Run the programs of docs/tutorial.md as they stand there."""
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"<!-- runs: (\S+) -->\n```python\n(.*?)```", tutorial, re.DOTALL))
    for name, text in blocks.items():
        (fresh.folder / name).write_text(text)
    run([str(fresh.bin / "python"), "notebook.py"], fresh.folder)
    assert "rank 1 of 2: " in run([str(fresh.bin / "muster"), "logs", "last"], fresh.folder)


def test_the_extra_for_gpus_brings_tensorflow_with_cuda_and_nothing_of_its_other_build(
    fresh: Fresh, wheel: Path, uv: str
) -> None:
    # What would be installed: the packages themselves are three gigabytes.
    command = [uv, "pip", "install", "--dry-run", "--python", str(fresh.bin / "python")]
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [*command, f"muster[gpu] @ {wheel.as_uri()}"], cwd=fresh.folder, capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    names = re.findall(r"^ \+ ([\w-]+)==", done.stderr, re.MULTILINE)
    assert {"tensorflow", "nvidia-cudnn-cu12"} <= set(names)
    assert "tensorflow-cpu" not in names


def test_packages_that_are_there_keep_their_versions(fresh: Fresh, wheel: Path) -> None:
    fresh.install(*(f"{name}=={version}" for name, version in OTHER_VERSIONS.items()), constraints=False)
    fresh.install(f"muster[workbench] @ {wheel.as_uri()}", constraints=False)
    assert fresh.versions(*OTHER_VERSIONS) == OTHER_VERSIONS
    (fresh.folder / "hello.py").write_text('print("hello")\n')
    run([str(fresh.bin / "muster"), "run", "-s", "processes", "hello.py"], fresh.folder)
