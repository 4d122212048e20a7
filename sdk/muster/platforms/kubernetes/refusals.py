"""The words in which a cluster refuses, what they mean, and what to try, as Muster's errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from muster.errors import LaunchRefused, PlatformError
from muster.platforms.kubernetes.client import Refused
from muster.text.arguments import Argument, ArgumentText

ROLE = "ask for the Role of docs/kubernetes.md in that namespace; `muster doctor -p kubernetes` says what is missing"


class Refusal(NamedTuple):
    """A kind of answer by which clusters refuse: its status, how to tell it, what it means, and what to try."""

    code: int
    pattern: str
    meaning: str
    advice: str | None


# The first that fits counts.
REFUSALS = (
    Refusal(
        403,
        r"exceeded quota",
        "the namespace's quota does not allow it",
        "fewer or smaller workers; kubectl describe quota says what there is, and who uses it",
    ),
    Refusal(403, r"must specify|failed quota", "the namespace's quota wants a limit that is not given", None),
    Refusal(
        403,
        r"violates PodSecurity|PodSecurityPolic|security context constraint",
        "the cluster's rules for the security of pods do not allow it",
        ArgumentText("another ", Argument("user", ""), ", or without an ", Argument("overlay", "")),
    ),
    Refusal(403, r"maximum .* usage per|minimum .* usage per", "the namespace's limits for one pod do not allow it",
            "smaller workers; kubectl describe limitrange says what is allowed"),
    Refusal(403, r"is being terminated", "the namespace is being deleted",
            ArgumentText(Argument("namespace", ""), " another one")),
    Refusal(403, r"service account .* not found|serviceaccount .* not found", "there is no such service account",
            ArgumentText(Argument("service_account", ""), " one that kubectl get serviceaccounts lists")),
    Refusal(403, r"PriorityClass|priority class", "there is no such priority class", None),
    Refusal(403, r"cannot \w+ resource|forbidden", "this user has no right to", ROLE),
    Refusal(401, r"", "the cluster does not know this user, or the login has ended",
            "log in again, and see that kubectl get pods works"),
    Refusal(404, r"namespaces? .* not found", "there is no such namespace",
            ArgumentText(Argument("namespace", ""), " one that kubectl get namespaces lists")),
    Refusal(409, r"already exists", "there is something of that name already", "kubectl delete it, if nobody needs it"),
    Refusal(422, r"", "the cluster cannot make sense of it", None),
    Refusal(400, r"", "the cluster cannot make sense of it", None),
    Refusal(429, r"", "the cluster is too busy, and has not answered for some time", "try again later"),
)  # fmt: skip


def explain(error: Refused) -> tuple[str, str | None]:
    """Return the meaning of a refusal, and what to try; the cluster's own words where nobody knows better."""
    for refusal in REFUSALS:
        if refusal.code == error.code and re.search(refusal.pattern, error.said, re.IGNORECASE):
            return refusal.meaning, refusal.advice
    return "", error.advice


@contextlib.contextmanager
def asking(what: str, worker: str | None = None) -> Iterator[None]:
    """Turn refusals of requests made inside into errors that say more.

    Args:
        what: what could not be done where the cluster says no, such as ``The pods could not be listed``.
        worker: whom it concerns; the error is LaunchRefused then.

    Raises:
        LaunchRefused, PlatformError: it says no.
    """
    try:
        yield
    except Refused as error:
        meaning, advice = explain(error)
        text = f"{what}: {meaning}. Kubernetes says: {error.said}" if meaning else f"{what}: {error.said}"
        kind = LaunchRefused if worker else PlatformError
        raise kind(text, worker=worker, advice=advice) from error
