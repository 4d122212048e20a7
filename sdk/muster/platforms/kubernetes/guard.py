"""The guard of pods: a process that outlives the session and deletes its pods and Secrets.

Agents end by themselves, a lease after they have lost the session, but have no right to delete anything; and a pod that
was never placed has no agent.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from muster.agent.owners import is_orphaned
from muster.errors import PlatformError
from muster.platforms.kubernetes import causes, notes
from muster.platforms.kubernetes.client import ApiClient
from muster.platforms.kubernetes.kubeconfig import Access, find_access
from muster.platforms.kubernetes.pods import GRACE_SECONDS, OWNER, SESSION
from muster.platforms.kubernetes.refusals import asking
from muster.platforms.session_guard import SessionGuard

ENDS_SECONDS = GRACE_SECONDS + 5.0  # time that pods may take to end after they are deleted
POLL_SECONDS = 2.0  # between two looks at pods, also by a session: what the documents say of the load of the cluster


class PodGuard(SessionGuard):
    """The guard of a session's pods, which this object starts. Raises OSError.

    Args:
        access: the session's access to the cluster; the guard uses the same context even if the current one changes.
        namespace: namespace of the pods.
        owner: label of the pods.
    """

    def __init__(self, access: Access, namespace: str, owner: str) -> None:
        asked = {"context": access.context, "files": access.files, "server": access.server}
        self._facts: dict[str, Any] = {**asked, "namespace": namespace, "owner": owner, "secrets": []}
        super().__init__(__name__, self._facts)

    def watch(self, secrets: Sequence[str]) -> None:
        """Have the guard delete these Secrets, too, after the session's end, and note them for the next session."""
        self._facts["secrets"] = [*secrets]
        notes.write(self._facts)
        self.tell({"secrets": self._facts["secrets"]})

    def close(self) -> None:
        """Tell the guard that nothing is left to remove, and wait until it has ended."""
        notes.remove(self._facts["owner"])
        super().close()


def remove_everything(
    client: ApiClient,
    namespace: str,
    owner: str,
    secrets: Iterable[str],
    seconds: float = ENDS_SECONDS,
    is_own: Callable[[Mapping[str, Any]], bool] = lambda pod: True,
) -> None:
    """Delete the pods with an owner's label, and then these Secrets.

    Where a pod's Secrets go before it has ended, its kubelet may wait for them for two minutes before it ends the pod.

    Args:
        client: client of the cluster.
        namespace: namespace of the pods.
        owner: their label's value.
        secrets: names of the Secrets.
        seconds: time that the pods may take to end, once all are deleted, before their Secrets go.
        is_own: returns whether a pod with that label is to be deleted.

    Raises:
        PlatformError: the cluster fails to.
    """
    path = f"/api/v1/namespaces/{namespace}"

    def listed() -> list[Any]:
        found: list[Any] = client.get(f"{path}/pods", labelSelector=f"{OWNER}={owner}")["items"]
        return list(filter(is_own, found))

    found = listed()
    for pod in found:
        if not pod["metadata"].get("deletionTimestamp"):
            client.delete(f"{path}/pods/{pod['metadata']['name']}")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(is_on_a_node(pod) for pod in found):
        time.sleep(POLL_SECONDS)
        found = listed()
    for name in secrets:
        client.delete(f"{path}/secrets/{name}")


def sweep(client: ApiClient, namespace: str) -> None:
    """Delete the pods and Secrets of sessions that were killed together with their guards."""
    left: dict[str, set[str]] = {}
    with asking("The pods could not be listed"):
        owned: dict[str, list[Any]] = {}
        for pod in client.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=OWNER)["items"]:
            owned.setdefault(pod["metadata"]["labels"][OWNER], []).append(pod)
        for label, all_ in owned.items():
            if any(map(_is_left, all_)):
                # Whoever may make pods can give one the label of another session, which may need the Secrets.
                left[label] = set().union(*map(secrets_of, all_)) if all(map(_is_left, all_)) else set()
    sessions: dict[str, str] = {}
    for facts in notes.left():
        if (facts.get("server"), facts.get("namespace")) == (client.access.server, namespace):
            left.setdefault(facts["owner"], set()).update(facts["secrets"])
            sessions[facts["owner"]] = str(facts["process"])

    def is_own(pod: Mapping[str, Any]) -> bool:
        return _is_left(pod) or _session_of(pod) == sessions.get(pod["metadata"]["labels"][OWNER])

    for label, names in left.items():
        with contextlib.suppress(PlatformError):  # the next session tries again
            # Nobody waits for the pods' ends, as a run waits for this.
            remove_everything(client, namespace, label, names, seconds=0.0, is_own=is_own)
            if label in sessions:
                notes.remove(label)


def _session_of(pod: Mapping[str, Any]) -> str:
    """Return the label of the process that has made a pod; empty if it does not say."""
    return str((pod["metadata"].get("annotations") or {}).get(SESSION, ""))


def _is_left(pod: Mapping[str, Any]) -> bool:
    """Return whether the session that has made a pod has ended for certain."""
    return is_orphaned(_session_of(pod))


def is_on_a_node(pod: Mapping[str, Any]) -> bool:
    """Return whether a node has a pod, and has not ended it yet."""
    has_ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed") or bool(causes.terminated(pod))
    return bool(pod.get("spec", {}).get("nodeName")) and not has_ended


def secrets_of(pod: Any) -> set[str]:
    """Return the names of those Secrets that a pod of Muster's reads and that Muster itself has made."""
    own = f"muster-{pod['metadata']['labels'][OWNER]}-"
    sources = [
        (source.get("secret") or {}).get("name")
        for volume in pod.get("spec", {}).get("volumes") or []
        if volume.get("name") == "secrets"
        for source in (volume.get("projected") or {}).get("sources") or []
    ]
    return {name for name in sources if name and name.startswith(own)}


def way_of(facts: Mapping[str, Any]) -> Access:
    """Return the session's access to the cluster, given the guard's facts. Raises PlatformUnsupported."""
    environ = {**os.environ, "KUBECONFIG": facts["files"]} if facts["files"] else os.environ
    return find_access(facts["context"] or None, environ)


def clean_up(facts: dict[str, Any]) -> None:
    """Delete the pods and Secrets that a session has made, given the guard's facts. Raises PlatformError."""
    with contextlib.closing(ApiClient(way_of(facts))) as client:
        remove_everything(client, facts["namespace"], facts["owner"], facts["secrets"])
    notes.remove(facts["owner"])
