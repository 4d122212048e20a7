"""Run on every worker (``python -c``): writes down what the worker has, and waits until it is stopped.

Standard library only and Python 3.6 syntax: any interpreter that trains runs it.
"""

import importlib.util
import json
import os
import re
import shutil
import sys
import time

LARGE = ("keras", "tensorflow", "torch")  # to compile one of them takes seconds
INSTALLED = re.compile(r"([\w.]+)-(\d[\w.!+]*?)(-py\d.*)?\.(dist|egg)-info$")


def packages() -> "dict[str, str]":
    """The version of each installed distribution, the one first on the path where there are several.

    What setuptools has brought along for itself, and puts on the path when it is imported, is not installed.
    """
    found: "dict[str, str]" = {}
    for folder in sys.path:
        if os.path.basename(folder) == "_vendor":
            continue
        for entry in os.listdir(folder) if os.path.isdir(folder) else []:
            match = INSTALLED.match(entry)
            if match:
                found.setdefault(match.group(1).lower(), match.group(2))
    return found


def compiled_anew() -> "list[str]":
    """The large packages that every process compiles anew: nothing compiled is there, and none is to be kept."""
    return [name for name in LARGE if sys.dont_write_bytecode and is_uncompiled(name)]


def is_uncompiled(package: str) -> bool:
    """Return whether a package is there as source alone."""
    spec = importlib.util.find_spec(package)
    return bool(spec and spec.cached and not os.path.exists(spec.cached))


def main() -> None:
    """Write down what the worker has, and wait."""
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
