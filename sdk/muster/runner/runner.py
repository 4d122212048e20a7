"""Starts the user's script in the user's interpreter, and reports an exception to the agent when it is raised.

    runner.py program FILE [ARGUMENT...]      the file as __main__
    runner.py module NAME [ARGUMENT...]       the module as __main__
    runner.py task FILE|NAME [ARGUMENT...]    its run(cluster, server, task_index), beside a TensorFlow server
    runner.py function FILE [ARGUMENT...]     a function pickled by cloudpickle
    runner.py serve                           a TensorFlow server and nothing else

TF_CONFIG has the cluster that a server belongs to. This file is copied beside the packages that it needs.
"""

import os
import sys

if __name__ == "__main__":  # not where multiprocessing imports it once more, with the script's own modules in front
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):  # else the interpreter has put its folder there
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from muster.runner.modes import main

    main(sys.argv[1:])
