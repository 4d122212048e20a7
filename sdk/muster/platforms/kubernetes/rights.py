"""The rights that the platform needs of a cluster: the Role of docs/kubernetes.md."""

from __future__ import annotations

from muster.platforms.kubernetes.client import Client

NEEDED = {
    "pods": ("get", "list", "create", "delete"),
    "pods/log": ("get",),
    "secrets": ("create", "delete"),
}
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def missing_rights(client: Client, namespace: str) -> list[str]:
    """Ask the cluster which of the rights that are needed its user does not have, and return them in words.

    Raises:
        PlatformError: it cannot be asked.
    """
    found = []
    for resource, verbs in NEEDED.items():
        kind, _, part = resource.partition("/")
        for verb in verbs:
            asked = {"namespace": namespace, "verb": verb, "resource": kind, **({"subresource": part} if part else {})}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            }
            if not client.create(REVIEWS, review)["status"].get("allowed"):
                found.append(f"no right to {verb} {resource} in the namespace {namespace}")
    return found
