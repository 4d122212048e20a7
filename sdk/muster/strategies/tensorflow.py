"""What every TensorFlow task finds in its environment: the cluster, and its own place there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from muster.job import Member


def address(member: Member) -> str:
    """Where a worker's server listens, ``host:port``."""
    return f"{member.host}:{member.ports[0]}"


def task_environment(member: Member, spec: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """``TF_CONFIG`` for one task of a cluster, given its addresses by role."""
    hosts = {address.rpartition(":")[0] for addresses in spec.values() for address in addresses}
    return {
        "TF_CONFIG": json.dumps({"cluster": spec, "task": {"type": member.role, "index": member.index}}),
        # gRPC would go through the proxies of the environment, which cannot reach the workers.
        "no_grpc_proxy": ",".join(sorted(hosts)),
    }
