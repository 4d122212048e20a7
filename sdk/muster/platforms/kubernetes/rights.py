"""The rights that the platform needs of a cluster: the Role of docs/kubernetes.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from muster.platforms.kubernetes.client import ApiClient

Rights = Mapping[str, Sequence[str]]  # verbs by resource

RUNS: Rights = {"pods": ("get", "list", "create", "delete"), "secrets": ("create", "delete")}
# Logs of workers that have ended without a session; why a pod was deleted, on clusters older than 1.26.
TOLD: Rights = {"pods/log": ("get",), "events": ("list",)}
TUNNELS: Rights = {"pods/exec": ("get", "create")}  # create since Kubernetes 1.35, get before
TUNNELS_BEFORE_LAUNCH: Rights = {"pods/exec": ("get",)}  # only the doctor asks for both: older Roles have just this one
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
FORBIDDEN = re.compile(r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group ""')


def review(namespace: str, resource: str, verb: str) -> dict[str, Any]:
    """The question to a cluster whether its user has a right."""
    kind, _, part = resource.partition("/")
    asked = {"namespace": namespace, "verb": verb, "resource": kind, **({"subresource": part} if part else {})}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }


def missing(client: ApiClient, namespace: str, wanted: Rights) -> dict[str, list[str]]:
    """Ask the cluster which of these rights its user does not have.

    Raises:
        PlatformError: it cannot be asked.
    """
    found: dict[str, list[str]] = {}
    for resource, verbs in wanted.items():
        for verb in verbs:
            answer = client.create(REVIEWS, review(namespace, resource, verb)).get("status") or {}
            if answer.get("allowed") is False:
                found.setdefault(resource, []).append(verb)
    return found


def in_words(rights: Rights) -> str:
    """Return rights in words.

    >>> in_words({"pods": ["list"], "secrets": ["create", "delete"]})
    'list pods, create secrets, delete secrets'
    """
    return ", ".join(f"{verb} {resource}" for resource, verbs in rights.items() for verb in verbs)


def rules(rights: Rights) -> str:
    """Return the rules of a Role that give these rights.

    >>> rules({"pods": ["list"]})
    '- {apiGroups: [""], resources: [pods], verbs: [list]}'
    """
    return " ".join(
        f'- {{apiGroups: [""], resources: [{resource}], verbs: [{", ".join(verbs)}]}}'
        for resource, verbs in rights.items()
    )


def advice(rights: Rights, namespace: str = "") -> str:
    """Return what to ask for where these rights are missing."""
    where = f" of the namespace {namespace}" if namespace else ""
    return f"add to your Role{where}: {rules(rights)} (docs/kubernetes.md has all of it)"


def refused(said: str) -> dict[str, list[str]]:
    """Return the right that a cluster's words say is missing; nothing where they are about something else."""
    found = FORBIDDEN.search(said)
    return {found["resource"]: [found["verb"]]} if found else {}
