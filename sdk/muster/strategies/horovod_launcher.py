"""horovodrun, started before its arguments are known: it imports and checks first, then reads them from its input.

Runs in the user's interpreter, in a scrubbed environment, and imports nothing of Muster. The first line of input is a
JSON object: ``argv``, the arguments of horovodrun. Arguments, both optional: ``--address=`` is the address at which the
ranks reach this machine, whose interfaces may have other names than theirs; by default it is that of the interface that
horovodrun is given. ``facts`` is the path of a file that lists installations of Horovod known to be built with gloo: to
find out, horovodrun imports TensorFlow, which takes some seconds on every run. Without such a file, as on a worker that
keeps none, all are taken to be, as where agents start the ranks.
"""

import argparse
import atexit
import ctypes
import errno
import importlib
import json
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import signal
import socket
import sys
import tempfile
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401  (type comments)

PR_SET_PDEATHSIG = 1
WHAT_LOGS_IN = "horovod.runner.common.util.safe_shell_exec"
LONGEST = 75  # characters of the folder in which the fork server makes its socket, whose path must be below 108


def main():
    # type: () -> None
    """Import and check, wait for the arguments, and run horovodrun."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without the session nobody would stop the ranks
    if os.getppid() != parent:
        sys.exit("the session has ended")

    start_fork_server()
    use_the_librarys_distutils()
    import horovod
    from horovod.runner import launch

    parser = argparse.ArgumentParser()
    parser.add_argument("--address", default="")
    parser.add_argument("facts", nargs="?")
    given = parser.parse_args()
    facts = given.facts
    if facts is None or remembers_gloo(facts, horovod.__file__):
        launch.gloo_built = lambda verbose=False: True
    elif has_gloo(launch):  # Horovod caches its answer in this process, and asks again later
        remember_gloo(facts, horovod.__file__)

    listen_where_the_ranks_are_told(given.address)
    log_in_everywhere()
    log_in_once(launch)
    fork_what_logs_in()
    line = sys.stdin.readline()
    if not line:
        sys.exit("the session has ended")
    sys.argv = json.loads(line)["argv"]
    launch.run_commandline()
    leave()


def leave():
    # type: () -> None
    """End this process without taking the interpreter apart, for which the end of the run would wait."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def has_gloo(launch):
    # type: (Any) -> bool
    """Return whether Horovod was built with gloo, for which it imports TensorFlow.

    That would log how it was built, which reads like the launcher's words where these are quoted.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # errors alone
    try:
        return bool(launch.gloo_built(verbose=False))
    finally:
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]  # the ranks get this environment


def use_the_librarys_distutils():
    # type: () -> None
    """Make horovodrun import the standard library's distutils, in versions that have one, for the function it needs.

    setuptools replaces it by its own, which takes longer to import than the rest of horovodrun.
    """
    shim = sys.modules.get("_distutils_hack")
    if shim is not None and sys.version_info < (3, 12):
        shim.remove_shim()


def start_fork_server():
    # type: () -> None
    """Start the server from which the processes that log in are forked, and which makes its imports meanwhile.

    It has no threads, ends with this process, and listens in this run's own folder.
    """
    folder = os.getcwd()
    while len(folder) > LONGEST:  # the parent folders belong to this worker, too
        folder = os.path.dirname(folder)
    tempfile.tempdir = folder
    # Some releases of Python 3.9 to 3.11 would listen where everybody on the machine can connect.
    setattr(multiprocessing.util, "abstract_sockets_supported", False)  # noqa: B010  it is Final
    multiprocessing.get_context("forkserver").set_forkserver_preload([WHAT_LOGS_IN])
    multiprocessing.forkserver.ensure_running()
    del sys.modules["__main__"].__file__  # else each fork would import this program once more


def fork_what_logs_in():
    # type: () -> None
    """Make the process that horovodrun starts for each login a fork, instead of a new interpreter."""
    what_logs_in = importlib.import_module(WHAT_LOGS_IN)  # type: Any
    context = multiprocessing.get_context("forkserver")
    what_logs_in.multiprocessing = types.SimpleNamespace(get_context=lambda method: context)


def listen_where_the_ranks_are_told(address):
    # type: (str) -> None
    """Make the rendezvous server listen only on the address that horovodrun gives the ranks, instead of on all.

    The server authenticates nobody, and anybody who writes to it can make the ranks connect elsewhere.

    Args:
        address: the address that horovodrun is to give; if empty, that of the first interface that it is given.
    """
    from horovod.runner.http import http_server
    from horovod.runner.util import network

    told = {"host": address}
    address_of, find_port = network.get_driver_ip, network.find_port

    def note_address(interfaces):
        # type: (object) -> str
        told["host"] = told["host"] or str(address_of(interfaces))
        return told["host"]

    def listen(make, port):
        # type: (Any, int) -> Any
        try:
            return make((told["host"], port))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL and not isinstance(error, socket.gaierror):
                raise
            # The workers reach this machine by an address that is not on any of its own interfaces, or by a name that
            # is known to them alone.
            server = make(("", port))
            print("{} is not an address of this machine: listening on all that it has".format(told["host"]), flush=True)
            return server

    network.get_driver_ip = note_address
    http_server.find_port = lambda make: find_port(lambda any_host: listen(make, any_host[1]))


def log_in_everywhere():
    # type: () -> None
    """Make horovodrun start ranks on this machine over ssh like all others, instead of directly.

    The workers' agents would know nothing of ranks started directly.
    """
    from horovod.runner.util import network

    network.get_local_host_addresses = set


def log_in_once(launch):
    # type: (object) -> None
    """Skip horovodrun's test login to each worker, whose sshd is known to listen.

    If a login is impossible, the one that starts the rank says why.
    """
    launch._check_all_hosts_ssh_successful = lambda *_, **__: True  # type: ignore[attr-defined]


def _stamp(path):
    # type: (str) -> str
    """Return the identity of an installation of Horovod: its path, and the time of its installation."""
    return " ".join([path, str(os.stat(os.path.dirname(path)).st_mtime_ns)])


def remembers_gloo(facts, path):
    # type: (object, str) -> bool
    """Return whether the file says that this installation has gloo."""
    if not facts or not os.path.exists(str(facts)):
        return False
    with open(str(facts)) as file:
        return _stamp(path) in file.read().splitlines()


def remember_gloo(facts, path):
    # type: (object, str) -> None
    """Note in the file that this installation has gloo."""
    if facts:
        with open(str(facts), "a") as file:
            file.write(_stamp(path) + "\n")


if __name__ == "__main__":
    main()
