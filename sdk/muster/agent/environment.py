"""The environment of a worker's processes, made from the worker's config alone. Nothing is read or written."""

import os
import re

from .places import is_symbolic, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
SERVER_THREADS = 4
# Makes malloc use huge pages, from glibc 2.35 on. A tensor of megabytes is newly allocated each time, and getting its
# memory in pages of 4 kB takes longer than computing with it.
HUGE_PAGES = "glibc.malloc.hugetlb=1"
OF_ANOTHER_JOB = re.compile(
    r"MUSTER_|OMPI_|PMI_|PMIX_|MPI_LOCAL|HOROVOD_((LOCAL|CROSS)_)?(RANK|SIZE)$|HOROVOD_(HOSTNAME|CONTROLLER|GLOO_)"
)
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy")


def worker_environment(config: "dict[str, Any]", address: str) -> "dict[str, str]":
    """Return the environment of every process of the worker.

    The session's own environment comes first; then variables that follow from the worker's resources; then those that
    the user gave; and last those of the worker's identity and address, which cannot be overridden.

    Args:
        config: the worker, as its platform describes it to its agent.
        address: host address of the worker.

    Of the config it takes ``environ``, the session's environment or the backend's; ``env``, the user's; ``identity``,
    what the platform tells its workers; and ``address_variables``, the names under which it tells them their address.
    """
    environment = _inherited(config["environ"])
    environment.update(_from_resources(config))
    environment.update(resolved(config["env"], config))
    environment.update(_identity(config, address))
    return environment


def resolved(env: "Mapping[str, str]", config: "dict[str, Any]") -> "dict[str, str]":
    """Return variables with this worker's paths in place of the symbols of places.

    A session that knows no paths of the worker does not know its PYTHONPATH either: that is appended to the given one.
    """
    found = {name: resolve(value, config["places"]) for name, value in env.items()}
    own = config["environ"].get("PYTHONPATH")
    if own and is_symbolic(env.get("PYTHONPATH", "")):
        found["PYTHONPATH"] += os.pathsep + own
    return found


def _inherited(environ: "dict[str, str]") -> "dict[str, str]":
    """Return the session's environment without variables that would mislead a worker.

    Those belong to a run or an MPI job around the session, such as its rank; or are blank proxies, which mislead gRPC.
    """
    return {
        name: value
        for name, value in environ.items()
        if not OF_ANOTHER_JOB.match(name) and (value or name.lower() not in PROXIES)
    }


def _from_resources(config: "dict[str, Any]") -> "dict[str, str]":
    threads = str(max(1, int(config["cpu"])))
    found = dict.fromkeys(THREAD_COUNTS, threads)
    # TensorFlow's servers wait for one another in these threads: with fewer they wait for ever.
    found["TF_NUM_INTEROP_THREADS"] = str(max(SERVER_THREADS, int(config["cpu"])))
    found["GLIBC_TUNABLES"] = config["environ"].get("GLIBC_TUNABLES", HUGE_PAGES)
    found["CUDA_VISIBLE_DEVICES"] = ",".join(config["gpus"]) or "-1"
    found["PYTHONUNBUFFERED"] = "1"
    return found


def _identity(config: "dict[str, Any]", address: str) -> "dict[str, str]":
    scratch = config["scratch"]
    return {
        "MUSTER_RUN_ID": config["run_id"],
        "MUSTER_WORKER": config["name"],
        "MUSTER_ROLE": config["role"],
        "MUSTER_INDEX": str(config["index"]),
        "MUSTER_SCRATCH": scratch,
        "MUSTER_REPORT": os.path.join(scratch, "report.sock"),
        "TMPDIR": os.path.join(scratch, "tmp"),
        "IPYTHONDIR": os.path.join(scratch, "ipython"),
        **config["identity"],
        **dict.fromkeys(config["address_variables"], address),
    }
