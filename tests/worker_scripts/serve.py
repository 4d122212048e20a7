"""One task of a TensorFlow cluster, as a launcher starts it: serve for good, or run a worker script's `run`.

python serve.py CLUSTER_JSON JOB INDEX [SCRIPT ARGUMENT...]
"""

import importlib
import json
import sys
from pathlib import Path

import tensorflow.compat.v1 as tf


def main() -> None:
    cluster_json, job, index, *script = sys.argv[1:]
    cluster = tf.train.ClusterSpec(json.loads(cluster_json))
    server = tf.train.Server(cluster, job_name=job, task_index=int(index))
    if not script:
        server.join()
    path = Path(script[0])
    sys.path.insert(0, str(path.parent))
    sys.argv = script
    importlib.import_module(path.stem).run(cluster, server, int(index))


if __name__ == "__main__":
    main()
