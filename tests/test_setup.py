"""Set-up makes what is missing, once, and says what a person has to do."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import eventually

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """Give fresh copies of scripts/setup.py and scripts/horovod_wheel.py, whose constants a test may change."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    names = ("setup", "horovod_wheel")
    kept = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    setup, horovod = map(import_module, names)
    yield setup, horovod
    for name in names:
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.fixture
def setup(parts: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Point set-up at a folder and a cache of its own, whose paths have spaces, with the real declarations in it."""
    module = parts[0]
    root = tmp_path / "a folder"
    (root / "scripts").mkdir(parents=True)
    for name in (*module.MADE_FROM, "scripts/system.cfg"):
        shutil.copy(ROOT / name, root / name)
    monkeypatch.setattr(module, "ROOT", str(root))
    monkeypatch.setattr(module, "VENV", str(root / ".venv"))
    monkeypatch.setattr(module, "VENV_TF1", str(root / ".venv-tf1"))
    monkeypatch.setattr(module, "CACHE", str(tmp_path / "a cache"))
    monkeypatch.setattr(module.sys, "argv", ["setup.py"])
    return module


@pytest.fixture
def horovod(
    parts: tuple[ModuleType, ModuleType], setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    monkeypatch.setattr(parts[1], "CACHE", setup.CACHE)
    monkeypatch.setattr(parts[1], "tensorflow", lambda: "2.18.1")
    return parts[1]


@pytest.fixture
def ran(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect what set-up would run, each by its first argument that tells, and make environments' folders alone."""
    commands: list[str] = []

    def call(argv: list[str], **_: Any) -> int:
        commands.append(next(word for word in argv[1:] if word in TELLING or word.endswith((".py", ".sh"))))
        if commands[-1] == "venv":
            (Path(argv[-1]) / "bin").mkdir(parents=True, exist_ok=True)
            (Path(argv[-1]) / "bin" / "python").touch()
        return 0

    monkeypatch.setattr(setup.subprocess, "call", call)
    monkeypatch.setattr(setup, "provide_uv", lambda: "uv")
    monkeypatch.setattr(setup, "lacking", lambda section: {})
    return commands


TELLING = ("venv", "sync", "install", "compile")
ALL = ["venv", "sync", "install", "horovod_wheel.py"]


@pytest.fixture
def set_up(setup: ModuleType, ran: list[str]) -> Any:
    """Set up, and return what that ran."""

    def do() -> list[str]:
        ran.clear()
        setup.main()
        return [Path(word).name for word in ran]

    return do


# ---------------------------------------------------------------------------------------------------- which Python


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


def test_a_python_that_does_not_fit_has_uv_look_for_one_that_does(
    setup: ModuleType, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(setup, "make_environment", lambda prefix, python, *_: asked.append(python))
    setup.provide_environment()
    monkeypatch.setattr(setup.sys, "version_info", (3, 8, 18, "final", 0))
    setup.provide_environment()
    assert asked == [sys.executable, ">=3.10,<=3.12.99"]


def test_a_version_of_python_is_found_where_pyenv_has_it_though_its_shim_runs_nothing(
    parts: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = parts[0]
    if not Path(setup.CACHE, setup.UV.replace("==", "-"), "bin", "uv").exists():
        pytest.skip("there is no uv, which set-up brings")
    version = "{}.{}".format(*sys.version_info)
    shim, there = tmp_path / "shims" / f"python{version}", tmp_path / "pyenv" / "versions" / version / "bin"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    there.mkdir(parents=True)
    (there / f"python{version}").symlink_to(Path(sys.base_prefix, "bin", f"python{version}"))
    monkeypatch.setenv("PATH", f"{shim.parent}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert setup.find_python(version)
    assert setup.find_python("3.7") is None


# ---------------------------------------------------------------------------------------------------- the environment


def test_a_second_set_up_runs_nothing(set_up: Any) -> None:
    assert set_up() == ALL
    assert set_up() == []


@pytest.mark.parametrize("name", ["setup.cfg", "requirements.lock", "scripts/setup.py", "scripts/horovod_wheel.py"])
def test_what_is_declared_anew_is_installed(set_up: Any, setup: ModuleType, name: str) -> None:
    set_up()
    with open(Path(setup.ROOT, name), "a") as file:
        file.write("\n# a change\n")
    assert set_up() == ALL


def test_a_folder_that_was_moved_gets_an_environment_of_its_own(
    set_up: Any, setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up()
    moved = Path(setup.ROOT).rename(Path(setup.ROOT).with_name("another folder"))
    monkeypatch.setattr(setup, "ROOT", str(moved))
    monkeypatch.setattr(setup, "VENV", str(moved / ".venv"))
    assert set_up() == ALL


def test_an_environment_whose_python_is_gone_is_made_anew(set_up: Any, setup: ModuleType) -> None:
    set_up()
    Path(setup.VENV, "bin", "python").unlink()
    assert set_up() == ALL


def test_a_set_up_that_failed_is_not_taken_for_finished(
    set_up: Any, setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = setup.subprocess.call
    with monkeypatch.context() as broken:
        broken.setattr(setup.subprocess, "call", lambda argv, **more: call(argv, **more) or int("sync" in argv))
        with pytest.raises(SystemExit, match=r"installing into \.venv failed.*docs/installation\.md"):
            set_up()
    assert set_up() == ALL


def test_a_set_up_beside_another_says_that_it_waits_and_finds_all_done(
    set_up: Any, setup: ModuleType, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    os.makedirs(setup.CACHE)
    with open(Path(setup.CACHE, "setup.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        beside = threading.Thread(target=setup.main)
        beside.start()
        eventually(lambda: "waiting for another set-up" in capsys.readouterr().out, "it waits")
        assert ran == []
        setup.provide_environment()
    beside.join()
    assert [Path(word).name for word in ran] == ALL, "once"


def test_who_has_everything_waits_for_nobody(set_up: Any, setup: ModuleType) -> None:
    set_up()
    with open(Path(setup.CACHE, "setup.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert set_up() == []


def test_the_old_tensorflow_is_pinned_and_tests_without_it_skip(
    set_up: Any, setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", requirement) for requirement in setup.TF1)
    monkeypatch.setattr(setup.sys, "argv", ["setup.py", "--tests"])
    monkeypatch.setattr(setup, "find_python", lambda version: None)
    assert set_up() == ALL
    assert "the tests with TensorFlow 1.15 will be skipped" in capsys.readouterr().out
    monkeypatch.setattr(setup, "find_python", lambda version: sys.executable)
    assert set_up() == ["venv", "install"]
    assert set_up() == []


def test_half_an_old_tensorflow_is_removed(
    set_up: Any, setup: ModuleType, ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = setup.subprocess.call
    monkeypatch.setattr(setup, "find_python", lambda version: sys.executable)
    monkeypatch.setattr(setup.subprocess, "call", lambda argv, **more: call(argv, **more) or int("install" in argv))
    setup.provide_tf1()
    assert not Path(setup.VENV_TF1).exists()
    assert "the tests with TensorFlow 1.15 will be skipped" in capsys.readouterr().out


def test_the_lock_is_written_with_all_extras_but_the_compiled_one_and_the_one_for_gpus(
    set_up: Any, setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.sys, "argv", ["setup.py", "--lock"])
    assert set_up() == ["compile"]
    named = setup.extras(setup.NOT_LOCKED)[1::2]
    assert {"tensorflow", "horovod-build", "docs"} <= set(named)
    assert not {"gpu", "horovod"} & set(named)


def test_pip_and_uv_are_given_none_of_the_settings_that_lead_them_elsewhere(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "VIRTUAL_ENV", "HOROVOD_GPU_OPERATIONS"):
        monkeypatch.setenv(name, "elsewhere")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    monkeypatch.setenv("PIP_INDEX_URL", "file:///a/mirror")
    env = setup.environment()
    assert "elsewhere" not in env.values()
    assert env["HTTPS_PROXY"] == "http://127.0.0.1:3128"
    assert env["UV_DEFAULT_INDEX"] == "file:///a/mirror"


# ---------------------------------------------------------------------------------------------------- Horovod's wheel


@pytest.fixture
def built(horovod: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the labels of what Horovod's set-up runs, and make an empty file instead of a wheel."""
    labels: list[str] = []

    def run(label: str, argv: list[str], **_: str) -> None:
        labels.append(label.split()[0])
        if "wheel" in argv:
            assert " " not in argv[0], "the build splits paths at spaces"
            (Path(argv[argv.index("-w") + 1]) / "horovod.whl").touch()

    monkeypatch.setattr(horovod, "run", run)
    monkeypatch.setattr(horovod, "lacking", lambda section: {})
    monkeypatch.setattr(horovod.sys, "prefix", "/an environment")
    return labels


def test_horovod_is_compiled_loaded_and_kept(horovod: ModuleType, built: list[str]) -> None:
    folder = Path(horovod.wheel_folder())
    horovod.build(str(folder))
    assert built == ["compiling", "installing", "loading"]
    assert list(folder.parent.iterdir()) == [folder]
    assert list(folder.glob("*.whl"))


def test_a_wheel_that_does_not_load_is_not_kept(
    horovod: ModuleType, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = horovod.run

    def fails(label: str, argv: list[str], **more: str) -> None:
        run(label, argv, **more)
        if label.startswith("loading"):
            raise horovod.SetupError("undefined symbol")

    monkeypatch.setattr(horovod, "run", fails)
    folder = Path(horovod.wheel_folder())
    with pytest.raises(SystemExit, match="undefined symbol"):
        horovod.build(str(folder))
    assert list(folder.parent.iterdir()) == []


def test_the_wheel_depends_on_python_versions_and_flags(horovod: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod.sys, "version_info", (3, 11, 7))
    one = horovod.wheel_folder()
    monkeypatch.setattr(horovod.sys, "version_info", (3, 11, 2))
    assert one == horovod.wheel_folder(), "a patch release changes nothing for it"
    for version in ("cp311", "tensorflow2.18.1", horovod.requirement().replace("==", "")):
        assert version in one
    others = {one}
    monkeypatch.setattr(horovod, "tensorflow", lambda: "2.18.0")
    others.add(horovod.wheel_folder())
    monkeypatch.setitem(horovod.FLAGS, "HOROVOD_WITH_MPI", "1")
    others.add(horovod.wheel_folder())
    assert len(others) == 3


def test_without_a_compiler_and_a_kept_wheel_horovods_set_up_says_so(
    horovod: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horovod, "lacking", lambda section: {"g++": "Horovod cannot be compiled"})
    with pytest.raises(SystemExit, match=r"first run: apt-get install g\+\+ make \(as root\)"):
        horovod.build(horovod.wheel_folder())


def test_without_tensorflow_horovods_set_up_says_what_to_do_first(
    parts: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    horovod = parts[1]

    def nowhere(name: str) -> str:
        raise horovod.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(horovod.importlib.metadata, "version", nowhere)
    with pytest.raises(SystemExit, match=r"has no TensorFlow; first run: pip install '\.\[tensorflow,horovod-build\]'"):
        horovod.wheel_folder()


# ------------------------------------------------------------------------------------------------- system packages


@pytest.fixture
def bare(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Make the machine one that has apt, and neither compiler nor ssh, for an ordinary user; give what is run."""
    commands: list[list[str]] = []
    found = lambda name, path=None: "/usr/bin/apt-get" if name == "apt-get" else None  # noqa: E731
    monkeypatch.setattr(setup.shutil, "which", found)
    monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)

    def fails(argv: list[str], **_: Any) -> int:
        commands.append(argv)
        return 1

    monkeypatch.setattr(setup.subprocess, "call", fails)
    return commands


def test_what_is_vital_and_missing_stops_set_up_with_the_one_command_to_run(
    setup: ModuleType, bare: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="g\\+\\+"):
        setup.main()
    (command,) = re.findall("sudo .*", capsys.readouterr().out)
    assert command == "sudo bash scripts/system.sh g++ make openssh-client openssh-server"
    assert bare == [], "nothing is run for an ordinary user"


def test_a_python_that_can_make_no_environment_is_missing_a_package(
    setup: ModuleType, bare: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None)
    assert "python{}.{}-venv".format(*sys.version_info) in setup.lacking("needed")


def test_no_compiler_is_needed_where_a_wheel_is_kept(
    setup: ModuleType, bare: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = Path(setup.CACHE, "wheels", "cp311", "horovod.whl")
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    monkeypatch.setattr(setup, "make_environment", lambda *_: None)
    setup.provide_environment()
    assert "openssh-server is missing: without it MPI runs cannot start" in capsys.readouterr().out


def test_root_installs_what_is_missing_and_says_so(
    setup: ModuleType, bare: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup.os, "geteuid", lambda: 0)
    assert "g++" in setup.provide_system("needed"), "nothing was really installed"
    assert bare == [["bash", "scripts/system.sh", "g++", "make", "openssh-client", "openssh-server"]]
    assert "installing system packages: g++, make, openssh-client, openssh-server" in capsys.readouterr().out


def test_what_only_tests_need_is_said_to_be_missing(
    setup: ModuleType, bare: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    setup.provide_system("tests")
    assert "chromium is missing: without it the tests in real notebooks are skipped" in capsys.readouterr().out


@pytest.fixture
def apt(tmp_path: Path) -> Any:
    """Run scripts/system.sh with an apt-get that tells what it was asked, and with a policy in a folder of its own."""
    policy, log = tmp_path / "policy-rc.d", tmp_path / "log"
    script = (ROOT / "scripts" / "system.sh").read_text().replace("/usr/sbin/policy-rc.d", str(policy))
    for program in ("apt-get", "systemctl"):
        path = tmp_path / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'#!/bin/sh\n{policy}; echo "$? {program} $*" >> {log}\n[ "$1" = disable ] || exit ${{FAILS:-0}}\n'
        )
        path.chmod(0o755)

    def install(*packages: str, fails: int = 0) -> list[str]:
        env = {"PATH": f"{tmp_path / 'bin'}:{os.defpath}", "FAILS": str(fails)}
        done = subprocess.run(["bash", "-c", script, "system.sh", *packages], env=env, capture_output=True, text=True)
        assert done.returncode == fails, done.stderr
        return log.read_text().splitlines()

    install.policy = policy  # type: ignore[attr-defined]
    return install


def test_no_service_starts_while_packages_are_installed(apt: Any) -> None:
    update, install = apt("g++", "make")
    assert update.startswith("101 apt-get")
    assert update.endswith(" update")
    assert install.startswith("101 apt-get")
    assert install.endswith(" install --no-install-recommends g++ make")
    assert not apt.policy.exists()


def test_a_policy_goes_when_the_installation_fails(apt: Any) -> None:
    apt("g++", fails=100)
    assert not apt.policy.exists()


@pytest.mark.parametrize("whose", ["the machine's", "Muster's"])
def test_a_policy_of_the_machines_stays_and_one_left_by_a_killed_set_up_goes(apt: Any, whose: str) -> None:
    apt.policy.write_text(f"#!/bin/sh\n# {whose}\nexit 101\n")
    apt.policy.chmod(0o755)
    apt("g++")
    assert apt.policy.exists() is (whose == "the machine's")


def test_sshd_is_installed_without_being_enabled(apt: Any) -> None:
    assert apt("openssh-client", "openssh-server")[-1].endswith("systemctl disable ssh.socket ssh.service")
