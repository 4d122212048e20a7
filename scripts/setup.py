"""Set up everything that `make demo` and `make test` need; do nothing when it is there already.

    python3 scripts/setup.py              .venv with Muster, TensorFlow, Horovod and the tools
    python3 scripts/setup.py --tests      and what only tests need: .venv-tf1 with TensorFlow 1.15, where there is a
                                          Python 3.7, and the packages under [tests] in scripts/system.cfg
    python3 scripts/setup.py --horovod    Horovod alone, into the Python that runs this (a conda environment)
    python3 scripts/setup.py --lock       write requirements.lock anew from setup.cfg

uv makes the environments; set-up brings uv (tools.py), system packages (system.py) and Horovod, which has to be
compiled (horovod_wheel.py).
"""

import argparse
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from typing import Dict, List, Tuple

import horovod_wheel
import tools
from system import lacking
from tools import SetupError

VENV = os.path.join(tools.ROOT, ".venv")
VENV_TF1 = os.path.join(tools.ROOT, ".venv-tf1")
PARTS = ("setup.py", "tools.py", "horovod_wheel.py")
STAMP = "muster-setup"  # in each environment: the folder it was made for, and a hash of what it was made from

SUPPORTED = ((3, 12), (3, 11), (3, 10))  # in order of preference, when `python3` itself is none of them
# All but gpu, which is in place of tensorflow, and horovod, which is compiled.
EXTRAS = (
    "workbench", "containers", "kubernetes",
    "trust", "serve", "notebook", "tensorflow", "horovod-build", "demo", "test", "browser",
    "docs", "bench",
)  # fmt: skip

# What TensorFlow 1.15 needs beside it on Python 3.7, where it would otherwise be given releases that break it.
TF1 = (
    "tensorflow==1.15.5",  # the last of the 1.x line, the one CDSW's users still have
    "h5py==2.10.0",  # Keras of that time reads strings as h5py 2 gives them
    "numpy==1.18.5",  # the last that TensorFlow 1.15.5 accepts
    "protobuf==3.20.3",  # 3.21 refuses the code that TensorFlow 1.15 was generated with
)


def provide_system(section: str) -> Dict[str, str]:
    """Install what is missing of a section as root, or say how anybody else does. Returns what is still missing."""
    missing = lacking(section)
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        command = [sys.executable, tools.SYSTEM] + sorted(missing)
        os.makedirs(VENV, exist_ok=True)
        try:
            tools.run("installing {}".format(", ".join(sorted(missing))), command, tools.log_of(VENV))
        except SetupError as error:
            tools.say(str(error))
        missing = lacking(section)
    for package, lost in sorted(missing.items()):
        tools.say(f"{package} is missing: without it {lost}")
    if missing and shutil.which("apt-get"):
        tools.say("to install it, run:  sudo python3 scripts/system.py {}".format(" ".join(sorted(missing))))
    elif missing:
        tools.say("install it with this system's package manager (these are the names that Debian gives them)")
    return missing


def stamp_of(prefix: str) -> str:
    """Name the file that says what an environment was made from."""
    return os.path.join(prefix, STAMP)


def key_of(*parts: object) -> str:
    """Hash what an environment is made from: what is declared, set-up itself, and what is given."""
    digest = hashlib.sha256(repr(parts).encode())
    for name in ("setup.cfg", tools.LOCK, *(os.path.join("scripts", part) for part in PARTS)):
        with open(os.path.join(tools.ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def stamped(prefix: str) -> List[str]:
    """Read the stamp: the folder, then the key, or nothing where there is none."""
    if not os.path.exists(os.path.join(prefix, "bin", "python")):
        return []
    with contextlib.suppress(OSError), open(stamp_of(prefix)) as file:
        return file.read().splitlines()
    return []


def stamp(prefix: str, key: str) -> None:
    """Say, once all is done, what the environment was made from."""
    with open(stamp_of(prefix), "w") as file:
        file.write(f"{tools.ROOT}\n{key}\n")


def make_environment(uv: str, prefix: str, python: str, version: Tuple[int, int, int]) -> None:
    """Make an environment, or keep the one that is there if it is of the same Python and in the same place."""
    own = tools.version_of(os.path.join(prefix, "bin", "python"))
    # Its scripts name their interpreter by its full path: in a folder that was moved or copied none of them starts.
    moved = stamped(prefix)[:1] not in ([], [tools.ROOT])
    if own is None or own[:2] != version[:2] or moved:
        shutil.rmtree(prefix, ignore_errors=True)
        os.makedirs(prefix)
        label = "making {} with Python {}.{}.{}".format(os.path.basename(prefix), *version)
        make = [uv, "venv", "--no-project", "--allow-existing", "--python", python, prefix]
        tools.run(label, make, tools.log_of(prefix), tools.environment(prefix))
    stamp(prefix, "unfinished")


def provide_environment(python: str, version: Tuple[int, int, int]) -> None:
    """Make .venv as requirements.lock has it, unless it is."""
    key = key_of(version, tools.ROOT)
    if stamped(VENV) == [tools.ROOT, key]:
        return
    started = time.monotonic()
    uv = tools.provide_uv()
    make_environment(uv, VENV, python, version)
    into = ["--python", os.path.join(VENV, "bin", "python")]
    env = tools.environment(VENV)
    sync = [uv, "pip", "sync", "--require-hashes"] + into + [os.path.join(tools.ROOT, tools.LOCK)]
    tools.run("installing TensorFlow and the tools", sync, tools.log_of(VENV), env)
    install = [uv, "pip", "install", "--no-deps", "--no-build-isolation"] + into + ["-e", tools.ROOT]
    tools.run("installing Muster", install, tools.log_of(VENV), env)
    horovod_wheel.provide_horovod(VENV, version)
    stamp(VENV, key)
    tools.say(f"done in {time.monotonic() - started:.0f} s")


def write_lock() -> None:
    """Write requirements.lock anew, keeping the versions that it has where setup.cfg still allows them."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    # The oldest supported Python: what holds for it and the newer ones is marked with conditions.
    how = ["--quiet", "--universal", "--generate-hashes", "--no-header", "--python-version", "3.10"]
    uv = [tools.provide_uv(), "pip", "compile"] + how + extras + ["setup.cfg", "-o", tools.LOCK]
    subprocess.check_call(uv, cwd=tools.ROOT, env=tools.environment(VENV), stdout=subprocess.DEVNULL)


def provide_tf1() -> None:
    """Make .venv-tf1, a training interpreter of a user who has stayed on TensorFlow 1.15; optional."""
    found = tools.find_python([(3, 7)])
    if not found:
        tools.say("no Python 3.7 here: the tests with TensorFlow 1.15 will be skipped")
        return
    python, version = found
    key = key_of(version, tools.ROOT, TF1)
    if stamped(VENV_TF1) == [tools.ROOT, key]:
        return
    try:
        uv = tools.provide_uv()
        make_environment(uv, VENV_TF1, python, version)
        install = [uv, "pip", "install", "--python", os.path.join(VENV_TF1, "bin", "python")] + list(TF1)
        tools.run("installing TensorFlow 1.15", install, tools.log_of(VENV_TF1), tools.environment(VENV_TF1))
        stamp(VENV_TF1, key)
    except SetupError as error:
        # Half an environment would make tests fail, rather than skip.
        shutil.rmtree(VENV_TF1, ignore_errors=True)
        tools.say(f"{error}\nThe tests with TensorFlow 1.15 will be skipped.")


def provide_all(with_tests: bool) -> None:
    """Provide what `make demo` needs, and what `make test` needs beside that."""
    found = tools.find_python(SUPPORTED)
    if not found:
        raise SetupError(
            "Muster needs Python 3.10, 3.11 or 3.12, and found only {}.{}.{}. Install one, for example with "
            "`sudo apt-get install python3.11 python3.11-venv`, with pyenv, or with conda (environment.yml), "
            "and run the same command again.".format(*sys.version_info[:3])
        )
    python, version = found
    if {"g++", "make"} & set(provide_system("needed")) and not os.path.isdir(horovod_wheel.wheel_folder(version)):
        raise SetupError("cannot go on without g++; then run the same command again")
    provide_environment(python, version)
    if with_tests:
        provide_tf1()
        provide_system("tests")


def main() -> int:
    """Do what the arguments say, and turn what a person has to know into a line and an exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action="store_true", help="also provide what only tests need")
    parser.add_argument("--horovod", action="store_true", help="only build and install Horovod, into this Python")
    parser.add_argument("--lock", action="store_true", help="only write requirements.lock anew")
    args = parser.parse_args()
    try:
        # Two set-ups at once, from a terminal and an editor, would install into one another.
        with open(os.path.abspath(__file__)) as own:
            tools.lock(own, "another set-up to finish")
            if args.horovod:
                horovod_wheel.horovod_only()
            elif args.lock:
                write_lock()
            else:
                provide_all(args.tests)
    except (SetupError, subprocess.CalledProcessError) as error:
        print(f"\nset-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
