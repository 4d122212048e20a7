"""Test, run in the worker's interpreter (``python -c``), that two Horovod ranks on this machine can communicate.

    MODULE...      the Horovod modules that the script imports; the first has the collectives

Prints JSON: ``problem`` (empty if there is none) and ``details``. Python 3.6 syntax; imports only Horovod and its
dependencies.
"""

import json
import os
import subprocess
import sys

RANKS = 2
RANK = """
import importlib, json, sys, traceback

def tell(problem, details=""):
    print("\\n" + json.dumps({"problem": problem, "details": details[-3000:]}), flush=True)
    sys.exit()

for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        tell("{} cannot be imported: {}: {}".format(name, type(error).__name__, error), traceback.format_exc())
hvd = sys.modules[sys.argv[1]]
if not hvd.gloo_built():
    tell("it was built without gloo, which horovodrun is told to use")
try:
    hvd.init()
    if "torch" in sys.argv[1]:
        import torch
        total = float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="doctor")[0])
    else:
        import tensorflow as tf
        total = float(hvd.allreduce(tf.ones(1), op=hvd.Sum, name="doctor")[0])
except BaseException as error:
    tell("an allreduce of two ranks fails: {}: {}".format(type(error).__name__, error), traceback.format_exc())
tell("" if total == hvd.size() else "an allreduce of two ranks gave {} in place of {}".format(total, hvd.size()))
"""


def main(modules: "list[str]") -> "dict[str, str]":
    """Run an allreduce of two ranks; return the answer of the first rank with a problem, else of the first rank."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    slots = get_host_assignments(parse_hosts(f"localhost:{RANKS}"), RANKS, RANKS)
    server.init(slots)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK] + modules,
            env=dict(os.environ, **environment(slot, port)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )
        for slot in slots
    ]
    answers = [answer_of(rank) for rank in ranks]
    return next((answer for answer in answers if answer["problem"]), answers[0])


def environment(slot: object, port: int) -> "dict[str, str]":
    """Return the environment variables that tell a rank its number and the address of the rendezvous server."""
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    places = {"HOROVOD_" + name.upper(): str(getattr(slot, name)) for name in names}
    gloo = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo"}
    gloo["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "30"
    meeting = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    return dict(places, **dict(gloo, HOROVOD_HOSTNAME="localhost", TF_CPP_MIN_LOG_LEVEL="2", **meeting))


def answer_of(rank: "subprocess.Popen[str]") -> "dict[str, str]":
    """Wait for a rank to end; return the answer in its last line, or its exit status if it printed none."""
    output, errors = rank.communicate()
    try:
        return dict(json.loads(output.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        return {"problem": f"a rank ended with status {rank.returncode}", "details": errors[-3000:]}


if __name__ == "__main__":
    print("\n" + json.dumps(main(sys.argv[1:])), flush=True)
    os._exit(0)  # the thread of the rendezvous server would keep the process alive
