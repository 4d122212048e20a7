"""Set up everything that `make demo` and `make test` need; do nothing when it is there already.

    python3 scripts/setup.py              .venv with Muster, TensorFlow, Horovod and the tools
    python3 scripts/setup.py --tests      and what only tests need: .venv-tf1 with TensorFlow 1.15, where there is a
                                          Python 3.7, and the packages under [tests] in scripts/system.cfg
    python3 scripts/setup.py --horovod    Horovod alone, into the Python that runs this (a conda environment)
    python3 scripts/setup.py --lock       write requirements.lock anew from setup.cfg

uv makes the environments; this script brings uv, system packages and Horovod, which has to be compiled. It needs
nothing but the standard library, and keeps to the syntax of Python 3.6, so that on one that is too old it can say which
it needs.
"""

import argparse
import contextlib
import fcntl
import glob
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from system import lacking

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_TF1 = os.path.join(ROOT, ".venv-tf1")
LOCK = "requirements.lock"
SYSTEM = os.path.join(ROOT, "scripts", "system.py")
STAMP = "muster-setup"  # in each environment: the folder it was made for, and a hash of what it was made from

UV = "uv==0.13.9"  # makes environments from a lock in seconds, from a cache that all clones share
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

# Gloo needs no MPI on the machine; the other frameworks would be built in if they happened to be installed.
HOROVOD_FLAGS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "HOROVOD_WITHOUT_MPI": "1",
}


class SetupError(Exception):
    """Something that a person has to know or do before set-up can go on."""


# ---------------------------------------------------------------- running things, and saying so


def say(text: str) -> None:
    """Print one line of progress at once, also into a pipe."""
    print("set-up: " + text, flush=True)


def run(label: str, argv: Sequence[str], log: str, env: Optional[Dict[str, str]] = None) -> None:
    """Run a command with its output in the log, showing for how long; a failure shows the end of the log."""
    terminal = sys.stdout.isatty()
    started = time.monotonic()
    heartbeat = 30.0
    with open(log, "ab") as out:
        out.write("\n$ {}\n".format(" ".join(argv)).encode())
        out.flush()
        child = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=ROOT, env=env)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=1)
                break
            elapsed = time.monotonic() - started
            if terminal:
                print(f"\rset-up: {label} ... {elapsed:.0f} s", end="", flush=True)
            elif elapsed >= heartbeat:
                say(f"{label} ... {elapsed:.0f} s")
                heartbeat += 30.0
    elapsed = time.monotonic() - started
    if terminal and elapsed >= 1:
        print("\r\033[K", end="")
    if child.returncode:
        with open(log, "rb") as out:
            tail = out.read()[-4000:].decode(errors="replace").splitlines()[-25:]
        raise SetupError("{} failed:\n\n    {}\n\nAll of it is in {}".format(label, "\n    ".join(tail), log))
    if elapsed >= 1:
        say(f"{label} ({elapsed:.0f} s)")


def environment(prefix: str, **more: str) -> Dict[str, str]:
    """Give what pip and uv run with: the person's own variables, less those that would send their work elsewhere."""
    astray = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "MAKELEVEL", "MFLAGS")
    env = {k: v for k, v in os.environ.items() if k not in astray and not k.startswith("HOROVOD_")}
    env["PATH"] = os.path.join(prefix, "bin") + os.pathsep + env.get("PATH", os.defpath)
    # Make's own MAKEFLAGS names a job server that Horovod's build cannot reach; without any it would start 8 compilers.
    env["MAKEFLAGS"] = f"-j{os.cpu_count() or 1}"
    env.update(PYTHONNOUSERSITE="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", UV_PYTHON_DOWNLOADS="never")
    if "PIP_INDEX_URL" in env:  # uv does not read pip's settings
        env.setdefault("UV_DEFAULT_INDEX", env["PIP_INDEX_URL"])
    env.update(more)
    return env


# ---------------------------------------------------------------- which Python


def version_of(python: str) -> Optional[Tuple[int, int, int]]:
    """Ask an interpreter for its version; a shim of pyenv may be there and still not run."""
    code = "import sys; print('%d %d %d' % sys.version_info[:3])"
    try:
        answer = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30)
        major, minor, micro = map(int, answer.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return major, minor, micro


def pythons(wanted: Sequence[Tuple[int, int]]) -> Iterator[str]:
    """Name the interpreters of the wanted versions that may be there: on PATH, then where pyenv has them."""
    names = ["python{}.{}".format(*version) for version in wanted]
    yield from filter(None, map(shutil.which, names))
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    for name in names:
        yield from sorted(glob.glob(os.path.join(glob.escape(pyenv), "versions", "*", "bin", name)))


def find_python(wanted: Sequence[Tuple[int, int]]) -> Optional[Tuple[str, Tuple[int, int, int]]]:
    """Find an interpreter of a wanted version, this one first."""
    if sys.version_info[:2] in wanted:
        here = sys.executable
        if sys.prefix != sys.base_prefix:
            # An environment, perhaps the very one to be made: build on what it was made from.
            here = os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info[:2]))
        return here, sys.version_info[:3]
    for path in pythons(wanted):
        version = version_of(path)
        if version and version[:2] in wanted:
            return path, version
    return None


# ---------------------------------------------------------------- system packages


def provide_system(section: str) -> Dict[str, str]:
    """Install what is missing of a section as root, or say how anybody else does. Returns what is still missing."""
    missing = lacking(section)
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        command = [sys.executable, SYSTEM] + sorted(missing)
        os.makedirs(VENV, exist_ok=True)
        try:
            run("installing {}".format(", ".join(sorted(missing))), command, log_of(VENV))
        except SetupError as error:
            say(str(error))
        missing = lacking(section)
    for package, lost in sorted(missing.items()):
        say(f"{package} is missing: without it {lost}")
    if missing and shutil.which("apt-get"):
        say("to install it, run:  sudo python3 scripts/system.py {}".format(" ".join(sorted(missing))))
    elif missing:
        say("install it with this system's package manager (these are the names that Debian gives them)")
    return missing


# ---------------------------------------------------------------- environments


def cache() -> str:
    """Name the folder that all clones of this user share."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "muster")


def provide_uv() -> str:
    """Return the path of uv, installed once by pip into an environment of its own."""
    home = os.path.join(cache(), UV.replace("==", "-"))
    uv = os.path.join(home, "bin", "uv")
    if os.path.exists(uv):
        return uv
    os.makedirs(cache(), exist_ok=True)
    log = os.path.join(cache(), "setup.log")
    try:
        subprocess.check_output([sys.executable, "-c", "import ensurepip, venv"], stderr=subprocess.STDOUT)
    except subprocess.CalledProcessError:
        package = "python{}.{}-venv".format(*sys.version_info[:2])
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise SetupError(f"{sys.executable} cannot make environments: install {package}") from None
        run(f"installing {package}", [sys.executable, SYSTEM, package], log)
    partial = tempfile.mkdtemp(prefix=".uv-", dir=cache())
    try:
        run("bringing uv", [sys.executable, "-m", "venv", partial], log, environment(partial))
        pip = [os.path.join(partial, "bin", "python"), "-m", "pip", "install", "-q", UV]
        run("bringing uv", pip, log, environment(partial))
        with contextlib.suppress(OSError):  # somebody else has finished the same first
            os.rename(partial, home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return uv


def log_of(prefix: str) -> str:
    """Name the file that holds what the tools printed."""
    return os.path.join(prefix, "setup.log")


def stamp_of(prefix: str) -> str:
    """Name the file that says what an environment was made from."""
    return os.path.join(prefix, STAMP)


def key_of(*parts: object) -> str:
    """Hash what an environment is made from: what is declared, this script, and what is given."""
    digest = hashlib.sha256(repr(parts).encode())
    for name in ("setup.cfg", LOCK, os.path.join("scripts", "setup.py")):
        with open(os.path.join(ROOT, name), "rb") as file:
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
        file.write(f"{ROOT}\n{key}\n")


def make_environment(uv: str, prefix: str, python: str, version: Tuple[int, int, int]) -> None:
    """Make an environment, or keep the one that is there if it is of the same Python and in the same place."""
    own = version_of(os.path.join(prefix, "bin", "python"))
    # Its scripts name their interpreter by its full path: in a folder that was moved or copied none of them starts.
    moved = stamped(prefix)[:1] not in ([], [ROOT])
    if own is None or own[:2] != version[:2] or moved:
        shutil.rmtree(prefix, ignore_errors=True)
        os.makedirs(prefix)
        label = "making {} with Python {}.{}.{}".format(os.path.basename(prefix), *version)
        make = [uv, "venv", "--no-project", "--allow-existing", "--python", python, prefix]
        run(label, make, log_of(prefix), environment(prefix))
    stamp(prefix, "unfinished")


def provide_environment(python: str, version: Tuple[int, int, int]) -> None:
    """Make .venv as requirements.lock has it, unless it is."""
    key = key_of(version, ROOT)
    if stamped(VENV) == [ROOT, key]:
        return
    started = time.monotonic()
    uv = provide_uv()
    make_environment(uv, VENV, python, version)
    into = ["--python", os.path.join(VENV, "bin", "python")]
    env = environment(VENV)
    sync = [uv, "pip", "sync", "--require-hashes"] + into + [os.path.join(ROOT, LOCK)]
    run("installing TensorFlow and the tools", sync, log_of(VENV), env)
    install = [uv, "pip", "install", "--no-deps", "--no-build-isolation"] + into + ["-e", ROOT]
    run("installing Muster", install, log_of(VENV), env)
    provide_horovod(VENV, version)
    stamp(VENV, key)
    say(f"done in {time.monotonic() - started:.0f} s")


def write_lock() -> None:
    """Write requirements.lock anew, keeping the versions that it has where setup.cfg still allows them."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    # The oldest supported Python: what holds for it and the newer ones is marked with conditions.
    how = ["--quiet", "--universal", "--generate-hashes", "--no-header", "--python-version", "3.10"]
    uv = [provide_uv(), "pip", "compile"] + how + extras + ["setup.cfg", "-o", LOCK]
    subprocess.check_call(uv, cwd=ROOT, env=environment(VENV), stdout=subprocess.DEVNULL)


# ---------------------------------------------------------------- Horovod


def locked(name: str) -> str:
    """Read the version that requirements.lock has of a package."""
    with open(os.path.join(ROOT, LOCK), encoding="utf-8") as file:
        found = re.search(rf"^{re.escape(name)}==([^\s;]+)", file.read(), re.MULTILINE)
    if not found:
        raise SetupError(f"{LOCK} has no {name}")
    return found.group(1)


def horovod_pin() -> str:
    """Read the requirement of Horovod itself from setup.cfg."""
    with open(os.path.join(ROOT, "setup.cfg"), encoding="utf-8") as file:
        found = re.search(r"^\s+(horovod==[\d.]+)", file.read(), re.MULTILINE)
    assert found, "setup.cfg pins Horovod"
    return found.group(1)


def wheel_folder(version: Tuple[int, int, int]) -> str:
    """Name the folder of the wheel that fits this Python, TensorFlow, Horovod, platform and these flags."""
    flags = hashlib.sha256(repr(sorted(HOROVOD_FLAGS.items())).encode()).hexdigest()[:8]
    key = "cp{}{}-tensorflow{}-{}-{}-{}-{}".format(
        version[0],
        version[1],
        locked("tensorflow"),
        horovod_pin().replace("==", ""),
        sysconfig.get_platform(),
        # A home folder may be shared among machines, and a wheel built on a newer C library loads on no older one.
        "".join(platform.libc_ver()) or "libc",
        flags,
    )
    return os.path.join(cache(), "wheels", key)


def build_horovod(prefix: str, folder: str) -> None:
    """Compile Horovod against the TensorFlow in an environment, and keep the wheel."""
    missing = sorted({"g++", "make"} & set(lacking("needed")))
    if missing:
        raise SetupError(f"Horovod has to be compiled; on Debian and Ubuntu that takes {' and '.join(missing)}")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    partial = tempfile.mkdtemp(prefix=".building-", dir=os.path.dirname(folder))
    # Horovod's build splits TensorFlow's paths at spaces, so it must see none, neither in its own folder nor in the
    # environment's: it gets there by a link.
    work = tempfile.mkdtemp(prefix="muster-", dir="/tmp" if " " in tempfile.gettempdir() else None)
    link = os.path.join(work, "env")
    os.symlink(prefix, link)
    # pip would otherwise hand out a wheel that it once built with other flags or against another TensorFlow.
    build = [os.path.join(link, "bin", "python"), "-m", "pip", "wheel"]
    build += ["--no-cache-dir", "--no-build-isolation", "--no-deps", "-w", partial, horovod_pin()]
    if shutil.which("nice"):
        build = ["nice"] + build
    try:
        label = "compiling Horovod, once: 2 to 5 minutes"
        run(label, build, log_of(prefix), environment(link, TMPDIR=work, **HOROVOD_FLAGS))
        with contextlib.suppress(OSError):  # somebody else has finished the same first
            os.rename(partial, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(partial, ignore_errors=True)


def provide_horovod(prefix: str, version: Tuple[int, int, int]) -> None:
    """Install Horovod from the kept wheel, and build that first where there is none, or one that does not load."""
    folder = wheel_folder(version)
    if os.path.isdir(folder):
        try:
            return install_horovod(prefix, folder)
        except SetupError:
            say(f"the kept wheel of Horovod does not load: building it again ({folder})")
            shutil.rmtree(folder)
    build_horovod(prefix, folder)
    install_horovod(prefix, folder)


def install_horovod(prefix: str, folder: str) -> None:
    """Install a wheel of Horovod and load it."""
    wheels = glob.glob(os.path.join(glob.escape(folder), "*.whl"))
    python = os.path.join(prefix, "bin", "python")
    # By force: the version alone does not tell which TensorFlow an installed one was compiled against.
    install = [provide_uv(), "pip", "install", "--python", python, "--reinstall", "--no-deps"] + wheels
    run("installing Horovod", install, log_of(prefix), environment(prefix))
    run("loading Horovod", [python, "-c", "import horovod.tensorflow"], log_of(prefix), environment(prefix))


def horovod_only() -> None:
    """Install Horovod into the Python that runs this, which has the rest already."""
    wanted = locked("tensorflow")
    code = "import tensorflow; print(tensorflow.__version__)"
    asked = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found = asked.stdout.decode().split()
    if found != [wanted]:
        raise SetupError(f"{sys.executable} has {' '.join(found) or 'no'} TensorFlow, and needs {wanted}")
    provide_horovod(sys.prefix, sys.version_info[:3])


# ---------------------------------------------------------------- TensorFlow 1.15


def provide_tf1() -> None:
    """Make .venv-tf1, a training interpreter of a user who has stayed on TensorFlow 1.15; optional."""
    found = find_python([(3, 7)])
    if not found:
        say("no Python 3.7 here: the tests with TensorFlow 1.15 will be skipped")
        return
    python, version = found
    key = key_of(version, ROOT, TF1)
    if stamped(VENV_TF1) == [ROOT, key]:
        return
    try:
        uv = provide_uv()
        make_environment(uv, VENV_TF1, python, version)
        install = [uv, "pip", "install", "--python", os.path.join(VENV_TF1, "bin", "python")] + list(TF1)
        run("installing TensorFlow 1.15", install, log_of(VENV_TF1), environment(VENV_TF1))
        stamp(VENV_TF1, key)
    except SetupError as error:
        # Half an environment would make tests fail, rather than skip.
        shutil.rmtree(VENV_TF1, ignore_errors=True)
        say(f"{error}\nThe tests with TensorFlow 1.15 will be skipped.")


# ---------------------------------------------------------------- all of it


def provide_all(with_tests: bool) -> None:
    """Provide what `make demo` needs, and what `make test` needs beside that."""
    found = find_python(SUPPORTED)
    if not found:
        raise SetupError(
            "Muster needs Python 3.10, 3.11 or 3.12, and found only {}.{}.{}. Install one, for example with "
            "`sudo apt-get install python3.11 python3.11-venv`, with pyenv, or with conda (environment.yml), "
            "and run the same command again.".format(*sys.version_info[:3])
        )
    python, version = found
    if {"g++", "make"} & set(provide_system("needed")) and not os.path.isdir(wheel_folder(version)):
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
        with open(os.path.abspath(__file__)) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("waiting for another set-up to finish")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if args.horovod:
                horovod_only()
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
