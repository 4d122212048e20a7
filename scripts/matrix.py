"""Install what is built, and run the quick tests on other versions of Python and with the oldest packages allowed.

    python3 scripts/matrix.py [ARGUMENT OF PYTEST ...]       such as `tests/agent` for some of the quick tests

The wheel goes into fresh environments, with each extra (tests/test_installation.py).

Each version that is at hand gets an environment of its own: the oldest one ``.venv-oldest``, with the lowest versions
that setup.cfg allows, TensorFlow's included; the others ``.venv-3.12`` and so on, from requirements.lock. None of them
has Horovod, which would have to be compiled for each: tests that need it say so, skip, and run in `make test`.
"""

import os
import subprocess
import sys

import setup

# Extras left out of the environment with the oldest packages: no user has them before installing Muster.
NOT_OLDEST_EXTRAS = (*setup.NOT_LOCKED, "docs", "bench")
# A package that requires a newer rich than Muster does. Only one test, a slow one, uses it.
NOT_OLDEST = ("schemathesis",)
NEEDS_IT = "tests/serve/test_fuzz.py"
# Warnings that Muster does not cause: asyncio of Python 3.10 warns of aborted TLS connections as if they were unclosed,
# and old ipywidgets use deprecated calls of traitlets.
WARNINGS = (
    "-W",
    "ignore:unclosed transport:ResourceWarning",
    "-W",
    "ignore:Deprecated in traitlets:DeprecationWarning",
)
# As in the Makefile: a tests' process that hangs is ended, and its test is run once more.
AT_ONCE = ("-n", "3", "--max-worker-restart=1", "-o", "faulthandler_exit_on_timeout=true")


def provide(name: str, python: str, requirements: str) -> str:
    """Make an environment with these requirements and Muster, unless it is there, and return its interpreter."""
    prefix = os.path.join(setup.ROOT, name)
    with open(requirements, encoding="utf-8") as file:
        key = setup.key_of(python, file.read())
    if not setup.is_made(prefix, key):
        setup.make_environment(prefix, python, key, ["sync", requirements], setup.MUSTER)
    return os.path.join(prefix, "bin", "python")


def lowest(python: str) -> str:
    """Write the lowest versions that setup.cfg allows to a file in build/, and return its path."""
    path, excludes = (os.path.join(setup.ROOT, "build", name) for name in ("oldest.txt", "not-oldest.txt"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(excludes, "w", encoding="utf-8") as file:
        file.write("\n".join(NOT_OLDEST) + "\n")
    # --upgrade: uv would keep the versions of the file that it wrote before.
    how = ["--quiet", "--upgrade", "--resolution", "lowest-direct", "--python", python, "--no-header", "--no-annotate"]
    how += ["--excludes", excludes, *setup.extras(NOT_OLDEST_EXTRAS), "setup.cfg", "-o", path]
    setup.run("finding the oldest versions", [setup.provide_uv(), "pip", "compile", *how])
    return path


def environments() -> "list[tuple[str, str]]":
    """Provide an environment with the oldest packages for the oldest Python here, and one for each but the usual one.

    Returns their names and interpreters. For a version that is not installed, a line says that its tests are skipped.
    """
    asked = [os.path.join(setup.VENV, "bin", "python"), "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    usual = subprocess.check_output(asked, universal_newlines=True).strip()
    made: "list[tuple[str, str]]" = []
    oldest = None
    for version in setup.SUPPORTED:
        python = setup.find_python(version)
        if python is None:
            setup.say(f"no Python {version} here: the tests on it are skipped")
            continue
        if oldest is None:
            oldest = python
        elif version != usual:  # .venv has that one, and `make test` runs everything on it
            made.append((f".venv-{version}", provide(f".venv-{version}", python, os.path.join(setup.ROOT, setup.LOCK))))
    if oldest is not None:
        made.append((".venv-oldest", provide(".venv-oldest", oldest, lowest(oldest))))
    return made


def main() -> int:
    """Run the tests in all environments; return 1 if they have failed in any, or else 0."""
    tests = sys.argv[1:] or ["tests"]
    failed = []
    if not sys.argv[1:]:
        setup.say("the wheel in fresh environments")
        command = [os.path.join(setup.VENV, "bin", "python"), "-m", "pytest", "-q", "-m", "installation"]
        if subprocess.call([*command, "tests/test_installation.py"], cwd=setup.ROOT):
            failed.append("fresh environments")
    for name, python in environments():
        setup.say(f"the quick tests in {name}")
        command = [
            python,
            "-m",
            "pytest",
            "-q",
            "-rs",
            *AT_ONCE,
            "-m",
            "not slow",
            f"--ignore={NEEDS_IT}",
            *WARNINGS,
            *tests,
        ]
        path = os.pathsep.join([os.path.dirname(python), os.environ.get("PATH", os.defpath)])
        if subprocess.call(command, cwd=setup.ROOT, env=dict(setup.environment(), PATH=path)):
            failed.append(name)
    if failed:
        setup.say("failed in {}".format(" and ".join(failed)))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
