"""The environment of every TensorFlow task: the cluster, and its own place there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from muster.job import Member


def address(member: Member) -> str:
    """Return the address where a worker's server listens, ``host:port``."""
    return f"{member.host}:{member.ports[0]}"


def task_environment(member: Member, spec: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """``TF_CONFIG`` for one task of a cluster, given its addresses by role."""
    return {
        "TF_CONFIG": json.dumps({"cluster": spec, "task": {"type": member.role, "index": member.index}}),
        "no_grpc_proxy": hosts_of(spec),
    }


def hosts_of(spec: Mapping[str, Sequence[str]]) -> str:
    """All hosts of a cluster, as ``no_grpc_proxy`` lists those that gRPC reaches without the environment's proxies."""
    return ",".join(sorted({address.rpartition(":")[0] for addresses in spec.values() for address in addresses}))
