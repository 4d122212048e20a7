"""TensorFlow servers, and tasks that serve the others until all have returned."""

import contextlib
import json
import os
import socket

from muster.training import progress

from .exceptions import OWN
from .hooks import flush_output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401  (type comments)


def start_server():
    # type: () -> Any
    """Return the TensorFlow server of this task, listening. Raises whatever TensorFlow does where the port is taken."""
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    threads = {
        "intra_op_parallelism_threads": int(os.environ.get("TF_NUM_INTRAOP_THREADS", 0)),
        "inter_op_parallelism_threads": int(os.environ.get("TF_NUM_INTEROP_THREADS", 0)),
    }
    return tf.distribute.Server(
        tf.train.ClusterSpec(config["cluster"]),
        job_name=config["task"]["type"],
        task_index=config["task"]["index"],
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(**threads),
    )


def call(run, take):
    # type: (Any, Any) -> None
    """Hand what the task returns to ``take``, and serve until all tasks of the run have returned."""
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    server = start_server()
    take(run(tf.train.ClusterSpec(config["cluster"]), server, config["task"]["index"]))
    wait_for_others()


def wait_for_others():
    # type: () -> None
    """Serve until all tasks have returned: without this server, others would wait forever, and collectives fail."""
    path = progress.variable(progress.ADDRESS_VARIABLE)
    if not path or os.getpid() != OWN:  # a fork of the script's may come here, too
        return
    flush_output()
    name = os.path.join(progress.variable("MUSTER_SCRATCH"), "done.sock")
    with contextlib.suppress(OSError):  # a socket that an attempt before has left on this worker
        os.unlink(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as done:
        done.bind(name)
        done.settimeout(1.0)
        while True:
            done.sendto(b'{"kind": "returned"}', path)
            try:
                done.recv(1)
                return
            except socket.timeout:  # the agent drops reports while its connection is congested
                pass
