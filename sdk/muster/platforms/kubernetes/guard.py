"""The guard of pods: outlives the session, and deletes its pods and Secrets when that is gone.

Agents end by themselves, a lease after they have lost the session, but have no rights to delete anything; and a pod
that was never placed has no agent.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from muster.platforms.kubernetes import notes
from muster.platforms.kubernetes.client import ApiClient
from muster.platforms.kubernetes.kubeconfig import Access, find_access
from muster.platforms.kubernetes.pods import OWNER
from muster.platforms.session_guard import SessionGuard, serve


class PodGuard(SessionGuard):
    """The session's end of it, which this object starts. Raises OSError.

    Args:
        access: the session's way to the cluster, which is the guard's, too, whatever becomes the current one meanwhile.
        namespace: of the pods.
        owner: their label.
    """

    def __init__(self, access: Access, namespace: str, owner: str) -> None:
        asked = {"context": access.context, "files": access.files, "server": access.server}
        self._facts: dict[str, Any] = {**asked, "namespace": namespace, "owner": owner, "secrets": []}
        super().__init__(__name__, self._facts)

    def watch(self, secrets: Sequence[str]) -> None:
        """Have it delete these Secrets, too, should the session end; the next session knows of them as well."""
        self._facts["secrets"] = [*secrets]
        notes.write(self._facts)
        self.tell({"secrets": self._facts["secrets"]})

    def close(self) -> None:
        """Tell it that nothing is left to do, and wait until it has ended."""
        notes.remove(self._facts["owner"])
        super().close()


def remove_everything(client: ApiClient, namespace: str, owner: str, secrets: Iterable[str]) -> None:
    """Delete the pods with an owner's label, and Secrets. Does not wait until they are gone.

    Raises:
        PlatformError: the cluster does not do so.
    """
    path = f"/api/v1/namespaces/{namespace}"
    listed = client.get(f"{path}/pods", labelSelector=f"{OWNER}={owner}")["items"]
    for name in secrets:
        client.delete(f"{path}/secrets/{name}")
    for pod in listed:
        if not pod["metadata"].get("deletionTimestamp"):
            client.delete(f"{path}/pods/{pod['metadata']['name']}")


def secrets_of(pod: Any) -> set[str]:
    """Return the names of the Secrets of Muster's own that a pod of Muster's reads, and no others."""
    own = f"muster-{pod['metadata']['labels'][OWNER]}-"
    sources = [
        (source.get("secret") or {}).get("name")
        for volume in pod.get("spec", {}).get("volumes") or []
        if volume.get("name") == "secrets"
        for source in (volume.get("projected") or {}).get("sources") or []
    ]
    return {name for name in sources if name and name.startswith(own)}


def way_of(facts: Mapping[str, Any]) -> Access:
    """Return the way to the cluster that the session has. Raises PlatformUnsupported."""
    environ = {**os.environ, "KUBECONFIG": facts["files"]} if facts["files"] else os.environ
    return find_access(facts["context"] or None, environ)


def clean_up(facts: dict[str, Any]) -> None:
    """Remove what the session has made that these facts are about. Raises PlatformError."""
    with contextlib.closing(ApiClient(way_of(facts))) as client:
        remove_everything(client, facts["namespace"], facts["owner"], facts["secrets"])
    notes.remove(facts["owner"])


if __name__ == "__main__":
    serve(clean_up)
