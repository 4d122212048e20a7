"""Run the quick tests on the other versions of Python that Muster supports, and with the oldest packages it allows.

    python3 scripts/matrix.py [ARGUMENT OF PYTEST ...]

Each version that is at hand gets an environment of its own, ``.venv-3.10`` and so on, from requirements.lock;
``.venv-oldest`` has the lowest versions that setup.cfg allows, on the oldest Python at hand. None of them has Horovod.
"""

import os
import subprocess
import sys

import setup

# What a user's environment may have had before Muster came; browsers and benchmarks are ours alone.
OLDEST_EXTRAS = ("workbench", "trust", "serve", "notebook", "tensorflow", "horovod-build", "demo", "test", "browser")
# That the lock, and not an older version, is installed is what these are about.
NOT_OF_OLDEST = "--deselect=tests/test_packaging.py"
# asyncio of Python 3.10 warns of TLS connections that were aborted, as if they had been forgotten.
OLD_ASYNCIO = ("-W", "ignore:unclosed transport:ResourceWarning")


def provide(name: str, python: str, version: "tuple[int, int, int]", requirements: str) -> str:
    """Make an environment with these requirements and Muster, unless it is there. Returns its interpreter."""
    prefix = os.path.join(setup.ROOT, name)
    own = os.path.join(prefix, "bin", "python")
    with open(requirements, encoding="utf-8") as file:
        key = setup.key_of(version, file.read())
    if setup.stamped(prefix) == [setup.ROOT, key]:
        return own
    uv, env = setup.provide_uv(), setup.environment(prefix)
    setup.make_environment(uv, prefix, python, version)
    sync = [uv, "pip", "sync", "--python", own, requirements]
    setup.run(f"installing into {name}", sync, setup.log_of(prefix), env)
    install = [uv, "pip", "install", "--python", own, "--no-deps", "--no-build-isolation", "-e", setup.ROOT]
    setup.run(f"installing Muster into {name}", install, setup.log_of(prefix), env)
    setup.stamp(prefix, key)
    return own


def lowest(python: str) -> str:
    """Write the lowest versions that setup.cfg allows to a file in build/, and return its path."""
    path = os.path.join(setup.ROOT, "build", "oldest.txt")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    extras = [word for extra in OLDEST_EXTRAS for word in ("--extra", extra)]
    how = ["--quiet", "--resolution", "lowest-direct", "--python", python, "--no-header", "--no-annotate"]
    command = [setup.provide_uv(), "pip", "compile"] + how + extras + ["setup.cfg", "-o", path]
    subprocess.check_call(command, cwd=setup.ROOT, env=setup.environment(setup.VENV), stdout=subprocess.DEVNULL)
    return path


def main() -> int:
    """Test on all of them; the exit status is 1 if one has failed."""
    found = [setup.find_python([version]) for version in sorted(setup.SUPPORTED)]
    pythons = [python for python in found if python]
    lock = os.path.join(setup.ROOT, setup.LOCK)
    usual = setup.find_python(setup.SUPPORTED)
    runs: "list[tuple[str, str, list[str]]]" = []
    for python, version in pythons:
        if usual is None or version[:2] != usual[1][:2]:  # .venv has that one, and `make test` runs everything on it
            name = ".venv-{}.{}".format(*version[:2])
            runs.append((name, provide(name, python, version, lock), []))
    if pythons:
        python, version = pythons[0]
        runs.append((".venv-oldest", provide(".venv-oldest", python, version, lowest(python)), [NOT_OF_OLDEST]))
    failed = []
    for name, python, more in runs:
        setup.say(f"the quick tests in {name}")
        command = [python, "-m", "pytest", "-q", "-m", "not slow", *OLD_ASYNCIO, *more, *sys.argv[1:]]
        if subprocess.call(command, cwd=setup.ROOT, env=setup.environment(os.path.join(setup.ROOT, name))):
            failed.append(name)
    if failed:
        setup.say("failed in {}".format(" and ".join(failed)))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
