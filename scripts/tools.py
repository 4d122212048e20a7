"""What every part of set-up stands on: saying so, running things, which Python, and uv.

Needs nothing but the standard library, and keeps to the syntax of Python 3.6, so that on one that is too old set-up can
say which it needs.
"""

import contextlib
import fcntl
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import IO, Dict, Iterator, Optional, Sequence, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOCK = "requirements.lock"
SYSTEM = os.path.join(ROOT, "scripts", "system.py")

UV = "uv==0.13.9"  # makes environments from a lock in seconds, from a cache that all clones share


class SetupError(Exception):
    """Something that a person has to know or do before set-up can go on."""


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


def lock(file: IO[str], for_what: str) -> None:
    """Lock a file until it is closed; say what is waited for, where another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say(f"waiting for {for_what}")
        fcntl.flock(file, fcntl.LOCK_EX)


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
            how = f"run:  sudo apt-get install {package}" if shutil.which("apt-get") else f"install {package}"
            raise SetupError(f"{sys.executable} cannot make environments; {how}") from None
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
