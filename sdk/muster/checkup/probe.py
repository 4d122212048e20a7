"""Program that runs on every worker (``python -c``): writes facts about the worker to a file, and waits to be stopped.

Standard library only and Python 3.6 syntax, as the interpreter of any worker may run it.
"""

import importlib.util
import json
import os
import re
import shutil
import sys
import time

LARGE = ("keras", "tensorflow", "torch")  # packages that take seconds to compile
VARIANTS = {"tensorflow_cpu": "tensorflow", "tensorflow_gpu": "tensorflow"}  # the same package, in another build
INSTALLED = re.compile(r"([\w.]+)-(\d[\w.!+]*?)(-py\d.*)?\.(dist|egg)-info$")


def packages() -> "dict[str, str]":
    """Return the version of each installed distribution; of several versions, the first on the path.

    TensorFlow is one package, whichever of its builds it is. What setuptools vendors, and puts on the path when it is
    imported, is left out.
    """
    found: "dict[str, str]" = {}
    for folder in sys.path:
        if os.path.basename(folder) == "_vendor":
            continue
        for entry in os.listdir(folder) if os.path.isdir(folder) else []:
            match = INSTALLED.match(entry)
            if match:
                name = match.group(1).lower()
                found.setdefault(VARIANTS.get(name, name), match.group(2))
    return found


def compiled_anew() -> "list[str]":
    """Return the large packages that every process compiles anew: uncompiled ones, if Python writes no bytecode."""
    return [name for name in LARGE if sys.dont_write_bytecode and is_uncompiled(name)]


def is_uncompiled(package: str) -> bool:
    """Return whether a package is installed without compiled files."""
    spec = importlib.util.find_spec(package)
    return bool(spec and spec.cached and not os.path.exists(spec.cached))


def main() -> None:
    """Write the facts about the worker to a file, and wait."""
    path = os.path.join(os.environ["MUSTER_RESULTS"], os.environ["MUSTER_WORKER"] + ".json")
    facts = {
        "missing": [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None],
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "packages": packages(),
        "compiled_anew": compiled_anew(),
        "free": shutil.disk_usage(os.getcwd()).free,
        "cwd": os.getcwd(),
    }
    with open(path + ".part", "w") as file:
        json.dump(facts, file)
    os.replace(path + ".part", path)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
