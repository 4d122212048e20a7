"""The questions to a cluster about single pods: what holds up those that wait, and why others are being deleted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from muster.errors import PlatformError
from muster.job import Status, Worker
from muster.platforms.kubernetes import pulls
from muster.platforms.kubernetes.causes import (
    Cause,
    PullTrouble,
    delay_in_words,
    end_by_node,
    end_of_events,
    events_about,
    newest_delay,
    pull_trouble,
    removal_of,
)
from muster.platforms.kubernetes.client import ApiClient, ApiRefused

DELAY_SECONDS = 10.0  # time that a pod may wait before its events are read, and between two such requests
SIZE_SECONDS = 60.0  # between two requests for the size of an image that is being pulled
MOST_PULLS = "500"  # events of ended pulls that are read for it
WAITING = (Status.SCHEDULING, Status.STARTING)


class Inquiries:
    """Asks what the list of pods does not tell, as rarely as possible, and remembers the answers by pods' handles.

    Args:
        client: returns the client of the cluster.
        explain_seconds: how long the events of a pod that is being deleted are read.

    Attributes:
        pull_troubles: the troubles with pulling images of pods.
        delays: what delays waiting pods, in words; the one that was asked about last comes last.
        sizes: the sizes of images, in bytes, as far as they are known.
    """

    def __init__(self, client: Callable[[], ApiClient], explain_seconds: float) -> None:
        self.pull_troubles: dict[str, PullTrouble] = {}
        self.delays: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self._client = client
        self._explain_seconds = explain_seconds
        self._metadata: dict[str, Mapping[str, Any]] = {}  # what events about a pod are told by, of each pod
        self._taken: dict[str, Cause] = {}  # why pods are being deleted, or are about to be
        self._may_see_nodes = True
        self._node_of: dict[str, str] = {}  # of each pod; empty once it was asked why that pod is being deleted
        self._delays_asked_at = float("-inf")
        self._sizes_asked_at = float("-inf")
        self._events_until: dict[str, float] = {}  # until when a pod's events are read, on the monotonic clock

    def remember(self, handle: str, pod: Mapping[str, Any]) -> None:
        """Remember what only this look at a pod may tell."""
        self._metadata[handle] = {name: pod["metadata"].get(name) for name in ("uid", "creationTimestamp")}
        if pod.get("spec", {}).get("nodeName"):
            self._node_of.setdefault(handle, pod["spec"]["nodeName"])
        trouble = pull_trouble(pod, self.pull_troubles.pop(handle, None))
        if trouble is not None:
            self.pull_troubles[handle] = trouble
        removal = removal_of(pod)
        if removal is not None:
            self._taken[handle] = removal
        elif not pod["metadata"].get("deletionTimestamp"):  # it was to be removed, and is not after all
            self._taken.pop(handle, None)

    def why_removed(self, handle: str) -> Cause | None:
        """Return why a pod is being deleted, or is about to be; None where that is not known."""
        return self._taken.get(handle) or self._ask_why(handle)

    def ask_for_a_delay(self, workers: Sequence[Worker]) -> None:
        """Read the events of one waiting pod, each of them in turn, for a delay that its status does not tell."""
        late = time.time() - DELAY_SECONDS
        waiting = [each.id for each in workers if each.status in WAITING and (each.created_at or late) <= late]
        if not waiting or time.monotonic() < self._delays_asked_at + DELAY_SECONDS:
            return
        self._delays_asked_at = time.monotonic()
        order = {handle: number for number, handle in enumerate(self.delays)}
        handle = min(waiting, key=lambda each: order.get(each, -1))
        self.delays.pop(handle, None)
        try:
            delay = newest_delay(self._events_of(handle))
            self._ask_for_a_size(handle.partition("/")[0], pulls.image_of(delay))
            self.delays[handle] = delay_in_words(delay, self.sizes)
        except (PlatformError, KeyError) as error:
            if isinstance(error, ApiRefused) and error.code == 403:  # without the right to read events, never ask again
                self._delays_asked_at = float("inf")

    def _ask_for_a_size(self, namespace: str, image: str) -> None:
        """Read the size of an image that is being pulled from other pods' pulls of it, where they tell it."""
        is_known = not image or pulls.size_of(image, self.sizes) is not None
        if is_known or time.monotonic() < self._sizes_asked_at + SIZE_SECONDS:
            return
        self._sizes_asked_at = time.monotonic()
        selector = f"reason={pulls.ENDS}"
        path = f"/api/v1/namespaces/{namespace}/events"
        with contextlib.suppress(PlatformError, KeyError):
            listed = self._client().get(path, fieldSelector=selector, limit=MOST_PULLS)
            self.sizes |= pulls.sizes_of_events(listed["items"])

    def _events_of(self, handle: str) -> Sequence[Mapping[str, Any]]:
        """Return the events about a pod. Raises PlatformError, KeyError."""
        namespace, _, name = handle.partition("/")
        path, selector = f"/api/v1/namespaces/{namespace}/events", f"involvedObject.name={name}"
        return events_about(self._client().get(path, fieldSelector=selector)["items"], self._metadata.get(handle, {}))

    def _ask_why(self, handle: str) -> Cause | None:
        """Return why a pod is being deleted, from its events or its node; None where these do not tell.

        Events appear with its deletion or a moment later, and so are read only for a few seconds.
        """
        now = time.monotonic()
        if now > self._events_until.setdefault(handle, now + self._explain_seconds):
            return None
        try:
            cause = end_of_events(self._events_of(handle))
        except (PlatformError, KeyError):
            self._events_until[handle] = now  # without the right, or from a busy cluster, do not ask again
            cause = None
        cause = cause or self._ask_node(handle)
        if cause is not None:
            self._taken[handle] = cause
        return cause

    def _ask_node(self, handle: str) -> Cause | None:
        """Return why a pod is being deleted, from its node, which is asked once; None where that does not tell."""
        name = self._node_of.get(handle)
        if not name or not self._may_see_nodes:
            return None
        self._node_of[handle] = ""
        try:
            return end_by_node(self._client().get(f"/api/v1/nodes/{name}"), name)
        except PlatformError as error:
            self._may_see_nodes = not (isinstance(error, ApiRefused) and error.code == HTTPStatus.FORBIDDEN)
            return None
