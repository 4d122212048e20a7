"""Horovod, which has to be compiled against the TensorFlow that it runs with: its wheel is built once, and kept."""

import contextlib
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
from typing import Tuple

import tools
from system import lacking
from tools import SetupError

# Gloo needs no MPI on the machine; the other frameworks would be built in if they happened to be installed.
HOROVOD_FLAGS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "HOROVOD_WITHOUT_MPI": "1",
}
LOADED = "loaded"  # a file beside a wheel that has been loaded once


def locked(name: str) -> str:
    """Read the version that requirements.lock has of a package."""
    with open(os.path.join(tools.ROOT, tools.LOCK), encoding="utf-8") as file:
        found = re.search(rf"^{re.escape(name)}==([^\s;]+)", file.read(), re.MULTILINE)
    if not found:
        raise SetupError(f"{tools.LOCK} has no {name}")
    return found.group(1)


def horovod_pin() -> str:
    """Read the requirement of Horovod itself from setup.cfg."""
    with open(os.path.join(tools.ROOT, "setup.cfg"), encoding="utf-8") as file:
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
    return os.path.join(tools.cache(), "wheels", key)


def build_horovod(prefix: str, folder: str) -> None:
    """Compile Horovod against the TensorFlow in an environment, and keep the wheel."""
    missing = sorted({"g++", "make"} & set(lacking("needed")))
    if missing:
        raise SetupError(f"Horovod has to be compiled; on Debian and Ubuntu that takes {' and '.join(missing)}")
    partial = tempfile.mkdtemp(prefix=".building-", dir=os.path.dirname(folder))
    # Horovod's build splits TensorFlow's paths at spaces, so it must see none, neither in its own folder nor in the
    # environment's: it gets there by a link.
    work = tempfile.mkdtemp(prefix="muster-wheel-", dir="/tmp" if " " in tempfile.gettempdir() else None)
    link = os.path.join(work, "env")
    os.symlink(prefix, link)
    # pip would otherwise hand out a wheel that it once built with other flags or against another TensorFlow.
    build = [os.path.join(link, "bin", "python"), "-m", "pip", "wheel"]
    build += ["--no-cache-dir", "--no-build-isolation", "--no-deps", "-w", partial, horovod_pin()]
    if shutil.which("nice"):
        build = ["nice"] + build
    try:
        label = "compiling Horovod, once: 2 to 5 minutes"
        tools.run(label, build, tools.log_of(prefix), tools.environment(link, TMPDIR=work, **HOROVOD_FLAGS))
        with contextlib.suppress(OSError):  # somebody else has finished the same first
            os.rename(partial, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(partial, ignore_errors=True)


def provide_horovod(prefix: str, version: Tuple[int, int, int]) -> None:
    """Install Horovod from the kept wheel, and build that first where there is none, or one that does not load."""
    folder = wheel_folder(version)
    if keep_wheel(prefix, folder):
        return install_horovod(prefix, folder)
    try:
        install_horovod(prefix, folder)
    except SetupError:
        tools.say(f"the kept wheel of Horovod does not load: building it again ({folder})")
        shutil.rmtree(folder, ignore_errors=True)
        keep_wheel(prefix, folder)
        install_horovod(prefix, folder)


def keep_wheel(prefix: str, folder: str) -> bool:
    """Build the wheel unless it is kept already, and return whether it was built."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:  # two clones that are set up at once need it once
        tools.lock(lock, "another clone's set-up to build Horovod")
        if os.path.isdir(folder):
            return False
        build_horovod(prefix, folder)
        return True


def install_horovod(prefix: str, folder: str) -> None:
    """Install a wheel of Horovod, and load it unless it has loaded before: its folder is named by all that matters."""
    wheels = glob.glob(os.path.join(glob.escape(folder), "*.whl"))
    python = os.path.join(prefix, "bin", "python")
    # By force: the version alone does not tell which TensorFlow an installed one was compiled against.
    install = [tools.provide_uv(), "pip", "install", "--python", python, "--reinstall", "--no-deps"] + wheels
    tools.run("installing Horovod", install, tools.log_of(prefix), tools.environment(prefix))
    has_loaded = os.path.join(folder, LOADED)
    if not os.path.exists(has_loaded):
        load = [python, "-c", "import horovod.tensorflow"]
        tools.run("loading Horovod", load, tools.log_of(prefix), tools.environment(prefix))
        open(has_loaded, "w").close()


def horovod_only() -> None:
    """Install Horovod into the Python that runs this, which has the rest already."""
    wanted = locked("tensorflow")
    code = "import tensorflow; print(tensorflow.__version__)"
    asked = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found = asked.stdout.decode().split()
    if found != [wanted]:
        raise SetupError(f"{sys.executable} has {' '.join(found) or 'no'} TensorFlow, and needs {wanted}")
    provide_horovod(sys.prefix, sys.version_info[:3])
