"""The environment of a TensorFlow task: the cluster, and the task's role and number in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from muster.job import Member


def address(member: Member) -> str:
    """Return the address where a worker's server listens, ``host:port``."""
    return f"{member.host}:{member.ports[0]}"


def task_environment(member: Member, spec: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the environment of one task of a cluster, given the cluster's addresses by role."""
    return {
        "TF_CONFIG": json.dumps({"cluster": spec, "task": {"type": member.role, "index": member.index}}),
        "no_grpc_proxy": hosts_of(spec),
    }


def hosts_of(spec: Mapping[str, Sequence[str]]) -> str:
    """Return all hosts of a cluster as a value of ``no_grpc_proxy``, so that gRPC reaches them without proxies."""
    return ",".join(sorted({address.rpartition(":")[0] for addresses in spec.values() for address in addresses}))
