"""Entry point of the agent's programs: ``python -I -S .../agent/__main__.py ROLE ARGUMENT``.

Roles: ``guard`` (argument: descriptor of the socket to the platform), ``worker`` (path of its config) and ``entry``
(path of the agent's socket). Its folder is imported as a package of its own, without the rest of Muster and without
site-packages: that is quick, and works in any interpreter.
"""

import os.path
import sys


def main() -> None:
    """Start the role named on the command line."""
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    role, argument = sys.argv[1:]
    if role == "guard":
        from agent.guard import main as guard_main  # type: ignore[import-not-found]

        guard_main(int(argument))
    elif role == "entry":
        from agent.entry import main as entry_main  # type: ignore[import-not-found]

        entry_main(argument)
    elif role == "worker":
        from agent.worker import main as worker_main  # type: ignore[import-not-found]

        worker_main(argument)
    else:
        raise SystemExit("no such role: {}".format(role))


main()
