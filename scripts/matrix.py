"""Install what is built, and run quick tests on other versions of Python and with the oldest packages allowed.

    python3 scripts/matrix.py [ARGUMENT OF PYTEST ...]       such as `tests` for all quick tests

The wheel goes into fresh environments, with each extra (tests/test_installation.py).

Each version that is at hand gets an environment of its own, ``.venv-3.10`` and so on, from requirements.lock;
``.venv-oldest`` has the lowest versions that setup.cfg allows, on the oldest Python at hand. None of them has Horovod.
"""

import os
import subprocess
import sys

import setup
import tools

# What a user's environment may have had before Muster came; browsers and benchmarks are ours alone.
OLDEST_EXTRAS = (
    "workbench",
    "containers",
    "kubernetes",
    "trust",
    "serve",
    "notebook",
    "tensorflow",
    "horovod-build",
    "demo",
    "test",
    "browser",
)
# Asks for a newer rich than Muster does. One test has it, a slow one.
NOT_OLDEST = ("schemathesis",)
NEEDS_IT = "tests/serve/test_fuzz.py"
# Where versions of Python and of packages matter most, in few minutes; no environment of these has Horovod.
TESTS = (
    "tests/engine",
    "tests/text",
    "tests/dashboard",
    "tests/pools/test_endpoint.py",
    "tests/serve/test_rest.py",
    "tests/serve/test_security.py",
    "tests/test_arguments.py",
    "tests/test_background.py",
    "tests/test_cli.py",
    "tests/test_diagnosis.py",
    "tests/test_runs.py",
    "tests/test_script.py",
    "tests/test_values.py",
    "tests/trust",
    "tests/workbench",
    "tests/platforms/test_containers_engine.py",
    "tests/platforms/kubernetes/test_client.py",
    "tests/platforms/kubernetes/test_tunnel_parts.py",
)
# What is not ours: asyncio of Python 3.10 warns of TLS connections that were aborted, as if they had been forgotten;
# old ipywidgets ask traitlets in an old way.
WARNINGS = (
    "-W",
    "ignore:unclosed transport:ResourceWarning",
    "-W",
    "ignore:Deprecated in traitlets:DeprecationWarning",
)


def provide(name: str, python: str, version: "tuple[int, int, int]", requirements: str) -> str:
    """Make an environment with these requirements and Muster, unless it is there. Returns its interpreter."""
    prefix = os.path.join(tools.ROOT, name)
    own = os.path.join(prefix, "bin", "python")
    with open(requirements, encoding="utf-8") as file:
        key = setup.key_of(version, file.read())
    if setup.stamped(prefix) == [tools.ROOT, key]:
        return own
    uv, env = tools.provide_uv(), tools.environment(prefix)
    setup.make_environment(uv, prefix, python, version)
    sync = [uv, "pip", "sync", "--python", own, requirements]
    tools.run(f"installing into {name}", sync, tools.log_of(prefix), env)
    install = [uv, "pip", "install", "--python", own, "--no-deps", "--no-build-isolation", "-e", tools.ROOT]
    tools.run(f"installing Muster into {name}", install, tools.log_of(prefix), env)
    setup.stamp(prefix, key)
    return own


def lowest(python: str) -> str:
    """Write the lowest versions that setup.cfg allows to a file in build/, and return its path."""
    path, excludes = (os.path.join(tools.ROOT, "build", name) for name in ("oldest.txt", "not-oldest.txt"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(excludes, "w", encoding="utf-8") as file:
        file.write("\n".join(NOT_OLDEST) + "\n")
    extras = [word for extra in OLDEST_EXTRAS for word in ("--extra", extra)]
    how = ["--quiet", "--resolution", "lowest-direct", "--python", python, "--no-header", "--no-annotate"]
    how += ["--excludes", excludes]
    command = [tools.provide_uv(), "pip", "compile"] + how + extras + ["setup.cfg", "-o", path]
    subprocess.check_call(command, cwd=tools.ROOT, env=tools.environment(setup.VENV), stdout=subprocess.DEVNULL)
    return path


def environments() -> "list[tuple[str, str]]":
    """Provide an environment for each Python at hand but the usual one, and that with the oldest packages.

    Returns their names and interpreters. A version that is not here is said to be left out.
    """
    found = [(version, tools.find_python([version])) for version in sorted(setup.SUPPORTED)]
    lock = os.path.join(tools.ROOT, tools.LOCK)
    usual = tools.version_of(os.path.join(setup.VENV, "bin", "python"))
    made: "list[tuple[str, str]]" = []
    oldest = None
    for version, python in found:
        name = ".venv-{}.{}".format(*version)
        if python is None:
            tools.say("no Python {}.{} here: the tests on it are skipped".format(*version))
            continue
        oldest = oldest or python
        if usual is None or version != usual[:2]:  # .venv has that one, and `make test` runs everything on it
            made.append((name, provide(name, *python, lock)))
    if oldest is not None:
        made.append((".venv-oldest", provide(".venv-oldest", *oldest, lowest(oldest[0]))))
    return made


def main() -> int:
    """Test on all of them; the exit status is 1 if one has failed."""
    tests = sys.argv[1:] or list(TESTS)
    failed = []
    if not sys.argv[1:]:
        tools.say("the wheel in fresh environments")
        command = [os.path.join(setup.VENV, "bin", "python"), "-m", "pytest", "-q", "-m", "installation"]
        if subprocess.call([*command, "tests/test_installation.py"], cwd=tools.ROOT):
            failed.append("fresh environments")
    try:
        runs = environments()
    except (tools.SetupError, subprocess.CalledProcessError) as error:
        tools.say(str(error))
        return 1
    for name, python in runs:
        tools.say(f"the quick tests in {name}")
        command = [python, "-m", "pytest", "-q", "-n", "2", "-m", "not slow", f"--ignore={NEEDS_IT}", *WARNINGS, *tests]
        if subprocess.call(command, cwd=tools.ROOT, env=tools.environment(os.path.join(tools.ROOT, name))):
            failed.append(name)
    if failed:
        tools.say("failed in {}".format(" and ".join(failed)))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
