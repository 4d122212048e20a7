"""Entry point of the agent's programs: ``python -I -S .../agent/__main__.py ROLE ARGUMENT``.

Roles: ``guard`` (argument: descriptor of the socket to the platform), ``worker`` (path of its config), ``pool`` (the
worker's address), ``entry`` (path of the agent's socket) and ``session`` (module that cleans up after a session). The
folder of this file is imported as a package by itself, without the rest of Muster and without site-packages: that is
quick, and works in any interpreter.

``template`` (descriptor of the socket to the guard; other arguments follow) has site-packages, and ranks are forks of
it: there the package is imported under a name that no module of a script has.
"""

import gc
import os.path
import sys


def main() -> None:
    """Start the role named on the command line."""
    role, argument = sys.argv[1:3]
    if role == "template":
        import importlib

        _load("_muster_agent")
        importlib.import_module("_muster_agent.template").main(int(argument))
        return
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    gc.disable()  # it would look through the modules again and again, all of which stay, also in agents that are forked
    if role == "guard":
        from agent.guard import main as start  # type: ignore[import-not-found]
    elif role == "entry":
        from agent.entry import main as start  # type: ignore[import-not-found]
    elif role == "worker":
        from agent.worker import main as start  # type: ignore[import-not-found]
    elif role == "session":
        from agent.session_end import main as start  # type: ignore[import-not-found]
    elif role == "pool":
        from agent.worker_guard import main as start  # type: ignore[import-not-found]
    else:
        raise SystemExit("no such role: {}".format(role))
    if hasattr(gc, "freeze"):
        gc.freeze()
    gc.enable()
    start(int(argument) if role == "guard" else argument)


def _load(name: str) -> None:
    """Import the package in this folder under ``name``."""
    import importlib.util

    folder = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


main()
