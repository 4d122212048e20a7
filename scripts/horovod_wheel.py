"""Install Horovod into the Python that runs this, whose TensorFlow it has to be compiled against: once, then kept.

python scripts/horovod_wheel.py    after: pip install '.[tensorflow,horovod-build]'
"""

import configparser
import contextlib
import glob
import hashlib
import importlib.metadata
import os
import platform
import shutil
import sys
import sysconfig
import tempfile

from setup import CACHE, ROOT, SetupError, lacking, run

# Gloo needs no MPI on the machine; the other frameworks would be built in if they happened to be installed.
FLAGS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "HOROVOD_WITHOUT_MPI": "1",
}


def requirement() -> str:
    """Read from setup.cfg which Horovod it is."""
    config = configparser.ConfigParser(inline_comment_prefixes=("#",))
    config.read(os.path.join(ROOT, "setup.cfg"), encoding="utf-8")
    return config["options.extras_require"]["horovod"].strip()


def tensorflow() -> str:
    """Return the version of the TensorFlow that is installed here."""
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    raise SetupError(f"{sys.executable} has no TensorFlow; first run: pip install '.[tensorflow,horovod-build]'")


def wheel_folder() -> str:
    """Name the folder of the wheel that fits this Python, TensorFlow, Horovod, platform and these flags."""
    flags = hashlib.sha256(repr(sorted(FLAGS.items())).encode()).hexdigest()[:8]
    # A home folder may be shared among machines, and a wheel built on a newer C library loads on no older one.
    machine = "-".join([sysconfig.get_platform(), "".join(platform.libc_ver()) or "libc"])
    python = "cp{}{}".format(*sys.version_info)
    key = [python, "tensorflow" + tensorflow(), requirement().replace("==", ""), machine, flags]
    return os.path.join(CACHE, "wheels", "-".join(key))


def build(folder: str) -> None:
    """Compile Horovod, install it, see that it loads, and keep the wheel."""
    if {"g++", "make"} & set(lacking("needed")):
        raise SetupError(
            "Horovod has to be compiled, and g++ or make is missing; first run: apt-get install g++ make (as root), or "
            "in conda's environment: conda install -c conda-forge gxx make"
        )
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    partial = tempfile.mkdtemp(prefix=".building-", dir=os.path.dirname(folder))
    # The build splits paths at spaces, so it must see none: it gets to this environment by a link.
    work = tempfile.mkdtemp(prefix="muster-wheel-", dir="/tmp" if " " in tempfile.gettempdir() else None)
    link = os.path.join(work, "env")
    os.symlink(sys.prefix, link)
    path = os.path.join(link, "bin") + os.pathsep + os.environ.get("PATH", os.defpath)
    # Make's own MAKEFLAGS name a job server that the build cannot reach; without any it would start 8 compilers.
    env = dict(FLAGS, TMPDIR=work, PATH=path, MAKEFLAGS=f"-j{os.cpu_count() or 1}")
    # pip would otherwise hand out a wheel that it once built with other flags or against another TensorFlow.
    how = ["--no-cache-dir", "--no-build-isolation", "--no-deps", "-w", partial]
    wheel = [os.path.join(link, "bin", "python"), "-m", "pip", "wheel", *how, requirement()]
    try:
        run("compiling Horovod, once: 2 to 5 minutes", wheel, **env)
        install(partial)
        run("loading Horovod", [sys.executable, "-c", "import horovod.tensorflow"])
        with contextlib.suppress(OSError):  # somebody else has finished the same first
            os.rename(partial, folder)
    finally:
        shutil.rmtree(work)
        shutil.rmtree(partial, ignore_errors=True)


def install(folder: str) -> None:
    """Install the wheel in a folder."""
    wheels = glob.glob(os.path.join(glob.escape(folder), "*.whl"))
    # By force: the version does not tell which TensorFlow an installed one was compiled against.
    how = ["-q", "--no-index", "--no-deps", "--force-reinstall", "--root-user-action=ignore"]
    run("installing Horovod", [sys.executable, "-m", "pip", "install", *how, *wheels])


if __name__ == "__main__":
    kept = wheel_folder()
    if os.path.isdir(kept):
        install(kept)
    else:
        build(kept)
