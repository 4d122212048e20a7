"""The rights that the platform needs in a cluster: the Role of docs/kubernetes.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from muster.platforms.kubernetes.client import ApiClient

Rights = Mapping[str, Sequence[str]]  # verbs by resource

RUNS: Rights = {"pods": ("get", "list", "create", "delete"), "secrets": ("create", "delete")}
# For the logs of workers that ended without a session; for the causes of deletions on clusters older than 1.26.
TOLD: Rights = {"pods/log": ("get",), "events": ("list",)}
TUNNELS: Rights = {"pods/exec": ("get", "create")}  # ``create`` since Kubernetes 1.35, ``get`` before
TUNNELS_BEFORE_LAUNCH: Rights = {"pods/exec": ("get",)}  # all that older Roles have: only the doctor checks both
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
FORBIDDEN = re.compile(r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group ""')


def review(namespace: str, resource: str, verb: str) -> dict[str, Any]:
    """Return the request that asks a cluster whether this user has a right."""
    kind, _, part = resource.partition("/")
    asked = {"namespace": namespace, "verb": verb, "resource": kind, **({"subresource": part} if part else {})}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }


def missing(client: ApiClient, namespace: str, wanted: Rights) -> dict[str, list[str]]:
    """Return those of these rights that this user lacks according to the cluster.

    Raises:
        PlatformError: the cluster cannot be asked.
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
    """Return the rules of a Role that grant these rights.

    >>> rules({"pods": ["list"]})
    '- {apiGroups: [""], resources: [pods], verbs: [list]}'
    """
    return " ".join(
        f'- {{apiGroups: [""], resources: [{resource}], verbs: [{", ".join(verbs)}]}}'
        for resource, verbs in rights.items()
    )


def advice(rights: Rights, namespace: str = "") -> str:
    """Return advice for a user who lacks these rights."""
    where = f" of the namespace {namespace}" if namespace else ""
    return f"add to your Role{where}: {rules(rights)} (docs/kubernetes.md has all of it)"


def refused(said: str) -> dict[str, list[str]]:
    """Return the missing right that a cluster's message names; empty for messages about something else."""
    found = FORBIDDEN.search(said)
    return {found["resource"]: [found["verb"]]} if found else {}
