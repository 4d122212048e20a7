"""Declarations are made once, pinned and justified; and the commands do what they are said to do."""

import ast
import configparser
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import muster
import pytest
import yaml
from packaging.requirements import Requirement

from tests.support import eventually, tracked_files

ROOT = Path(__file__).resolve().parent.parent

# Compiled against the TensorFlow of the environment, so conda's list of packages cannot have it; see environment.yml.
COMPILED = {"horovod"}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"muster_{name}", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Give a fresh copy of scripts/setup.py and its parts, whose constants a test may change."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    for part in ("tools", "horovod_wheel", "system"):
        monkeypatch.delitem(sys.modules, part, raising=False)
    made = load("setup")
    for part in ("tools", "horovod_wheel", "system"):
        monkeypatch.setitem(sys.modules, part, sys.modules[part])  # taken away again after the test
    return made


@pytest.fixture
def system() -> ModuleType:
    """Give a fresh copy of scripts/system.py."""
    return load("system")


def config() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def lines(value: str) -> list[str]:
    return [line for line in value.strip().splitlines() if line.strip() and not line.lstrip().startswith("#")]


def setup_cfg() -> dict[str, list[str]]:
    """Read the declared lines under the name of their extra, with "" for what Muster always needs."""
    parser = config()
    declared = {name: lines(value) for name, value in parser["options.extras_require"].items()}
    return {"": lines(parser["options"]["install_requires"]), **declared}


def conda_lines() -> list[str]:
    """Read environment.yml's dependency lines as written, comments included."""
    text = (ROOT / "environment.yml").read_text(encoding="utf-8").split("dependencies:\n")[1]
    found = [line.strip()[2:] for line in text.splitlines() if line.strip().startswith("- ")]
    return [line for line in found if line not in ("pip:", "-e .")]


def split(line: str) -> tuple[str, str]:
    requirement, _, comment = line.partition("  # ")
    return requirement.strip(), comment.strip()


SETUP_LINES = [line for declared in setup_cfg().values() for line in declared]


@pytest.mark.parametrize("line", SETUP_LINES)
def test_each_requirement_says_why_it_is_there_and_from_which_version(line: str) -> None:
    text, why = split(line)
    requirement = Requirement(text)
    assert len(why) > 5, "a comment behind it says what it is needed for"
    if not requirement.name.startswith("types-"):  # those follow the package that they describe
        assert requirement.specifier, "a range: what it was tried with"


@pytest.mark.parametrize("line", setup_cfg()[""])
def test_nobody_is_forced_to_an_exact_version_of_what_muster_always_needs(line: str) -> None:
    assert {spec.operator for spec in Requirement(split(line)[0]).specifier} == {">="}


@pytest.mark.parametrize("line", conda_lines())
def test_each_line_of_environment_yml_says_why_it_is_there(line: str) -> None:
    text, why = split(line)
    assert re.match(r"[\w.\[\]-]+", text)
    assert len(why) > 5


def test_one_package_has_one_range_wherever_it_is_declared() -> None:
    ranges: dict[tuple[str, str], set[str]] = {}
    for line in SETUP_LINES:
        requirement = Requirement(split(line)[0])
        ranges.setdefault((requirement.name.lower(), str(requirement.marker)), set()).add(str(requirement.specifier))
    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}


LOCKED = re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


def test_the_image_for_workers_has_the_versions_of_the_lock() -> None:
    text = (ROOT / "containers" / "Dockerfile").read_text()
    given = {name.lower(): version for name, version in re.findall(r"^ARG (\w+)=([\d.]+)$", text, re.MULTILINE)}
    assert given.pop("horovod") in next(line for line in setup_cfg()["horovod"] if line.startswith("horovod"))
    assert given == {name: version for name, version in LOCKED if name in ("tensorflow", "keras", "numpy")}


def test_the_lock_has_each_requirement_in_a_version_that_is_declared_with_hashes() -> None:
    locked: dict[str, set[str]] = {}
    for name, version in LOCKED:
        locked.setdefault(name.lower(), set()).add(version)
    for line in SETUP_LINES:
        requirement = Requirement(split(line)[0])
        if requirement.name in COMPILED:
            continue
        assert any(version in requirement.specifier for version in locked[requirement.name.lower()]), line
    text = (ROOT / "requirements.lock").read_text()
    assert len(re.findall(r"\\\n    --hash=sha256:", text)) >= len(LOCKED), "each is checked when it is installed"
    assert "://" not in text, "where packages come from is the user's business"


def test_environment_yml_says_what_setup_cfg_says() -> None:
    declared = setup_cfg()
    del declared["gpu"]  # in place of tensorflow, not beside it
    expected = {split(line) for extra in declared.values() for line in extra}
    expected = {
        (text, why) for text, why in expected if Requirement(text).name not in COMPILED and "as under" not in why
    }
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    pip = conda["dependencies"][-1]["pip"]
    assert pip[-1] == "-e ."
    assert {text for text, _ in expected} == set(pip[:-1])
    assert expected == {split(line) for line in conda_lines()[2:]}, "the reasons are the same, too"
    assert len(pip) == len(set(pip))


def test_conda_and_set_up_make_a_python_that_muster_supports(setup: ModuleType) -> None:
    requires = config()["options"]["python_requires"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    conda_python = Requirement(conda["dependencies"][0].replace("=", "=="))
    supported = Requirement("python" + requires).specifier
    assert all(f"{spec.version}.0" in supported for spec in conda_python.specifier)
    assert [f"3.{minor}" for minor in range(6, 20) if f"3.{minor}.0" in supported] == sorted(
        (".".join(map(str, version)) for version in setup.SUPPORTED), key=lambda text: int(text[2:])
    )


def test_set_up_installs_every_extra_but_the_one_for_gpus(setup: ModuleType) -> None:
    assert set(setup.EXTRAS) | {"gpu", "horovod"} == set(setup_cfg()) - {""}


def test_the_old_tensorflow_is_pinned_too(setup: ModuleType) -> None:
    for requirement in setup.TF1:
        assert re.fullmatch(r"[\w-]+==[\d.]+", requirement)


def test_what_is_imported_is_declared_rather_than_brought_by_something_else() -> None:
    declared = {Requirement(split(line)[0]).name.lower() for line in SETUP_LINES}
    distributions = packages_distributions()
    imported: dict[str, str] = {}
    for path in (ROOT / "sdk" / "muster").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0]: path.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported[node.module.partition(".")[0]] = path.name
    of_others = imported.keys() - sys.stdlib_module_names - {"muster", "agent"}  # what workers unpack
    by_name = {name: {each.lower().replace("_", "-") for each in distributions.get(name, [name])} for name in of_others}
    assert len(by_name) > 20
    assert {name: imported[name] for name, found in by_name.items() if not found & declared} == {}


def test_the_version_stands_in_one_place() -> None:
    assert config()["metadata"]["version"] == "attr: muster.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+", muster.__version__)


@pytest.mark.slow
def test_wheel_and_sdist_build_and_the_wheel_works_from_an_empty_folder(tmp_path: Path) -> None:
    source = tracked_files(tmp_path / "source")
    build = "import sys; from setuptools import build_meta as build; there = sys.argv[1]\n"
    build += "print(build.build_sdist(there), build.build_wheel(there))"
    command = [sys.executable, "-W", "error::UserWarning", "-c", build, str(tmp_path)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sdist, wheel = done.stdout.split()[-2:]
    with tarfile.open(tmp_path / sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "README.md", "sdk/muster/py.typed", "setup.cfg"} <= packed
    assert [name for name in packed if name.startswith("tests")] == []
    empty, target = tmp_path / "empty", tmp_path / "target"
    empty.mkdir()
    shutil.unpack_archive(tmp_path / wheel, target, "zip")
    assert (target / "muster" / "py.typed").exists()
    assert (target / "muster" / "dashboard" / "web" / "widget.js").exists()
    program = (
        "import muster; print(muster.__file__); muster.run_cluster(1, strategy='processes', worker_script='job.py')"
    )
    (empty / "job.py").write_text("print('works')\n")
    environment = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-c", program], cwd=empty, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(target))


@pytest.mark.parametrize(
    ("missing", "extra", "code"),
    [
        ("paramiko", "trust", "from muster.commands.main import main; main(['trust', 'some-host'])"),
        ("fastapi", "serve", "from muster.commands.main import main; main(['serve'])"),
        ("requests", "workbench", "from muster.platforms import get_platform; get_platform('workbench')"),
        ("docker", "containers", "from muster.platforms import get_platform; get_platform('containers').check()"),
        ("yaml", "kubernetes", "from muster.platforms import get_platform; get_platform('kubernetes').check()"),
        ("psutil", "demo", "import muster.commands.demo"),
    ],
)
def test_what_is_not_installed_names_the_command_that_installs_it(
    missing: str, extra: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubeconfig").touch()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    program = f"import sys; sys.modules[{missing!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0
    assert f"pip install 'muster[{extra}]'" in done.stderr


def test_the_demo_says_in_words_what_it_lacks() -> None:
    run = "import runpy; runpy.run_module('muster.commands.demo', run_name='__main__')"
    program = f"import sys; sys.modules['psutil'] = None\n{run}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "pip install 'muster[demo]'" in done.stderr


ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Absent())
from muster.commands.main import main
main({arguments}, prog_name="muster")
"""


@pytest.mark.parametrize("command", ["run --help", "plan", "run", "doctor"])
def test_a_run_on_this_machine_needs_no_extra(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"pyyaml": "yaml", "ipython": "IPython"}
    declared = {name: [Requirement(split(line)[0]).name for line in lines] for name, lines in setup_cfg().items()}
    needed = declared.pop("")
    extras = {name.lower() for names in declared.values() for name in names} - {*needed, "setuptools", "cffi"}
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "job.py").write_text("print('works')\n")
    arguments = [*command.split(), "-s", "processes", "job.py"]
    absent = {modules.get(name, name.replace("-", "_")) for name in extras}
    program = ABSENT.format(absent=absent, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_pyproject_holds_the_build_system_and_the_linters_only() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tables = re.findall(r"^\[+([\w-]+)(?:\.([\w-]+))?", text, re.MULTILINE)
    assert {".".join(filter(None, table)) for table in tables} == {"build-system", "tool.ruff", "tool.mypy", "tool.uv"}


def make(*targets: str) -> str:
    """Ask make what it would run."""
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="there is no make here")


@needs_make
@pytest.mark.parametrize(
    ("target", "commands"),
    [
        ("setup", ["scripts/setup.py"]),
        ("demo", ["scripts/setup.py", ".venv/bin/python -m muster.commands.demo"]),
        ("test", ["scripts/setup.py --tests", ".venv/bin/python -m pytest -n 3"]),
        ("check", ["scripts/setup.py", "ruff check", "ruff format --check", "mypy", 'pytest -n 2 -m "not slow"']),
        ("lint", ["scripts/setup.py", "ruff check", "ruff format --check", "mypy"]),
        ("bench", ["scripts/setup.py", ".venv/bin/python -m benchmarks"]),
    ],
)
def test_a_target_sets_up_and_then_runs_what_it_is_for(target: str, commands: list[str]) -> None:
    planned = make(target)
    places = [planned.find(command) for command in commands]
    assert -1 not in places, planned
    assert places == sorted(places)


@needs_make
def test_make_alone_prints_the_targets() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("setup", "demo", "test", "check", "lint", "worker-image", "bench", "clean", "help"):
        assert re.search(rf"make {target}\s+\w", done.stdout)


def test_ci_runs_the_very_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if not line.startswith("#")]
    assert commands[1].startswith("cd "), "from wherever it is called"
    made = [command.partition(" ||")[0] for command in commands]  # what cannot be built leaves tests that skip
    assert made[2:8] == ["make lint", "make docs", "make kubernetes", "make worker-image", "make test", "make demo"]
    assert made[8] == "make matrix", "which runs the tests of installations, too"
    assert commands[-1].startswith('exec make chaos ARGS="-n 100 --seed ')


def test_the_command_muster_is_the_cli() -> None:
    assert config()["options.entry_points"]["console_scripts"].strip() == "muster = muster.__main__:main"


def test_set_up_starts_on_a_bare_python() -> None:
    # -E -S: neither an environment nor site-packages, as on a machine that has nothing yet.
    done = subprocess.run(
        [sys.executable, "-E", "-S", str(ROOT / "scripts" / "setup.py"), "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--tests" in done.stdout


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.9"])
def test_set_up_on_a_python_that_is_too_old_begins_all_the_same(version: str) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} is here")
    command = [str(found[0]), str(ROOT / "scripts" / "setup.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.defpath})
    assert done.returncode == 0, done.stderr
    assert "--tests" in done.stdout


# ---------------------------------------------------------------------------------------------------- which Python


def interpreter(path: Path, version: str | None) -> None:
    """Write a program that answers, as an interpreter of some version, what set-up asks of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n" if version else "#!/bin/sh\nexit 127\n")
    path.chmod(0o755)


@pytest.fixture
def too_old(setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let `python3` be 3.8 and PATH and pyenv's folder be empty."""
    monkeypatch.setattr(setup.sys, "version_info", (3, 8, 18, "final", 0))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    which = shutil.which
    monkeypatch.setattr(setup.shutil, "which", lambda name: which(name, path=str(tmp_path / "on path")))
    return tmp_path


def test_the_newest_python_on_the_path_is_taken(setup: ModuleType, too_old: Path) -> None:
    interpreter(too_old / "on path" / "python3.10", "3 10 12")
    interpreter(too_old / "on path" / "python3.11", "3 11 2")
    interpreter(too_old / "pyenv" / "versions" / "3.12.1" / "bin" / "python3.12", "3 12 1")
    assert setup.tools.find_python(setup.SUPPORTED) == (str(too_old / "on path" / "python3.11"), (3, 11, 2))


def test_a_shim_that_runs_nothing_is_passed_over(setup: ModuleType, too_old: Path) -> None:
    interpreter(too_old / "on path" / "python3.12", None)
    interpreter(too_old / "pyenv" / "versions" / "3.10.13" / "bin" / "python3.10", "3 10 13")
    assert setup.tools.find_python(setup.SUPPORTED)[1] == (3, 10, 13)


def test_without_a_python_that_fits_set_up_says_which_it_needs(
    setup: ModuleType, too_old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup.sys, "argv", ["setup.py"])
    assert setup.main() == 1
    assert "Muster needs Python 3.10, 3.11 or 3.12, and found only 3.8.18" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- the stamp, and the wheel


@pytest.fixture
def tree(setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point set-up at a folder of its own, whose path has a space, with the real declarations in it."""
    root = tmp_path / "a folder"
    (root / "scripts").mkdir(parents=True)
    for name in ("setup.cfg", "requirements.lock"):
        shutil.copy(ROOT / name, root)
    for part in setup.PARTS:
        shutil.copy(ROOT / "scripts" / part, root / "scripts")
    monkeypatch.setattr(setup.tools, "provide_uv", lambda: "uv")
    monkeypatch.setattr(setup.tools, "ROOT", str(root))
    monkeypatch.setattr(setup, "VENV", str(root / ".venv"))
    monkeypatch.setattr(setup, "VENV_TF1", str(root / ".venv-tf1"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    return root


@pytest.fixture
def ran(setup: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the labels of what set-up would run, and make an environment's folder instead of an environment."""
    labels: list[str] = []

    def run(label: str, argv: list[str], log: str, env: dict[str, str] | None = None) -> None:
        labels.append(label)
        if "venv" in argv:
            (Path(argv[-1]) / "bin").mkdir(parents=True, exist_ok=True)
            # Not a link: started by one, Python would not know that it belongs to this environment, which has pip.
            python = Path(argv[-1]) / "bin" / "python"
            python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            python.chmod(0o755)
        if "wheel" in argv:
            (Path(argv[argv.index("-w") + 1]) / "horovod.whl").touch()

    monkeypatch.setattr(setup.tools, "run", run)
    return labels


HERE = sys.version_info[:3]


def test_a_second_set_up_runs_nothing(setup: ModuleType, ran: list[str]) -> None:
    setup.provide_environment(sys.executable, HERE)
    assert [label.split()[0] for label in ran] == [
        "making",
        "installing",
        "installing",
        "compiling",
        "installing",
        "loading",
    ]
    ran.clear()
    setup.provide_environment(sys.executable, HERE)
    assert ran == []


@pytest.mark.parametrize("name", ["setup.cfg", "requirements.lock", "scripts/setup.py", "scripts/horovod_wheel.py"])
def test_what_is_declared_anew_is_installed(setup: ModuleType, ran: list[str], tree: Path, name: str) -> None:
    setup.provide_environment(sys.executable, HERE)
    ran.clear()
    with open(tree / name, "a") as file:
        file.write("\n# a change\n")
    setup.provide_environment(sys.executable, HERE)
    assert ran[-1] == "installing Horovod"
    assert not any(label.startswith(("making", "compiling")) for label in ran), "the environment and the wheel are kept"


def test_a_folder_that_was_moved_gets_an_environment_of_its_own(
    setup: ModuleType, ran: list[str], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.provide_environment(sys.executable, HERE)
    ran.clear()
    moved = tree.rename(tree.with_name("another folder"))
    monkeypatch.setattr(setup.tools, "ROOT", str(moved))
    monkeypatch.setattr(setup, "VENV", str(moved / ".venv"))
    setup.provide_environment(sys.executable, HERE)
    assert ran[0].startswith("making .venv")


def test_a_set_up_that_failed_is_taken_up_again(
    setup: ModuleType, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(
            setup.horovod_wheel, "provide_horovod", lambda *_: (_ for _ in ()).throw(setup.SetupError("no compiler"))
        )
        with pytest.raises(setup.SetupError):
            setup.provide_environment(sys.executable, HERE)
    ran.clear()
    setup.provide_environment(sys.executable, HERE)
    assert "loading Horovod" in ran
    assert not any(label.startswith("making") for label in ran)


def test_the_wheel_depends_on_python_versions_and_flags(setup: ModuleType, tree: Path) -> None:
    one = setup.horovod_wheel.wheel_folder((3, 11, 7))
    assert one == setup.horovod_wheel.wheel_folder((3, 11, 2)), "a patch release changes nothing for it"
    assert one != setup.horovod_wheel.wheel_folder((3, 12, 1))
    for version in (setup.horovod_wheel.locked("tensorflow"), setup.horovod_wheel.horovod_pin().partition("==")[2]):
        assert version in one
    setup.horovod_wheel.HOROVOD_FLAGS["HOROVOD_WITH_MPI"] = "1"
    assert one != setup.horovod_wheel.wheel_folder((3, 11, 7))


def test_a_kept_wheel_that_does_not_load_is_built_again(
    setup: ModuleType, ran: list[str], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(setup.horovod_wheel.wheel_folder(HERE))
    folder.mkdir(parents=True)
    (folder / "horovod.whl").touch()
    run, failures = setup.tools.run, iter([True, False])

    def fails_once(label: str, *args: Any) -> None:
        run(label, *args)
        if label.startswith("loading") and next(failures):
            raise setup.SetupError("undefined symbol")

    monkeypatch.setattr(setup.tools, "run", fails_once)
    setup.horovod_wheel.provide_horovod(setup.VENV, HERE)
    assert [label.split()[0] for label in ran] == ["installing", "loading", "compiling", "installing", "loading"]


def test_a_wheel_that_has_loaded_is_not_loaded_again(setup: ModuleType, ran: list[str], tree: Path) -> None:
    setup.horovod_wheel.provide_horovod(setup.VENV, HERE)
    assert [label.split()[0] for label in ran] == ["compiling", "installing", "loading"]
    setup.horovod_wheel.provide_horovod(setup.VENV, HERE)
    assert [label.split()[0] for label in ran[3:]] == ["installing"]


def test_a_set_up_beside_another_does_not_wait_while_that_loads_the_wheel(
    setup: ModuleType, ran: list[str], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = Path(setup.horovod_wheel.wheel_folder(HERE)), setup.tools.run

    def looks(label: str, *args: Any) -> None:
        run(label, *args)
        with open(f"{folder}.lock", "w") as lock:
            if not label.startswith("compiling"):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(setup.tools, "run", looks)
    setup.horovod_wheel.provide_horovod(setup.VENV, HERE)
    assert [label.split()[0] for label in ran] == ["compiling", "installing", "loading"]


def test_a_set_up_beside_another_waits_for_its_wheel(
    setup: ModuleType, ran: list[str], tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(setup.horovod_wheel.wheel_folder(HERE))
    folder.parent.mkdir(parents=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        beside = threading.Thread(target=setup.horovod_wheel.provide_horovod, args=(setup.VENV, HERE))
        beside.start()
        eventually(lambda: "waiting for another clone" in capsys.readouterr().out, "it waits")
        assert ran == []
        folder.mkdir()
        (folder / "horovod.whl").touch()
    beside.join()
    assert [label.split()[0] for label in ran] == ["installing", "loading"]


def test_without_a_compiler_and_a_kept_wheel_set_up_says_so(
    setup: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.horovod_wheel, "lacking", lambda section: {"g++": "Horovod cannot be compiled"})
    with pytest.raises(setup.SetupError, match=r"g\+\+"):
        setup.horovod_wheel.build_horovod(setup.VENV, setup.horovod_wheel.wheel_folder(HERE))


def test_pip_is_given_none_of_the_settings_that_lead_it_elsewhere(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "VIRTUAL_ENV", "HOROVOD_GPU_OPERATIONS"):
        monkeypatch.setenv(name, "elsewhere")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    env = setup.tools.environment("/an env")
    assert "elsewhere" not in env.values()
    assert env["HTTPS_PROXY"] == "http://127.0.0.1:3128"
    assert env["PATH"].startswith("/an env/bin:")


def test_a_failed_step_shows_the_end_of_its_log_and_where_it_is(setup: ModuleType, tmp_path: Path) -> None:
    log = str(tmp_path / "setup.log")
    code = "import sys; print('the reason'); sys.exit(3)"
    with pytest.raises(setup.SetupError, match="the reason") as caught:
        setup.tools.run("installing", [sys.executable, "-c", code], log)
    assert log in str(caught.value)


# ------------------------------------------------------------------------------------------------- system packages


@pytest.fixture
def bare(setup: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the machine one that has no compiler and no ssh, and whose apt nobody calls; the user is an ordinary one."""
    found = lambda name, path=None: "/usr/bin/apt-get" if name == "apt-get" else None  # noqa: E731
    monkeypatch.setattr(setup.shutil, "which", found)
    monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)


def test_what_is_vital_and_missing_stops_set_up_with_the_one_command_to_run(
    setup: ModuleType, bare: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(setup.SetupError, match="g\\+\\+"):
        setup.provide_all(with_tests=False)
    (command,) = re.findall("sudo python3.*", capsys.readouterr().out)
    assert command == "sudo python3 scripts/system.py g++ make openssh-client openssh-server"


def test_a_missing_sshd_is_a_warning_and_no_compiler_is_needed_where_a_wheel_is_kept(
    setup: ModuleType, bare: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(setup.horovod_wheel.wheel_folder(HERE)).mkdir(parents=True)
    monkeypatch.setattr(setup.tools, "find_python", lambda wanted: (sys.executable, HERE))
    monkeypatch.setattr(setup, "provide_environment", lambda *_: None)
    setup.provide_all(with_tests=False)
    assert "parameter servers can" in capsys.readouterr().out


def test_root_installs_what_is_missing(
    setup: ModuleType, bare: None, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.os, "geteuid", lambda: 0)
    assert set(setup.provide_system("needed")) == {"g++", "make", "openssh-client", "openssh-server"}, (
        "nothing was really installed"
    )
    assert ran == ["installing g++, make, openssh-client, openssh-server"]


def test_what_only_tests_need_is_installed_or_said_to_be_missing(
    setup: ModuleType, bare: None, ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.provide_system("tests")
    assert ran == [], "an ordinary user"
    assert "chromium is missing: without it the tests in real notebooks are skipped" in capsys.readouterr().out
    monkeypatch.setattr(setup.os, "geteuid", lambda: 0)
    setup.provide_system("tests")
    packages = "chromium, iptables, libmpich-dev, libopenmpi-dev, mpich, netavark, openmpi-bin, podman"
    assert ran == [f"installing aardvark-dns, catatonit, {packages}, python3-torch, runc"]


@pytest.fixture
def policy(system: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy-rc.d"
    monkeypatch.setattr(system, "POLICY", str(path))
    return path


@pytest.mark.parametrize("before", [None, "#!/bin/sh\nexit 0\n"])
def test_no_service_starts_while_packages_are_installed(system: ModuleType, policy: Path, before: str | None) -> None:
    if before:
        policy.write_text(before)
    with pytest.raises(OSError, match="interrupted"), system.services_stay_down():
        assert subprocess.call([policy]) == 101
        raise OSError("interrupted")
    assert (policy.read_text() if policy.exists() else None) == before
    assert list(policy.parent.glob("policy-rc.d.*")) == []


def test_a_policy_left_by_a_killed_set_up_is_not_taken_for_the_machines_own(system: ModuleType, policy: Path) -> None:
    policy.write_text(system.POLICY_TEXT)
    with system.services_stay_down():
        pass
    assert not policy.exists()


def test_the_package_lists_are_fetched_only_when_the_first_try_fails(
    system: ModuleType, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def call(argv: list[str], **_: Any) -> int:
        commands.append(argv)
        return 0

    monkeypatch.setattr(system.subprocess, "call", call)
    system.install(["g++"])
    assert [("install" in argv, "update" in argv) for argv in commands] == [(True, False)]


def test_sshd_is_installed_without_being_enabled(
    system: ModuleType, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def call(argv: list[str], **_: Any) -> int:
        commands.append(argv)
        return 0

    monkeypatch.setattr(system.subprocess, "call", call)
    monkeypatch.setattr(system.shutil, "which", lambda name, path=None: name)
    system.install(["openssh-server"])
    assert [argv[0] for argv in commands[1:]] == ["update-rc.d", "deb-systemd-helper", "systemctl"]
    assert all("disable" in argv for argv in commands[1:])
