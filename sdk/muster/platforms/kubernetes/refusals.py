"""Refusals by a cluster: how each is recognized, what it means, and what to try, as Muster's errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from muster.errors import LaunchRefused, PlatformError
from muster.platforms.kubernetes import rights
from muster.platforms.kubernetes.client import ApiRefused
from muster.platforms.refusals import Refusal, find_refusal, in_words
from muster.text.arguments import Argument, ArgumentText

ROLE = "ask for the Role of docs/kubernetes.md in that namespace; `muster doctor -p kubernetes` says what is missing"

# The first that matches counts.
REFUSALS = (
    Refusal(
        r"exceeded quota", "the namespace's quota does not allow it",
        "fewer or smaller workers; kubectl describe quota says what there is, and who uses it", 403,
    ),
    Refusal(r"must specify|failed quota", "the namespace's quota wants a limit that is not given", code=403),
    Refusal(
        r"violates PodSecurity|PodSecurityPolic|security context constraint",
        "the cluster's rules for the security of pods do not allow it",
        ArgumentText("another ", Argument("user", ""), ", or without an ", Argument("overlay", "")), 403,
    ),
    Refusal(
        r"admission webhook .* denied", "a rule of the cluster (an admission webhook) does not allow it",
        ArgumentText("ask who keeps the cluster what it wants of pods; ", Argument("overlay", ""), " can change them"),
    ),
    Refusal(
        r"failed calling webhook", "a program that the cluster asks about every pod (an admission webhook) fails",
        "tell who keeps the cluster",
    ),
    Refusal(
        r"maximum .* usage per|minimum .* usage per", "the namespace's limits for one pod do not allow it",
        "smaller workers; kubectl describe limitrange says what is allowed", 403,
    ),
    Refusal(
        r"is being terminated", "the namespace is being deleted",
        ArgumentText(Argument("namespace", ""), " another one"), 403,
    ),
    Refusal(
        r"service account .* not found|serviceaccount .* not found", "there is no such service account",
        ArgumentText(Argument("service_account", ""), " one that kubectl get serviceaccounts lists"), 403,
    ),
    Refusal(r"PriorityClass|priority class", "there is no such priority class", code=403),
    Refusal(r"cannot \w+ resource|forbidden", "this user has no right to", ROLE, 403),
    Refusal(
        r"", "the cluster does not know this user, or the login has ended",
        "log in again, and see that kubectl get pods works", 401,
    ),
    Refusal(
        r"namespaces? .* not found", "there is no such namespace",
        ArgumentText(Argument("namespace", ""), " one that kubectl get namespaces lists"), 404,
    ),
    Refusal(r"already exists", "there is something of that name already", "kubectl delete it, if nobody needs it", 409),
    Refusal(r"", "the cluster cannot make sense of it", code=422),
    Refusal(r"", "the cluster cannot make sense of it", code=400),
    Refusal(r"", "the cluster is too busy, and has not answered for some time", "try again later", 429),
)  # fmt: skip


@contextlib.contextmanager
def asking(what: str, worker: str | None = None) -> Iterator[None]:
    """Turn refusals of requests made inside into errors with their meaning and advice.

    Args:
        what: what could not be done if the cluster refuses, such as ``The pods could not be listed``.
        worker: the worker that is being launched; a refusal is then raised as LaunchRefused.

    Raises:
        LaunchRefused, PlatformError: the cluster refuses.
    """
    try:
        yield
    except ApiRefused as error:
        refusal = find_refusal(REFUSALS, error.said, error.code)
        kind = LaunchRefused if worker else PlatformError
        advice = refusal.advice if refusal else error.advice
        lacks = rights.refused(error.said) if error.code == 403 else {}
        if lacks:
            advice = rights.advice(lacks)
        raise kind(in_words(what, error.said, refusal, "Kubernetes"), worker=worker, advice=advice) from error
