"""Declarations are made once, pinned and justified; and the commands do what they are said to do."""

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import packages_distributions
from pathlib import Path

import muster
import pytest
import yaml
from packaging.requirements import Requirement

from tests.support import tracked_files

ROOT = Path(__file__).resolve().parent.parent

# Compiled against the TensorFlow of the environment, so conda's list of packages cannot have it; see environment.yml.
COMPILED = {"horovod"}


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


def test_conda_and_set_up_make_a_python_that_muster_supports() -> None:
    requires = config()["options"]["python_requires"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    conda_python = Requirement(conda["dependencies"][0].replace("=", "=="))
    supported = Requirement("python" + requires).specifier
    assert all(f"{spec.version}.0" in supported for spec in conda_python.specifier)
    (line,) = re.findall(r"^SUPPORTED = (.*)", (ROOT / "scripts" / "setup.py").read_text(), re.MULTILINE)
    supported_by_set_up = list(ast.literal_eval(line))
    assert [f"3.{minor}" for minor in range(6, 20) if f"3.{minor}.0" in supported] == supported_by_set_up


TOOLS = ("benchmarks", "notebooks", "scripts", "tests")  # what is not installed, but run in a clone


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not know which package many modules are of")
@pytest.mark.parametrize("folders", [("sdk/muster",), TOOLS])
def test_what_is_imported_is_declared_rather_than_brought_by_something_else(folders: tuple[str, ...]) -> None:
    declared = {Requirement(split(line)[0]).name.lower() for line in SETUP_LINES}
    distributions = packages_distributions()
    imported: dict[str, str] = {}
    own = {"muster", "agent"}  # what workers unpack
    if folders == TOOLS:
        own |= {*TOOLS, "torch"}  # the system's, or the user's
        own |= {path.stem for folder in (*TOOLS, "worker_scripts") for path in (ROOT / folder).rglob("*.py")}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0]: path.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported[node.module.partition(".")[0]] = path.name
    of_others = imported.keys() - sys.stdlib_module_names - own
    by_name = {name: {each.lower().replace("_", "-") for each in distributions.get(name, [name])} for name in of_others}
    assert len(by_name) > 15
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
    metadata = next(target.glob("muster-*.dist-info/METADATA")).read_text(encoding="utf-8")
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert (target / "muster" / "dashboard" / "web" / "widget.js").exists()
    program = (
        "import muster; print(muster.__file__); muster.run_cluster(1, strategy='processes', worker_script='job.py')"
    )
    (empty / "job.py").write_text("print('works')\n")
    environment = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-c", program], cwd=empty, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(target))


ABSENT = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name.partition(".")[0] in {absent} else find(name, *where)
"""
MAIN = "from muster.commands.main import main; main({})"
CHECK = "from muster.platforms import platform_class; platform_class({!r})({}).check()"
# What needs the packages of each extra first.
NEEDS = {
    "trust": {"paramiko": MAIN.format(["trust", "some-host"])},
    "serve": dict.fromkeys(
        ("IPython", "fastapi", "h11", "pydantic", "requests", "starlette", "uvicorn"), MAIN.format(["serve"])
    ),
    "workbench": dict.fromkeys(("requests", "urllib3"), CHECK.format("workbench", "")),
    "containers": dict.fromkeys(("docker", "requests"), CHECK.format("containers", "")),
    "kubernetes": {
        "yaml": CHECK.format("kubernetes", "image='i'"),
        "urllib3": "from muster.platforms.kubernetes import client; client.make_pool(None, None)",
        "websocket": "import socket; from muster.platforms.kubernetes.exec_stream import ExecStream\n"
        "ExecStream(socket.socket())",
    },
    "demo": {"psutil": "import muster.commands.demo"},
    "notebook": {"IPython": "import muster; muster.launch_workers(1, cpu=1, memory=1, code='!ls')"},
    "tensorflow": {
        "keras": "from muster.training import keras",
        "tensorflow": "import muster.training.communication",
        "numpy": "from muster.training.checkpoint import Checkpoint",
        "tensorboard": "import muster; muster.tensorboard('logs')",
    },
}
FOR_DEVELOPERS = {"bench", "browser", "docs", "horovod-build", "test"}
OTHERWISE = {"gpu": "in place of tensorflow", "horovod": "compiled by scripts/horovod_wheel.py"}
KUBECONFIG = """
clusters: [{name: some, cluster: {server: 'http://127.0.0.1:9'}}]
contexts: [{name: some, context: {cluster: some}}]
current-context: some
"""


def test_each_extra_for_users_has_a_package_that_may_be_missing() -> None:
    assert set(NEEDS) | FOR_DEVELOPERS | set(OTHERWISE) == set(setup_cfg()) - {""}


@pytest.mark.parametrize(("extra", "missing"), [(extra, missing) for extra in NEEDS for missing in NEEDS[extra]])
def test_what_is_not_installed_names_the_command_that_installs_it(
    extra: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    program = ABSENT.format(absent={missing}) + NEEDS[extra][missing]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0
    assert f"pip install 'muster[{extra}]'" in done.stderr


def test_a_worker_which_has_no_muster_to_extend_is_told_the_package_itself(tmp_path: Path) -> None:
    package = tmp_path / "muster"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copytree(ROOT / "sdk" / "muster" / "training", package / "training")
    program = ABSENT.format(absent={"keras"}) + "from muster.training import keras"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    said = f"ModuleNotFoundError: No module named 'keras'. Try: {sys.executable} -m pip install keras"
    assert done.stderr.splitlines()[-1] == said


def test_the_demo_says_in_words_what_it_lacks() -> None:
    run = "import runpy; runpy.run_module('muster.commands.demo', run_name='__main__')"
    program = f"import sys; sys.modules['psutil'] = None\n{run}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "pip install 'muster[demo]'" in done.stderr


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
    program = ABSENT.format(absent=absent) + MAIN.format(arguments)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_pyproject_holds_the_build_system_and_the_linters_only() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tables = re.findall(r"^\[+([\w-]+)(?:\.([\w-]+))?", text, re.MULTILINE)
    assert {".".join(filter(None, table)) for table in tables} == {"build-system", "tool.ruff", "tool.mypy", "tool.uv"}


def make(*targets: str) -> str:
    """Ask make what it would run."""
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", *targets], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="there is no make here")


@needs_make
@pytest.mark.parametrize(
    ("target", "commands"),
    [
        ("setup", ["scripts/setup.py"]),
        ("demo", ["scripts/setup.py", ".venv/bin/python -m muster.commands.demo"]),
        ("test", ["scripts/setup.py --tests", ".venv/bin/python -m pytest -n 4"]),
        ("check", ["scripts/setup.py", "ruff check", "ruff format --check", "mypy", "pytest -n 4", '-m "not slow"']),
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


@needs_make
def test_the_engine_that_builds_an_image_can_be_said() -> None:
    planned = make("image", "ENGINE=podman", "ARGS=--tag mine")
    assert planned == '"podman" build --tag muster-worker --tag mine containers\n'


def test_ci_runs_the_very_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if not line.startswith("#")]
    assert commands[1].startswith("cd "), "from wherever it is called"
    made = [command.partition(" ||")[0] for command in commands]  # what cannot be built leaves tests that skip
    assert made[2:7] == ["make lint", "make docs", "make kubernetes", "make worker-image", "make test"]
    assert made[7:9] == ["make elsewhere", "make horovod-by-agents"]
    assert made[9:11] == ["make demo", "make matrix"], "which runs the tests of installations, too"
    assert commands[-1].startswith('exec make chaos ARGS="-n 100 --seed ')


def test_the_command_muster_is_the_cli() -> None:
    assert config()["options.entry_points"]["console_scripts"].strip() == "muster = muster.__main__:main"
