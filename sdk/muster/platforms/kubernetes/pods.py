"""The manifests of workers: pods, and Secrets with their agents. Plain data, as ``kubectl create`` takes it.

The pods meet the "restricted" pod security standard: no root, no privileges, and no means to gain either.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.agent.places import is_symbolic, symbol
from muster.job import Resources, WorkerSpec
from muster.platforms.agent_package import from_package, packed_agent
from muster.platforms.agents import agent_config

HOME, SECRETS = "/muster", "/var/run/muster"  # in a pod: a folder that its worker may write to, and its Secrets
NEWS = "/dev/termination-log"  # an agent reports its end here: Kubernetes reads it when the container has ended
LARGEST_NAME = 63  # characters of a host name, which a pod's name becomes, and of a label's value
LARGEST_SECRET = 700_000  # bytes of configs in one Secret, whose limit is 1 MiB
AGENT_MEMORY = 64 << 20  # bytes that a pod gets for the agent, on top of the worker's memory
GRACE_SECONDS = 5  # time that an agent may take to end its processes and itself
CONTAINER = "worker"
OWNER, WORKER, RUN = "muster/owner", "muster/worker", "muster/run"  # labels
SESSION, SUBMISSION = "muster/session", "muster/submission"  # annotations
VARIABLES = {"id": "HOSTNAME", "address": "MUSTER_ADDRESS", "session": "MUSTER_SESSION_ADDRESS", "own": "MUSTER_POD"}


@dataclass(frozen=True)
class PodSetting:
    """The settings that the pods of one submission share.

    Attributes:
        owner: label of everything that a platform object has made.
        session: label of its process, from ``session_guard.owner()``.
        submission: the submission's key.
        image: the image of the pods.
        python: the interpreter that runs the agent.
        user: user and group id of their processes.
        log_cap: largest size of a worker's log in bytes.
        seconds: how long a pod may live; None for no limit.
        queue: queue of Kueue that they wait in; empty without Kueue.
        has_tunnel: whether agents that cannot dial the session reach it through a tunnel.
        spec: further fields of the pods' ``spec``.
        overlay: the user's overlay, which is merged into each pod last.
    """

    owner: str
    session: str
    submission: str
    image: str
    python: str
    user: int
    log_cap: int
    seconds: int | None = None
    queue: str = ""
    has_tunnel: bool = False
    spec: Mapping[str, Any] = field(default_factory=dict)
    overlay: Mapping[str, Any] = field(default_factory=dict)


def slug(text: str, largest: int = LARGEST_NAME) -> str:
    """Return a text as a part of a name that Kubernetes accepts; different texts give different names.

    >>> slug("train-3")
    'train-3'
    >>> slug("Train_3")
    'train-3-263991'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain == text and len(plain) <= largest:
        return plain
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{plain[: largest - 7].rstrip('-')}-{digest}".lstrip("-")


def pod_name(spec: WorkerSpec) -> str:
    """Return the name of a worker's pod, which no other worker's pod has had."""
    generation = f"-{spec.generation}" if spec.generation else ""
    worker = slug(spec.name, 30) + generation
    return f"muster-{slug(spec.run_id, LARGEST_NAME - len(worker) - 8)}-{worker}"


def name_of_agent(owner: str, submission: str) -> str:
    """Return the name of the Secret with a submission's agent."""
    return f"muster-{owner}-{hashlib.sha256(submission.encode()).hexdigest()[:8]}"


def agent_secret(setting: PodSetting) -> dict[str, Any]:
    """Return the Secret with the agent and its bytecode; it owns all else of its submission, for removal with it."""
    program = from_package("pod.py", f"{SECRETS}/agent", "main(packed, *sys.argv[1:], make_importable)\n")
    data = {"agent": packed_agent(has_bytecode=True), "pod.py": program.encode()}
    return _secret(name_of_agent(setting.owner, setting.submission), data, setting)


def config_secrets(specs: Sequence[WorkerSpec], setting: PodSetting) -> list[dict[str, Any]]:
    """Return the Secrets with the agents' configs, many in each; a pod is shown only its own config."""
    return [_secret(name, data, setting) for name, data in _shares(specs, setting)]


def pods(specs: Sequence[WorkerSpec], setting: PodSetting) -> list[dict[str, Any]]:
    """Return the pods of a submission, in the order of their workers."""
    secret_of = {key: name for name, data in _shares(specs, setting) for key in data}
    return [_pod(spec, setting, secret_of[spec.name], len(specs)) for spec in specs]


def pod_of_size(resources: Resources, setting: PodSetting) -> dict[str, Any]:
    """Return the pod of any worker with these resources, to see what it would ask the cluster for."""
    scratch = symbol("scratch")
    named: dict[str, Any] = {"name": "worker-0", "role": "worker", "index": 0, "run_id": "run", "cwd": scratch}
    spec = WorkerSpec(**named, resources=resources, log=Path(scratch), scratch=Path(scratch))
    return _pod(spec, setting, "", 1)


def owned_by(made: Mapping[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with an owner, with which Kubernetes removes it."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [reference]}}


def shown(made: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return an object for display: with its namespace, and without a Secret's content."""
    name, *marks = made["metadata"].items()
    placed = {**made, "metadata": dict([name, ("namespace", namespace), *marks])}
    return {**placed, "data": dict.fromkeys(made["data"], "")} if made["kind"] == "Secret" else placed


def merged(below: Any, above: Any) -> Any:
    """Return data merged with other data: mappings by key, lists of named entries by name; else ``above`` counts.

    >>> merged({"a": 1, "b": [{"name": "x", "v": 1}]}, {"b": [{"name": "x", "v": 2}, {"name": "y"}]})
    {'a': 1, 'b': [{'name': 'x', 'v': 2}, {'name': 'y'}]}
    """
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        both = {key: merged(value, above[key]) if key in above else value for key, value in below.items()}
        return {**both, **{key: value for key, value in above.items() if key not in below}}
    if isinstance(below, list) and isinstance(above, list):
        named = {entry["name"]: entry for entry in above if isinstance(entry, Mapping) and "name" in entry}
        known = {entry.get("name") for entry in below if isinstance(entry, Mapping)}
        mixed = [
            merged(entry, named[entry["name"]]) if isinstance(entry, Mapping) and entry.get("name") in named else entry
            for entry in below
        ]
        return mixed + [
            entry for entry in above if not (isinstance(entry, Mapping) and entry.get("name", object()) in known)
        ]
    return above


def _shares(specs: Sequence[WorkerSpec], setting: PodSetting) -> list[tuple[str, dict[str, bytes]]]:
    """Return the Secrets with the workers' configs: the name of each, and its configs by worker."""
    shares: list[tuple[str, dict[str, bytes]]] = []
    size = LARGEST_SECRET
    for spec in specs:
        config = json.dumps(_config(spec, setting)).encode()
        if size + len(config) > LARGEST_SECRET:
            name = f"{name_of_agent(setting.owner, setting.submission)}-{len(shares)}"
            shares.append((name, {}))
            size = 0
        shares[-1][1][spec.name] = config
        size += len(config)
    return shares


def _config(spec: WorkerSpec, setting: PodSetting) -> dict[str, Any]:
    places = {}
    if is_symbolic(str(spec.scratch)):
        places = {name: f"{HOME}/{name}" for name in ("library", "project", "run", "scratch")}
    config = agent_config(spec, setting.log_cap, places)
    known = {"news": NEWS, "variables": VARIABLES, "counts_gpus": True, "has_cgroup": True}
    return {**config, **known, "tunnel": setting.has_tunnel}


def _secret(name: str, data: Mapping[str, bytes], setting: PodSetting) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, **_marks(setting)},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _marks(setting: PodSetting) -> dict[str, Any]:
    return {
        "labels": {"app.kubernetes.io/managed-by": "muster", OWNER: setting.owner},
        "annotations": {SESSION: setting.session, SUBMISSION: setting.submission},
    }


def _pod(spec: WorkerSpec, setting: PodSetting, config: str, workers: int) -> dict[str, Any]:
    marks = _marks(setting)
    labels = {
        **marks["labels"],
        RUN: slug(spec.run_id),
        WORKER: slug(spec.name),
        "muster/role": slug(spec.role),
        "muster/index": str(spec.index),
    }
    annotations = {**marks["annotations"], WORKER: spec.name, "sidecar.istio.io/inject": "false"}
    labels["sidecar.istio.io/inject"] = "false"  # Istio's proxy would carry all traffic of the pod
    if setting.queue:
        labels |= {"kueue.x-k8s.io/queue-name": setting.queue, "kueue.x-k8s.io/pod-group-name": _group(setting)}
        annotations |= {
            "kueue.x-k8s.io/pod-group-total-count": str(workers),
            "kueue.x-k8s.io/retriable-in-group": "false",
        }
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod_name(spec), "labels": labels, "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({"activeDeadlineSeconds": setting.seconds} if setting.seconds else {}),
            "securityContext": _security(setting),
            **setting.spec,
            "containers": [_container(spec, setting)],
            "volumes": _volumes(spec, setting, config),
        },
    }
    overlaid: dict[str, Any] = merged(made, setting.overlay)
    return overlaid


def _group(setting: PodSetting) -> str:
    return name_of_agent(setting.owner, setting.submission)


def _security(setting: PodSetting) -> dict[str, Any]:
    return {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": setting.user,
        "runAsGroup": setting.user,
        "fsGroup": setting.user,
        "runAsNonRoot": setting.user != 0,
    }


def _container(spec: WorkerSpec, setting: PodSetting) -> dict[str, Any]:
    cpu, memory = f"{round(spec.resources.cpu * 1000)}m", str(spec.resources.memory_bytes + AGENT_MEMORY)
    amounts = {"cpu": cpu, "memory": memory}
    if spec.resources.gpu:
        amounts["nvidia.com/gpu"] = str(spec.resources.gpu)
    return {
        "name": CONTAINER,
        "image": setting.image,
        "command": [setting.python, "-I", "-S", f"{SECRETS}/pod.py", SECRETS, HOME],
        "workingDir": HOME,
        "env": [
            {"name": "MUSTER_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "HOME", "value": f"{HOME}/home"},
        ],
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePath": NEWS,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "muster", "mountPath": HOME},
            {"name": "secrets", "mountPath": SECRETS, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }


def _volumes(spec: WorkerSpec, setting: PodSetting, config: str) -> list[dict[str, Any]]:
    agent = {"name": name_of_agent(setting.owner, setting.submission)}
    own = {"name": config, "items": [{"key": spec.name, "path": "config"}]}
    return [
        {"name": "muster", "emptyDir": {}},
        {"name": "secrets", "projected": {"defaultMode": 0o444, "sources": [{"secret": agent}, {"secret": own}]}},
        {
            "name": "shared-memory",
            "emptyDir": {"medium": "Memory", "sizeLimit": str(spec.resources.memory_bytes)},
        },
    ]
