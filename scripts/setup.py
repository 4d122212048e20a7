"""Set up everything that `make demo` and `make test` need; do nothing when it is there already.

    python3 scripts/setup.py              .venv with Muster, TensorFlow, Horovod and the tools
    python3 scripts/setup.py --tf1        and .venv-tf1 with TensorFlow 1.15, where there is a Python 3.7, Chromium
                                          and both MPIs
    python3 scripts/setup.py --horovod    Horovod alone, into the Python that runs this (a conda environment)
    sudo python3 scripts/setup.py --system [PACKAGE ...]    the system packages alone

Needs nothing but the standard library, and keeps to the syntax of Python 3.6, so that on one that is too old it can
still say which it needs.
"""

import argparse
import configparser
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_TF1 = os.path.join(ROOT, ".venv-tf1")
STAMP = "muster-setup"  # in each environment: the folder it was made for, and a hash of what it was made from

SUPPORTED = ((3, 12), (3, 11), (3, 10))  # in order of preference, when `python3` itself is none of them
# All but gpu, and horovod, which is compiled.
EXTRAS = ("tensorflow", "notebook", "serve", "data", "test", "browser", "bench")
PIP = "pip==26.3"  # the oldest that Python 3.10 brings resolves these pins, but takes minutes

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

# Debian installs them side by side, each with a compiler called mpicc.NAME.
MPIS = {"openmpi": ["openmpi-bin", "libopenmpi-dev"], "mpich": ["mpich", "libmpich-dev"]}

POLICY = "/usr/sbin/policy-rc.d"
POLICY_TEXT = "#!/bin/sh\n# Set there by Muster's set-up for as long as it installs packages.\nexit 101\n"


class SetupError(Exception):
    """What a person has to know or do before set-up can go on."""


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
    """Give what pip runs with: the person's own variables, less those that would send its work elsewhere."""
    astray = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "MAKELEVEL", "MFLAGS")
    env = {k: v for k, v in os.environ.items() if k not in astray and not k.startswith("HOROVOD_")}
    env["PATH"] = os.path.join(prefix, "bin") + os.pathsep + env.get("PATH", os.defpath)
    # Make's own MAKEFLAGS names a job server that Horovod's build cannot reach; without any it would start 8 compilers.
    env["MAKEFLAGS"] = f"-j{os.cpu_count() or 1}"
    env.update(PYTHONNOUSERSITE="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", **more)
    return env


def pip(prefix: str) -> List[str]:
    """Start pip by its module: the `pip` script cannot be started from a folder with a space in its path everywhere."""
    return [os.path.join(prefix, "bin", "python"), "-m", "pip"]


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


def runs(python: str, code: str) -> bool:
    """Tell whether an interpreter is there and gets through a line of code."""
    with contextlib.suppress(OSError):
        return subprocess.call([python, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    return False


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


def compiler() -> Optional[str]:
    """Find the C++ compiler that CMake would."""
    names = [os.environ.get("CXX") or "c++", "c++", "g++", "clang++"]
    return next(filter(None, map(shutil.which, names)), None)


def lacking(python: str, version: Tuple[int, int, int]) -> Dict[str, str]:
    """Name the system packages that are not there, each with what goes wrong without it."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin:/sbin"
    missing = {}
    if not (os.path.isfile(stamp_of(VENV)) or runs(python, "import ensurepip")):
        missing["python{}.{}-venv".format(*version[:2])] = "without it no environment can be made"
    if not (os.path.isdir(wheel_folder(version)) or compiler()):
        missing["g++"] = "without it Horovod cannot be compiled"
    if not (shutil.which("ssh") and shutil.which("ssh-keygen")):
        missing["openssh-client"] = "without it Horovod and MPI runs cannot start; parameter servers can"
    if not shutil.which("sshd", path=path):
        missing["openssh-server"] = "without it Horovod and MPI runs cannot start; parameter servers can"
    return missing


@contextlib.contextmanager
def services_stay_down() -> Iterator[None]:
    """Keep what is being installed from being started: nobody asked for an open port 22."""
    saved = POLICY + ".before-muster"

    def ours() -> bool:
        with contextlib.suppress(OSError, ValueError), open(POLICY) as file:
            return file.read() == POLICY_TEXT
        return False

    # A set-up that was killed may have left its own policy behind: that one is not to be kept.
    if os.path.lexists(POLICY) and not ours():
        os.rename(POLICY, saved)
    with open(POLICY, "w") as file:
        file.write(POLICY_TEXT)
    os.chmod(POLICY, 0o755)
    try:
        yield
    finally:
        os.unlink(POLICY)
        if os.path.lexists(saved):
            os.rename(saved, POLICY)


def install_system(packages: Sequence[str]) -> None:
    """Install Debian packages, as root, with output as apt gives it."""
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive", NEEDRESTART_SUSPEND="1")
    apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    install = apt + ["install", "--no-install-recommends"] + list(packages)
    with services_stay_down():
        # Lists that are missing or old make the first try fail within a second; fetching them takes far longer.
        if subprocess.call(install, env=env) != 0:
            subprocess.call(apt + ["update"], env=env)
            subprocess.check_call(install, env=env)
    if "openssh-server" in packages:
        # Its installation enables it for the next start of the machine. Muster starts its own, on its own port.
        units = ["disable", "ssh.socket", "ssh.service"]
        for command in (["update-rc.d", "ssh", "disable"], ["deb-systemd-helper"] + units, ["systemctl"] + units):
            if shutil.which(command[0]):
                subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def provide_system(python: str, version: Tuple[int, int, int]) -> None:
    """Install the missing system packages where that needs no password, else say how; fail only on what is vital."""
    missing = lacking(python, version)
    if missing and install_without_password(sorted(missing)):
        missing = lacking(python, version)
    if not missing:
        return
    for package, why in sorted(missing.items()):
        say(f"{package} is missing: {why}")
    if shutil.which("apt-get"):
        say("to install it, run:  sudo python3 scripts/setup.py --system {}".format(" ".join(sorted(missing))))
    else:
        say("install it with this system's package manager (these are the names that Debian gives them)")
    vital = sorted(set(missing) - {"openssh-client", "openssh-server"})
    if vital:
        raise SetupError("cannot go on without {}; then run the same command again".format(" and ".join(vital)))


def provide_browser() -> None:
    """Install the browser for the tests in real notebooks, where that needs no password; optional."""
    if shutil.which("chromium") or os.environ.get("CHROMIUM"):
        return
    install_without_password(["chromium"])
    if not shutil.which("chromium"):
        say("no Chromium here: the tests in real notebooks will be skipped")


def provide_mpi() -> None:
    """Install both MPIs, with their compilers, for the tests with real ones, where that needs no password; optional."""
    for name, packages in MPIS.items():
        if not shutil.which("mpicc." + name):
            install_without_password(packages)
        if not shutil.which("mpicc." + name):
            say("no {} here: the tests with it will be skipped".format(packages[0]))


def install_without_password(packages: Sequence[str]) -> bool:
    """Try to install Debian packages, if that can be tried at all."""
    command = [sys.executable, os.path.abspath(__file__), "--system"] + list(packages)
    if not shutil.which("apt-get") or (os.geteuid() != 0 and not sudo_works()):
        return False
    if os.geteuid() != 0:
        command = ["sudo", "-n"] + command
    os.makedirs(VENV, exist_ok=True)
    try:
        run("installing {}".format(", ".join(packages)), command, log_of(VENV))
    except SetupError as error:
        say(str(error))
    return True


def sudo_works() -> bool:
    """Tell whether sudo asks no password here."""
    return (
        bool(shutil.which("sudo"))
        and subprocess.call(["sudo", "-n", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    )


# ---------------------------------------------------------------- environments


def stamp_of(prefix: str) -> str:
    """Name the file that says what an environment was made from."""
    return os.path.join(prefix, STAMP)


def log_of(prefix: str) -> str:
    """Name the file that holds what pip printed."""
    return os.path.join(prefix, "setup.log")


def key_of(*parts: object) -> str:
    """Hash what an environment is made from: what is declared, this script, and what is given."""
    digest = hashlib.sha256(repr(parts).encode())
    for name in ("setup.cfg", os.path.join("scripts", "setup.py")):
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


def make_environment(prefix: str, python: str, version: Tuple[int, int, int]) -> None:
    """Make an environment, or keep the one that is there if it is of the same Python and in the same place."""
    own = os.path.join(prefix, "bin", "python")
    # Its scripts name their interpreter by its full path: in a folder that was moved or copied none of them starts.
    moved = stamped(prefix)[:1] not in ([], [ROOT])
    good = runs(own, "import pip, sys; assert sys.version_info[:2] == {}".format(version[:2])) and not moved
    if os.path.lexists(own) and not good:
        shutil.rmtree(prefix)
    if not good:
        os.makedirs(prefix, exist_ok=True)
        label = "making {} with Python {}.{}.{}".format(os.path.basename(prefix), *version)
        run(label, [python, "-m", "venv", prefix], log_of(prefix), environment(prefix))
    stamp(prefix, "unfinished")


def declared(extra: str) -> List[str]:
    """Read the requirements that setup.cfg lists under an extra."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(os.path.join(ROOT, "setup.cfg"), encoding="utf-8")
    lines = (re.sub(r"\s#.*", "", line).strip() for line in config["options.extras_require"][extra].splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def pinned(extra: str, name: str) -> str:
    """Read the version that setup.cfg pins a requirement to."""
    return next(line for line in declared(extra) if line.startswith(name + "==")).split("==")[1].split(";")[0].strip()


def provide_environment(python: str, version: Tuple[int, int, int]) -> None:
    """Make .venv as setup.cfg has it, unless it is."""
    key = key_of(version, ROOT)
    if stamped(VENV) == [ROOT, key]:
        return
    started = time.monotonic()
    make_environment(VENV, python, version)
    env = environment(VENV)
    tools = [line for line in declared("horovod") if not line.startswith("horovod==")]
    setuptools = next(line for line in tools if line.startswith("setuptools=="))
    run("installing pip", pip(VENV) + ["install", PIP, setuptools], log_of(VENV), env)
    everything = ["-e", ".[{}]".format(",".join(EXTRAS))] + tools
    install = pip(VENV) + ["install", "--no-build-isolation"] + everything
    run("installing Muster, TensorFlow and the tools", install, log_of(VENV), env)
    provide_horovod(VENV, version)
    stamp(VENV, key)
    say(f"done in {time.monotonic() - started:.0f} s")


# ---------------------------------------------------------------- Horovod


def wheel_folder(version: Tuple[int, int, int]) -> str:
    """Name the folder of the wheel that fits this Python, TensorFlow, Horovod, platform and these flags."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    flags = hashlib.sha256(repr(sorted(HOROVOD_FLAGS.items())).encode()).hexdigest()[:8]
    key = "cp{}{}-tensorflow{}-horovod{}-{}-{}-{}".format(
        version[0],
        version[1],
        pinned("tensorflow", "tensorflow"),
        pinned("horovod", "horovod"),
        sysconfig.get_platform(),
        # A home folder may be shared among machines, and a wheel built on a newer C library loads on no older one.
        "".join(platform.libc_ver()) or "libc",
        flags,
    )
    return os.path.join(cache, "muster", "wheels", key)


def build_horovod(prefix: str, folder: str) -> None:
    """Compile Horovod against the TensorFlow in an environment, and keep the wheel."""
    if not compiler():
        raise SetupError("Horovod has to be compiled, and there is no C++ compiler; on Debian and Ubuntu it is g++")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    partial = tempfile.mkdtemp(prefix=".building-", dir=os.path.dirname(folder))
    # Horovod's build splits TensorFlow's paths at spaces, so it must see none, neither in its own folder nor in the
    # environment's: it gets there by a link.
    work = tempfile.mkdtemp(prefix="muster-", dir="/tmp" if " " in tempfile.gettempdir() else None)
    link = os.path.join(work, "env")
    os.symlink(prefix, link)
    # pip would otherwise hand out a wheel that it once built with other flags or against another TensorFlow.
    build = pip(link) + ["wheel", "--no-cache-dir", "--no-build-isolation", "--no-deps", "-w", partial]
    build += ["horovod==" + pinned("horovod", "horovod")]
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
    # By force: the version alone does not tell which TensorFlow an installed one was compiled against.
    install = pip(prefix) + ["install", "--force-reinstall", "--no-deps"] + wheels
    run("installing Horovod", install, log_of(prefix), environment(prefix))
    check = [os.path.join(prefix, "bin", "python"), "-c", "import horovod.tensorflow"]
    run("loading Horovod", check, log_of(prefix), environment(prefix))


def horovod_only() -> None:
    """Install Horovod into the Python that runs this, which has the rest already."""
    wanted = pinned("tensorflow", "tensorflow")
    code = "import tensorflow; print(tensorflow.__version__)"
    found = (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        .stdout.decode()
        .split()
    )
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
        make_environment(VENV_TF1, python, version)
        install = pip(VENV_TF1) + ["install"] + list(TF1)
        run("installing TensorFlow 1.15", install, log_of(VENV_TF1), environment(VENV_TF1))
        stamp(VENV_TF1, key)
    except SetupError as error:
        # Half an environment would make tests fail, rather than skip.
        shutil.rmtree(VENV_TF1, ignore_errors=True)
        say(f"{error}\nThe tests with TensorFlow 1.15 will be skipped.")


# ---------------------------------------------------------------- all of it


def main() -> int:
    """Do what the arguments say, and turn what a person has to know into a line and an exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tf1", action="store_true", help="also make .venv-tf1, and install Chromium and MPI: what only tests need"
    )
    parser.add_argument("--horovod", action="store_true", help="only build and install Horovod, into this Python")
    parser.add_argument("--system", nargs="*", metavar="PACKAGE", help="only install system packages; needs root")
    args = parser.parse_args()
    try:
        if args.system is not None:
            install_system(args.system or ["g++", "openssh-client", "openssh-server"])
            return 0
        # Two set-ups at once, from a terminal and an editor, would install into one another.
        with open(os.path.abspath(__file__)) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("waiting for another set-up to finish")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if args.horovod:
                horovod_only()
                return 0
            found = find_python(SUPPORTED)
            if not found:
                raise SetupError(
                    "Muster needs Python 3.10, 3.11 or 3.12, and found only {}.{}.{}. Install one, for example with "
                    "`sudo apt-get install python3.11 python3.11-venv`, with pyenv, or with conda (environment.yml), "
                    "and run the same command again.".format(*sys.version_info[:3])
                )
            provide_system(*found)
            provide_environment(*found)
            if args.tf1:
                provide_tf1()
                provide_browser()
                provide_mpi()
    except (SetupError, subprocess.CalledProcessError) as error:
        print(f"\nset-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
