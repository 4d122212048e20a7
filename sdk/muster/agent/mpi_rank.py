"""Program that mpiexec starts in place of a rank: it has the agent start the rank, and ends as the rank does.

    mpi_rank.py PROGRAM [ARGUMENT...]

Thus each rank is a child of the agent, as with every other launcher: the agent knows exactly how it ends, and provides
its limits, log and stacks. What mpiexec gave to this process is passed on to the rank: the environment, the cores that
it is bound to, and the descriptor over which MPICH's ranks meet. When mpiexec ends this process, the agent sees the
connection end, and ends the rank.

Standard library only and Python 3.6 syntax; it is copied beside muster.training and imports nothing of Muster.
"""

import array
import ctypes
import json
import os
import signal
import socket
import sys

RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")  # Open MPI, MPICH, and any launcher that speaks PMIx
DESCRIPTOR = "PMI_FD"
PR_SET_PDEATHSIG = 1
FAILED = 127  # exit status of a shell that cannot start a program


def main(argv):
    # type: (list[str]) -> None
    """Have the agent start the rank, wait for its end, and exit with its status."""
    rank = given_rank()
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without mpiexec's daemon, nobody would end the rank
    if os.getppid() != parent:
        sys.exit(FAILED)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            agent.connect(os.path.join(os.environ["MUSTER_SCRATCH"], "agent.sock"))
            ask(agent, argv, rank)
            with agent.makefile("rb") as answers:
                answer = json.loads(answers.readline().decode("utf-8"))
    except (OSError, KeyError, ValueError) as error:
        sys.stderr.write("muster: this worker's agent does not answer: {!r}\n".format(error))
        sys.exit(FAILED)
    if answer.get("error"):
        sys.stderr.write("muster: {}\n".format(answer["error"]))
    sys.exit(answer["code"])


def given_rank():
    # type: () -> str
    """Return the rank that the launcher has put into this process's environment; exit where there is none."""
    for name in RANK:
        if name in os.environ:
            return os.environ[name]
    sys.stderr.write(
        "muster: what started this process gave it no rank: none of {} is in its environment. Muster needs the "
        "mpiexec of Open MPI or MPICH: mpiexec= the path of one\n".format(", ".join(RANK))
    )
    sys.exit(FAILED)


def ask(agent, argv, rank):
    # type: (socket.socket, list[str], str) -> None
    """Send the agent the request to start the rank."""
    request = {
        "type": "rank",
        "rank": int(rank),
        "argv": argv,
        "env": dict(os.environ, MUSTER_RANK=rank),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    data = json.dumps(request).encode("ascii") + b"\n"
    if DESCRIPTOR in os.environ:
        descriptor = int(os.environ[DESCRIPTOR])
        sent = agent.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
        os.close(descriptor)
        data = data[sent:]
    agent.sendall(data)


if __name__ == "__main__":
    main(sys.argv[1:])
