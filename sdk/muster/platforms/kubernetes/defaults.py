"""The defaults of a session's pods, such as namespace, image and user: from options, or from the session's own pod."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from muster.errors import JobError, PlatformUnsupported
from muster.platforms.kubernetes.client import ApiClient, ApiRefused
from muster.runtime.extras import extra
from muster.text.arguments import Argument, ArgumentText

ORDINARY_USER = 1000  # user id in the pods of a session that runs as root
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
LIKE_MINE = ("tolerations", "nodeSelector", "imagePullSecrets")  # fields that pods copy from the session's own pod


class PodOptions(Protocol):
    """The options of the platform that ``find_defaults`` reads."""

    image: str | None
    namespace: str | None
    service_account: str | None
    image_pull_secrets: tuple[str, ...]
    node_selector: tuple[str, ...]
    tolerations: tuple[str, ...]
    user: int | None
    overlay: Path | None


@dataclass(frozen=True)
class PodDefaults:
    """The namespace and the common settings of all pods.

    Attributes:
        namespace: namespace of the pods.
        image: image of the pods; empty where none is known.
        python: the interpreter that runs the agent.
        user: user id of the pods' processes.
        address: this session's address, as the cluster sees it.
        spec: further fields of each pod's ``spec``.
        overlay: the user's overlay, which is merged into each pod last.
        is_mine: whether the image is the session's own, with the same Python and packages.
        owner: the session's own pod, which owns the pods, so that they are removed with it; None where the session is
            not a pod of that namespace.
    """

    namespace: str
    image: str
    python: str
    user: int
    address: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    overlay: Mapping[str, Any] = field(default_factory=dict)
    is_mine: bool = False
    owner: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Raise PlatformUnsupported where no image is known."""
        if not self.image:
            raise PlatformUnsupported(
                "Workers on Kubernetes need an image, and this session is no pod whose own they could have.",
                advice=ArgumentText(Argument("image", ""), " the name of one with Python, and what the script imports"),
            )


def find_defaults(client: ApiClient, options: PodOptions) -> PodDefaults:
    """Return the defaults from options, the session's own pod and the cluster's configuration.

    Raises:
        JobError: an option is invalid.
    """
    access = client.access
    namespace = options.namespace or access.namespace
    mine = _own_pod(client) if access.is_inside else None
    spec = {**_like_mine(mine), **_asked_for(options)}
    image = options.image or (_image(mine) if mine else "")
    return PodDefaults(
        namespace=namespace,
        image=image,
        python=sys.executable if mine and not options.image else "python3",
        user=(os.getuid() or ORDINARY_USER) if options.user is None else options.user,
        address=own_address(access.server),
        spec=spec,
        overlay=read_overlay(options.overlay),
        is_mine=bool(mine and not options.image),
        owner=mine if mine and namespace == access.namespace else None,
    )


def own_address(server: str) -> str:
    """Return this machine's address on the route to a server; a loopback address where there is no route."""
    parts = urlsplit(server)
    try:
        family, _, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing; the kernel only chooses a route
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def toleration(text: str) -> dict[str, str]:
    """Parse a toleration of the form ``key[=value][:effect]``. Raises JobError for an effect that is none.

    >>> toleration("gpu=yes:NoSchedule")
    {'key': 'gpu', 'operator': 'Equal', 'value': 'yes', 'effect': 'NoSchedule'}
    >>> toleration("gpu")
    {'key': 'gpu', 'operator': 'Exists'}
    """
    words, _, effect = text.partition(":")
    if effect and effect not in EFFECTS:
        raise JobError(
            ArgumentText(Argument("tolerations"), f" has {text!r}, and {effect!r} is no effect of a taint."),
            advice=ArgumentText(Argument("tolerations", ""), f" KEY[=VALUE][:EFFECT]; EFFECT is {', '.join(EFFECTS)}"),
        )
    key, equals, value = words.partition("=")
    found = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**found, "effect": effect} if effect else found


def read_overlay(path: Path | None) -> dict[str, Any]:
    """Read the overlay that is merged into each pod; empty without a path.

    Raises:
        JobError: the file cannot be read, or is no mapping.
    """
    if path is None:
        return {}
    with extra("kubernetes"):
        import yaml
    try:
        data = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise JobError(ArgumentText(Argument("overlay"), f" {path} cannot be read: {error}.")) from error
    if not isinstance(data, dict):
        raise JobError(ArgumentText(Argument("overlay"), f" {path} is no part of a pod: it is no mapping."))
    return data


def _asked_for(options: PodOptions) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if options.service_account:
        found["serviceAccountName"] = options.service_account
    if options.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    if options.node_selector:
        found["nodeSelector"] = _pairs(options.node_selector)
    if options.tolerations:
        found["tolerations"] = [toleration(text) for text in options.tolerations]
    return found


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise JobError(
                ArgumentText(Argument("node_selector"), f" has {text!r}; each must be KEY=VALUE, a label of nodes.")
            )
    return {key: value for key, _, value in (text.partition("=") for text in texts)}


def _own_pod(client: ApiClient) -> dict[str, Any] | None:
    """Return the pod that this session runs in; None where this user may not read it."""
    name = os.environ.get("HOSTNAME") or socket.gethostname()
    try:
        return {
            **client.get(f"/api/v1/namespaces/{client.access.namespace}/pods/{name}"),
            "apiVersion": "v1",
            "kind": "Pod",
        }
    except ApiRefused:
        return None


def _image(pod: Mapping[str, Any]) -> str:
    """Return the image of the session's container in its pod: the one whose logs ``kubectl logs`` shows by default."""
    containers = pod["spec"]["containers"]
    named = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    return str(next((entry for entry in containers if entry["name"] == named), containers[0])["image"])


def _like_mine(pod: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: pod["spec"][key] for key in LIKE_MINE if pod["spec"].get(key)} if pod else {}
