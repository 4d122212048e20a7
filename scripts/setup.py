"""Set up everything that `make demo` and `make test` need; do nothing when it is there already.

    python3 scripts/setup.py            .venv with Muster, TensorFlow, Horovod and the tools
    python3 scripts/setup.py --tests    and what only tests need: .venv-tf1 with TensorFlow 1.15, where there is a
                                        Python 3.7, and the packages under [tests] in scripts/system.cfg
    python3 scripts/setup.py --lock     write requirements.lock anew from setup.cfg

uv makes the environments, system.sh installs system packages, horovod_wheel.py compiles Horovod. This file keeps to the
standard library and the syntax of Python 3.6: it has to start on the Python that it finds.
"""

import argparse
import configparser
import fcntl
import glob
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from typing import IO, Dict, List, Optional, Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_TF1 = os.path.join(ROOT, ".venv-tf1")
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "muster")  # of all clones
LOCK = "requirements.lock"
MADE_FROM = ("setup.cfg", LOCK, "scripts/setup.py", "scripts/horovod_wheel.py")  # a change in them makes .venv anew
STAMP = "muster-setup"  # a file in each finished environment: what it was made from

UV = "uv==0.13.9"
SUPPORTED = ("3.10", "3.11", "3.12")
NOT_LOCKED = ("gpu", "horovod")  # extras: one is in place of tensorflow, the other is compiled

# What TensorFlow 1.15 needs beside it on Python 3.7, where it would otherwise be given releases that break it.
TF1 = (
    "tensorflow==1.15.5",  # the last of the 1.x line, the one CDSW's users still have
    "h5py==2.10.0",  # Keras of that time reads strings as h5py 2 gives them
    "numpy==1.18.5",  # the last that TensorFlow 1.15.5 accepts
    "protobuf==3.20.3",  # 3.21 refuses the code that TensorFlow 1.15 was generated with
)


class SetupError(SystemExit):
    """Ends set-up with what a person has to know or do before it can go on."""

    def __init__(self, text: str) -> None:
        super().__init__("set-up: " + text)


def say(text: str) -> None:
    """Print one line of progress at once, also into a pipe."""
    print("set-up: " + text, flush=True)


def run(label: str, argv: Sequence[str], **variables: str) -> None:
    """Say what is done and run the command, whose own output tells the progress and the error."""
    say(label)
    if subprocess.call(argv, cwd=ROOT, env=dict(environment(), **variables), stdin=subprocess.DEVNULL):
        offline = "if packages cannot be downloaded here, see docs/installation.md, Without internet"
        raise SetupError(f"{label} failed: see above; {offline}")


def environment() -> Dict[str, str]:
    """Give what pip and uv run with: the person's own variables, less those that would lead them astray."""
    astray = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")
    env = {k: v for k, v in os.environ.items() if k not in astray and not k.startswith("HOROVOD_")}
    env["UV_PYTHON_DOWNLOADS"] = "never"
    if "PIP_INDEX_URL" in env:  # uv does not read pip's settings
        env.setdefault("UV_DEFAULT_INDEX", env["PIP_INDEX_URL"])
    return env


def provide_system(section: str) -> Dict[str, str]:
    """Install what is missing of a section of system.cfg as root, or say how. Returns what is still missing."""
    missing = lacking(section)
    install = ["bash", os.path.join("scripts", "system.sh")] + sorted(missing)
    has_apt = shutil.which("apt-get")
    if missing and has_apt and os.geteuid() == 0:
        say("installing system packages: {}".format(", ".join(sorted(missing))))
        subprocess.call(install, cwd=ROOT)
        missing = lacking(section)
    for package, lost in sorted(missing.items()):
        say(f"{package} is missing: without it {lost}")
    if missing:
        with_apt = "to install what is missing, run:  sudo {}".format(" ".join(install))
        say(with_apt if has_apt else "install it with this system's package manager (these are Debian's names)")
    return missing


def lacking(section: str) -> Dict[str, str]:
    """Name the packages of a section of system.cfg that are not there, each with what goes without it."""
    config = configparser.ConfigParser(delimiters=("=",))
    config.read(os.path.join(ROOT, "scripts", "system.cfg"), encoding="utf-8")
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin:/sbin"
    missing = {}
    for package, line in config[section].items():
        programs, _, lost = line.partition("|")
        if not any(shutil.which(program.strip(), path=path) for program in programs.split(",")):
            missing[package] = lost.strip()
    if section == "needed" and not importlib.util.find_spec("ensurepip"):
        missing["python{}.{}-venv".format(*sys.version_info)] = "no environment can be made"
    return missing


def provide_uv() -> str:
    """Return the path of uv, installed once by pip into an environment of its own."""
    home = os.path.join(CACHE, UV.replace("==", "-"))
    if not os.path.exists(os.path.join(home, "bin", "uv")):
        partial = home + ".partial"
        run("making an environment for uv", [sys.executable, "-m", "venv", "--clear", partial])
        run("installing uv", [os.path.join(partial, "bin", "python"), "-m", "pip", "install", "-q", UV])
        os.rename(partial, home)
    return os.path.join(home, "bin", "uv")


def find_python(version: str) -> Optional[str]:
    """Find an interpreter of a version, such as 3.10: on PATH, or where pyenv has it."""
    # uv gives up at a shim of pyenv's that runs nothing.
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    folders = glob.glob(os.path.join(glob.escape(pyenv), "versions", "*", "bin"))
    env = dict(environment(), PATH=os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)]))
    find = [provide_uv(), "python", "find", "--no-project", "--system", version]
    found = subprocess.run(find, cwd=os.sep, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return found.stdout.decode().strip() or None


def hold(lock: IO[str]) -> None:
    """Lock a file until it is closed, since set-ups at the same time share a cache; say so where that means waiting."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("waiting for another set-up to finish")
        fcntl.flock(lock, fcntl.LOCK_EX)


def key_of(*parts: object) -> str:
    """Hash what an environment is made from: declarations, what is given, and the folder, which its scripts name."""
    digest = hashlib.sha256(repr((ROOT, parts)).encode())
    for name in MADE_FROM:
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def is_made(prefix: str, key: str) -> bool:
    """Say whether an environment is finished, and was made from what this key stands for."""
    try:
        with open(os.path.join(prefix, STAMP)) as file:
            return file.read() == key and os.path.exists(os.path.join(prefix, "bin", "python"))
    except OSError:
        return False


def make_environment(prefix: str, python: str, key: str, *steps: List[str]) -> None:
    """Make an environment anew and do these steps of `uv pip` in it; the packages come from uv's cache."""
    uv, name, own = provide_uv(), os.path.basename(prefix), os.path.join(prefix, "bin", "python")
    run(f"making {name}", [uv, "venv", "--quiet", "--no-project", "--clear", "--python", python, prefix])
    for verb, *arguments in steps:
        run(f"installing into {name}", [uv, "pip", verb, "--python", own, *arguments])
    if prefix == VENV and subprocess.call([own, os.path.join(ROOT, "scripts", "horovod_wheel.py")], env=environment()):
        raise SystemExit(1)  # it has said why
    with open(os.path.join(prefix, STAMP), "w") as file:
        file.write(key)


MUSTER = ["install", "--quiet", "--no-deps", "--no-build-isolation", "-e", ROOT]  # into what has setuptools


def provide_environment() -> None:
    """Make .venv as requirements.lock has it."""
    if "g++" in provide_system("needed") and not glob.glob(os.path.join(glob.escape(CACHE), "wheels", "*", "*.whl")):
        raise SetupError("cannot go on without g++; then run the same command again")
    own = "{}.{}".format(*sys.version_info)
    python = sys.executable if own in SUPPORTED else f">={SUPPORTED[0]},<={SUPPORTED[-1]}.99"
    make_environment(VENV, python, key_of(), ["sync", "--require-hashes", LOCK], MUSTER)


def provide_tf1() -> None:
    """Make .venv-tf1, a training interpreter of a user who has stayed on TensorFlow 1.15; optional."""
    key = key_of(TF1)
    if is_made(VENV_TF1, key):
        return
    python = find_python("3.7")
    if python is None:
        return say("no Python 3.7 here: the tests with TensorFlow 1.15 will be skipped")
    try:
        make_environment(VENV_TF1, python, key, ["install", *TF1])
    except SetupError as error:
        shutil.rmtree(VENV_TF1, ignore_errors=True)  # half an environment would make tests fail, rather than skip
        print(error)
        say("the tests with TensorFlow 1.15 will be skipped")


def write_lock() -> None:
    """Write requirements.lock anew, keeping the versions that it has where setup.cfg still allows them."""
    # The oldest supported Python: what holds for it and the newer ones is marked with conditions.
    how = ["--quiet", "--universal", "--generate-hashes", "--no-header", "--python-version", SUPPORTED[0]]
    run(f"writing {LOCK}", [provide_uv(), "pip", "compile", *how, *extras(NOT_LOCKED), "setup.cfg", "-o", LOCK])


def extras(but: Sequence[str]) -> List[str]:
    """Give uv's options for all extras of setup.cfg but these."""
    config = configparser.ConfigParser()
    config.read(os.path.join(ROOT, "setup.cfg"), encoding="utf-8")
    return [word for extra in config["options.extras_require"] if extra not in but for word in ("--extra", extra)]


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action="store_true", help="also provide what only tests need")
    parser.add_argument("--lock", action="store_true", help="only write requirements.lock anew")
    args = parser.parse_args()
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, "setup.lock"), "w") as lock:
        if args.lock or not is_made(VENV, key_of()) or (args.tests and not is_made(VENV_TF1, key_of(TF1))):
            hold(lock)
        if args.lock:
            write_lock()
        elif not is_made(VENV, key_of()):
            provide_environment()
        if args.tests:
            provide_tf1()
            provide_system("tests")


if __name__ == "__main__":
    main()
