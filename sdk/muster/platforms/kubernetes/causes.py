"""The state of a pod in words: why it waits, why it will never run, why it has ended. Pure functions.

Several parts of a pod's status tell this, and they may disagree: the order of the functions here is that of trust.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from muster.platforms.kubernetes import pulls
from muster.platforms.kubernetes.pods import CONTAINER
from muster.text.arguments import Argument, ArgumentText

Pod = Mapping[str, Any]


class Cause(NamedTuple):
    """The cause of a pod's end, or of its not starting.

    Attributes:
        kind: the kind of cause, such as ``evicted``.
        text: what happened, in words and in Kubernetes' own.
        advice: what to try; empty where that is unknown.
    """

    kind: str
    text: str
    advice: str = ""


class PullTrouble(NamedTuple):
    """The trouble with pulling an image of a pod.

    Attributes:
        init: the init container's name; empty for the worker's container.
        error: what Kubernetes has said of it; empty where that is not known.
    """

    init: str
    error: str


RESTART = ArgumentText(Argument("restarts", 1), " and a checkpoint in the script")
MORE_MEMORY = ArgumentText("more ", Argument("memory", ""), " for each worker, or smaller batches")
IMAGE = ArgumentText(Argument("image", ""), " a name that the cluster's nodes can pull")
IMAGE_WITH_PYTHON = ArgumentText(Argument("image", ""), " one with Python 3.6 or later")
ANOTHER_NODE = ArgumentText("run again, or ", RESTART, ": the cluster chooses a node anew")
CONTAINER_ASKS = ArgumentText("what ", Argument("overlay", ""), " and ", Argument("user", ""), " ask of the container")
NODE_OR_CONTAINER = ArgumentText(ANOTHER_NODE, "; or ", CONTAINER_ASKS)
WHOSE_CONTAINER = ArgumentText(
    "ask who puts that container into pods: ", Argument("overlay", ""), ", or the cluster, as for a mesh"
)
MORE_IN_EVENTS = "kubectl get events may say more"

# Reasons of the condition DisruptionTarget (Kubernetes 1.26 and later), which tells why a pod is removed.
DISRUPTIONS = {
    "PreemptionByScheduler": Cause("preempted", "A pod of higher priority took its place", RESTART),
    "DeletionByTaintManager": Cause("node lost", "Its node was tainted: it is lost, or being emptied", RESTART),
    "EvictionByEvictionAPI": Cause("evicted", "It was evicted: somebody empties its node, or balances load", RESTART),
    "DeletionByPodGC": Cause("node lost", "Its node is gone", RESTART),
    "TerminationByKubelet": Cause("evicted", "Its node ended it, for want of something or to shut down", RESTART),
}
# Reasons of events about a pod that is deleted, for clusters without that condition; the first found counts.
EVENTS = {
    "Preempted": DISRUPTIONS["PreemptionByScheduler"],
    "TaintManagerEviction": DISRUPTIONS["DeletionByTaintManager"],
    "NodeNotReady": Cause("node lost", "Its node does not answer any more", RESTART),
    "Evicted": Cause("evicted", "Its node evicted it", RESTART),
}
CALLED_OFF = "Cancelling deletion"  # in the message of an event whose reason is that of the deletion
# Reasons of events about a pod that waits: they tell what delays it, which its status does not.
DELAYS = {
    "FailedMount": "A volume of it cannot be mounted",
    "FailedAttachVolume": "A volume of it cannot be attached to its node",
    "FailedCreatePodSandBox": "Its node cannot make its network",
    "TriggeredScaleUp": "The cluster's autoscaler adds a node",
    "NotTriggerScaleUp": "The cluster's autoscaler adds no node",
    pulls.BEGINS: "Its image is being pulled",
}
OVERCOME = ("Scheduled", "SuccessfulAttachVolume", "Pulled", "Created", "Started")  # events that end earlier delays
# Reasons in a pod's status.
REASONS = {
    "Evicted": Cause("evicted", "Its node evicted it", RESTART),
    "Preempting": Cause("preempted", "A pod of higher priority took its place", RESTART),
    "NodeLost": Cause("node lost", "Its node does not answer any more", RESTART),
    "Terminated": Cause("node lost", "Its node was shut down", RESTART),
    "Shutdown": Cause("node lost", "Its node was shut down", RESTART),
    "NodeShutdown": Cause("node lost", "Its node was shut down", RESTART),
    "DeadlineExceeded": Cause(
        "deadline", "It lived as long as it was allowed to", ArgumentText("a longer ", Argument("lifetime", ""))
    ),
    "UnexpectedAdmissionError": Cause(
        "refused by node", "Its node refused it, mostly for want of a device", ANOTHER_NODE
    ),
    "TopologyAffinityError": Cause(
        "refused by node", "Its node cannot give it cores and devices that are close to each other", ANOTHER_NODE
    ),
    "NodeAffinity": Cause("refused by node", "Its node no longer has the labels that it asks for", ANOTHER_NODE),
    "OutOfcpu": Cause("refused by node", "Its node had no cores left when it came", ANOTHER_NODE),
    "OutOfmemory": Cause("refused by node", "Its node had no memory left when it came", ANOTHER_NODE),
    "OutOfpods": Cause("refused by node", "Its node had no room for another pod when it came", ANOTHER_NODE),
    "OutOfnvidia.com/gpu": Cause("refused by node", "Its node had no GPU left when it came", ANOTHER_NODE),
}
# Reasons of a waiting container that will not start by itself, unless its message tells a passing error.
NEVER = {
    "InvalidImageName": Cause("image", "The name of its image is none", IMAGE),
    "ErrImageNeverPull": Cause("image", "Its image is not on the node, and may not be pulled", IMAGE),
    "CreateContainerConfigError": Cause("container", "Its container cannot be made as it is described", CONTAINER_ASKS),
    "CreateContainerError": Cause("container", "Its node cannot make its container", CONTAINER_ASKS),
    "RunContainerError": Cause("refused by node", "Its node cannot start its container", NODE_OR_CONTAINER),
    "CrashLoopBackOff": Cause("container", "Its container ends again and again", IMAGE_WITH_PYTHON),
}
PASSING = re.compile(
    r"deadline ?exceeded|timed out|timeout|is reserved for|connection refused|transport is closing|try again",
    re.IGNORECASE,
)
PREPARED = "Its node prepares it"  # the beginning of what is said of a pod of which nothing more is known
NOT_STARTED = ("ContainerCannotRun", "StartError")  # reasons of a container that ended as it was to be started
# What runc and crun say where the image is to blame for that: its program is none, or is missing.
NO_PROGRAM = re.compile(
    r"\bexec:? .*(?:not found|no such file|permission denied|is a directory|exec format error)|executable file .*found",
    re.IGNORECASE,
)
PULL_FAILED = ("ErrImagePull", "ImagePullBackOff")
NO_IMAGE = re.compile(
    r"not found|manifest unknown|name unknown|does not exist|denied|unauthorized|authorization failed"
    r"|authentication required|no basic auth|insufficient_scope|invalid reference|no match for platform",
    re.IGNORECASE,
)
REFUSED_IMAGE = re.compile(
    r"denied|unauthorized|authorization failed|authentication required|no basic auth", re.IGNORECASE
)
# Patterns of the scheduler's message about what nodes lack, and its meaning. Before "pod affinity rules" or "pod
# anti-affinity rules" 1.19 and 1.20 say "pod affinity/anti-affinity rules".
LACKS = (
    (r"Insufficient cpu", "too few free cores"),
    (r"Insufficient memory", "too little free memory"),
    (r"Insufficient ephemeral-storage", "too little free disk"),
    (r"Insufficient nvidia\.com/gpu|Insufficient \S*gpu", "too few free GPUs"),
    (r"Too many pods", "too many pods"),
    (r"had taint|untolerated taint", "kept for others by a taint"),
    (r"(?<!volume )node affinity|node selector|node\(s\) didn't match Pod's", "not those that are asked for by label"),
    (r"pod affinity rules", "without the pods that it is to be near"),
    (r"(?<!affinity/)anti-affinity", "to be kept apart from pods that are there (anti-affinity)"),
    (r"topology spread", "not where pods would be spread evenly (topology spread)"),
    (r"unschedulable", "closed to new pods (cordoned)"),
    (r"volume|PersistentVolumeClaim|persistentvolumeclaim", "a volume that cannot be had there"),
)


def end_of(pod: Pod) -> Cause | None:
    """Return why a pod has ended or is about to end; None where its status gives no cause."""
    return _disruption(pod) or _of_reason(pod) or _of_container(pod) or _of_init_container(pod)


def removal_of(pod: Pod) -> Cause | None:
    """Return why the cluster removes a pod, or is about to, from its status; None where that does not say so."""
    cause = _disruption(pod) or _of_reason(pod)
    return cause if cause is not None and cause.kind in ("preempted", "evicted", "node lost") else None


def end_of_events(events: Sequence[Mapping[str, Any]]) -> Cause | None:
    """Return why a pod is being deleted, from the events about it; None where none tells."""
    said = {str(event.get("reason")): str(event.get("message") or "") for event in sorted(events, key=_time_of)}
    found = (reason for reason in EVENTS if reason in said and CALLED_OFF not in said[reason])
    return next((_with_words(EVENTS[reason], said[reason] or reason) for reason in found), None)


def end_by_node(node: Mapping[str, Any], name: str) -> Cause | None:
    """Return why a pod is being deleted, from its node; None where that does not tell.

    Kubernetes before 1.26 notes evictions nowhere, but whoever empties a node closes it to new pods first.
    """
    if not (node.get("spec") or {}).get("unschedulable"):
        return None
    text = f"Its pod was deleted from its node {name}, which is being emptied: it is closed to new pods (drained)."
    return Cause("evicted", text, RESTART)


def events_about(events: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return those of the events about pods of one name that are about a pod with this metadata, as far as it is known.

    Some have no uid, such as those of a deletion because of a taint: of these the ones from before the pod are not.
    """
    uid, since = metadata.get("uid"), str(metadata.get("creationTimestamp") or "")

    def is_about(event: Mapping[str, Any]) -> bool:
        its = (event.get("involvedObject") or {}).get("uid")
        return its == uid if its and uid else (_time_of(event) or since) >= since

    return [event for event in events if is_about(event)]


def newest_delay(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the newest relevant event about a waiting pod where that tells a delay, and else an empty mapping."""
    counts = [event for event in events if event.get("reason") in (*DELAYS, *OVERCOME)]
    newest = max(counts, key=_time_of, default={})
    return newest if newest.get("reason") in DELAYS else {}


def delay_in_words(event: Mapping[str, Any], sizes: pulls.Sizes) -> str:
    """Return, in words, what delays a waiting pod; empty where nothing is known to.

    Args:
        event: as ``newest_delay`` returns it.
        sizes: sizes of images, as far as they are known.
    """
    if not event:
        return ""
    message = str(event.get("message") or event["reason"])
    if event["reason"] == pulls.BEGINS:
        return pulls.in_words(pulls.image_of(event), _time_of(event), sizes)
    return f"{DELAYS[event['reason']]}. Kubernetes says: {message}"


def _time_of(event: Mapping[str, Any]) -> str:
    """Return the time at which an event was last seen, as Kubernetes writes it."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")


def never_runs(pod: Pod, said: str = "") -> Cause | None:
    """Return why a waiting pod will not start by itself; None where it may start.

    Args:
        pod: the pod.
        said: an earlier error of pulling the image of the container that is to start; see ``pull_trouble``.
    """
    init, status = _starting_container(pod)
    waiting = status.get("state", {}).get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if _is_never(reason, message, is_init=bool(init)):
        cause = _with_words(NEVER[reason], f"{reason}: {message}" if message else reason)
        if reason == "RunContainerError":
            cause = _of_start(pod, status, message or reason)
    elif reason == "ImagePullBackOff" and (NO_IMAGE.search(message) or NO_IMAGE.search(said)):
        cause = _image_cause(_image(pod, status), message if NO_IMAGE.search(message) else said)
    else:
        return None
    return _of_init(init, cause) if init else cause


def _is_never(reason: str, message: str, *, is_init: bool) -> bool:
    """Return whether a waiting container will not start by itself."""
    if is_init and reason == "CrashLoopBackOff":  # it is one that stays beside the worker's, and is started again
        return False
    return reason in NEVER and not (NEVER[reason].kind != "image" and PASSING.search(message))


def pull_trouble(pod: Pod, before: PullTrouble | None) -> PullTrouble | None:
    """Return the trouble with pulling the image of the container whose turn it is to start; None where there is none.

    Args:
        pod: the pod.
        before: what this returned for an earlier look at it: after an error Kubernetes only reports that it waits.
    """
    init, status = _starting_container(pod)
    waiting = status.get("state", {}).get("waiting") or {}
    message = str(waiting.get("message") or "")
    if waiting.get("reason") not in PULL_FAILED:
        return None
    if not message.startswith("Back-off"):
        return PullTrouble(init, message)
    return before if before is not None and before.init == init else PullTrouble(init, "")


def wait_of(pod: Pod, said: str = "") -> str:
    """Return, in words, what a pod that does not run yet waits for.

    Args:
        pod: the pod.
        said: as ``never_runs`` takes it.
    """
    placed = condition(pod, "PodScheduled")
    if placed.get("status") != "True":
        return _unplaced(pod, placed)
    init, status = _starting_container(pod)
    state, before = status.get("state", {}), f"{_init(init)}: " if init else ""
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason"), str(waiting.get("message") or "")
    if init and "running" in state:
        return f"{_init(init)} runs first."
    if reason in PULL_FAILED:
        return f"{before}Its image {_image(pod, status)} could not be pulled and is tried again: {said or message}"
    if reason in NEVER:
        return f"{before}{_with_words(NEVER[str(reason)], message).text}"
    if reason:  # ContainerCreating covers everything from volumes to images
        return f"{PREPARED}: volumes, network, image {image_of(pod)} (Kubernetes says: {message or reason})."
    return f"Its node {pod.get('spec', {}).get('nodeName', '')} has not begun with it.".replace("  ", " ")


def condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    """Return a condition of a pod; an empty one where it has none of that type."""
    found: list[Mapping[str, Any]] = pod.get("status", {}).get("conditions") or []
    return next((entry for entry in found if entry.get("type") == kind), {})


def image_of(pod: Pod) -> str:
    """Return the image of a pod's worker container."""
    return str(_described(pod).get("image", ""))


def running_since(pod: Pod) -> str | None:
    """Return when a pod's worker container started, as Kubernetes writes it; None where it does not run."""
    running = _container(pod).get("state", {}).get("running")
    return None if running is None else str(running.get("startedAt"))


def lacks_of(message: str) -> str:
    """Return, in words, what the nodes lack according to the scheduler's message.

    >>> lacks_of("0/3 nodes are available: 1 node(s) had taint {a: }, 2 Insufficient cpu.")
    'too few free cores; kept for others by a taint'
    """
    return "; ".join(words for pattern, words in LACKS if re.search(pattern, message))


def _asked_for(pod: Pod, message: str) -> str:
    """Return how much a pod asks for of what the nodes lack according to the scheduler's message."""
    requests = (_described(pod).get("resources") or {}).get("requests") or {}
    parts = []
    for name in dict.fromkeys(re.findall(r"Insufficient ([\w./-]*\w)", message)):
        if name in requests:
            amount = str(requests[name])
            size = f"{int(amount) / 1e9:.3g} GB" if name == "memory" and amount.isdecimal() else amount
            parts.append(f"{name} {size}")
    return ", ".join(parts)


def _unplaced(pod: Pod, placed: Mapping[str, Any]) -> str:
    message, gates = str(placed.get("message") or ""), _gates(pod)
    if gates or placed.get("reason") == "SchedulingGated":
        held = ", ".join(gates) or message
        return f"It is held back by {held}: a queue has not admitted it yet."
    if placed.get("reason") == "Unschedulable":
        words, asked = lacks_of(message), _asked_for(pod, message)
        why = f"No node takes it ({words})" if words else "No node takes it"
        return f"{why}{f'; it asks for {asked}' if asked else ''}. Kubernetes says: {message}"
    named = pod.get("spec", {}).get("nodeName")
    if named:
        return f"Its node {named}, which an overlay names, has not taken it: there may be no node of that name."
    if message:
        return f"It has no node yet. Kubernetes says: {message}"
    return "The scheduler has not looked at it yet."


def _gates(pod: Pod) -> list[str]:
    return [str(gate.get("name")) for gate in pod.get("spec", {}).get("schedulingGates") or []]


def _disruption(pod: Pod) -> Cause | None:
    for kind in ("DisruptionTarget", "TerminationTarget"):
        found = condition(pod, kind)
        if found.get("status") == "True":
            reason = str(found.get("reason") or "")
            known = DISRUPTIONS.get(reason, Cause("evicted", "It was taken away", RESTART))
            if kind == "TerminationTarget":
                known = Cause("preempted", "Its queue (Kueue) took its place away", RESTART)
            return _with_words(known, str(found.get("message") or reason))
    return None


def _of_reason(pod: Pod) -> Cause | None:
    status = pod.get("status", {})
    reason = str(status.get("reason") or "")
    if not reason:
        return None
    known = REASONS.get(reason)
    if known is None:
        is_full = reason.startswith("OutOf")
        kind, advice = ("refused by node", ANOTHER_NODE) if is_full else ("failed", MORE_IN_EVENTS)
        known = Cause(kind, f"Kubernetes ended it ({reason})", advice)
    return _with_words(known, str(status.get("message") or reason))


def _of_container(pod: Pod) -> Cause | None:
    container = _container(pod)
    ended = terminated(pod) or container.get("lastState", {}).get("terminated") or {}
    reason, code = str(ended.get("reason") or ""), ended.get("exitCode")
    message = str(ended.get("message") or "").strip()
    if reason == "OOMKilled":
        limit = container_limit(pod)
        allowed = f" (its limit is {limit})" if limit else ""
        return Cause("memory", f"It ran out of memory{allowed} and was ended: OOMKilled.", MORE_MEMORY)
    if code in (126, 127):
        return _no_program(_described(pod), message or reason)
    if reason in NOT_STARTED:
        return _of_start(pod, container, message or reason)
    if code == 137:
        text = "Its container was killed (SIGKILL): by somebody, or by its node for want of memory."
        return Cause("killed", text, ArgumentText(MORE_MEMORY, "; or ", RESTART))
    if ended and code:
        last = f" It printed: {message.splitlines()[-1]}" if message else ""
        return Cause("failed", f"Its container ended with status {code} before its agent could say why.{last}")
    return None


def _of_init_container(pod: Pod) -> Cause | None:
    init, status = _starting_container(pod)
    ended = status.get("state", {}).get("terminated") or {}
    if not init or not ended or terminated(pod):  # those that stay beside the worker's end after it, as they may
        return None
    message = str(ended.get("message") or "").strip()
    if ended.get("reason") in NOT_STARTED:
        return _of_init(init, _of_start(pod, status, message or str(ended["reason"])))
    last = f" It printed: {message.splitlines()[-1]}" if message else ""
    text = f"{_init(init)} has failed, with status {ended.get('exitCode')} ({ended.get('reason') or 'Error'}).{last}"
    return Cause("failed", text, WHOSE_CONTAINER)


def _of_start(pod: Pod, status: Mapping[str, Any], said: str) -> Cause:
    """Return why a container, which has this status, could not be started: for its image, or else for its node.

    The pod never starts it again; where its node is to blame, another one may.
    """
    described = _description(pod, status)
    program = (described.get("command") or [""])[0].rpartition("/")[2]
    if NO_PROGRAM.search(said) and program in said:  # not a program of the node's own, such as a runtime for GPUs
        return _no_program(described, said)
    return _with_words(NEVER["RunContainerError"], said)


def _no_program(described: Mapping[str, Any], said: str) -> Cause:
    program = (described.get("command") or ["its program"])[0]
    text = f"Its image {described.get('image', '')} cannot run {program}. Kubernetes says: {said}"
    return Cause("image", text, IMAGE_WITH_PYTHON)


def _of_init(name: str, cause: Cause) -> Cause:
    """Return a cause as that of an init container; whoever put that there knows what to try, unless it is its node."""
    advice = ANOTHER_NODE if cause.kind == "refused by node" else WHOSE_CONTAINER
    return cause._replace(text=f"{_init(name)}: {cause.text}", advice=advice)


def terminated(pod: Pod) -> Mapping[str, Any]:
    """Return the ``terminated`` state of a pod's worker container; empty where it has not ended."""
    found: Mapping[str, Any] = _container(pod).get("state", {}).get("terminated") or {}
    return found


def container_limit(pod: Pod) -> str:
    """Return the memory limit of a pod's worker container, as Kubernetes writes it; empty without a limit."""
    return str(((_described(pod).get("resources") or {}).get("limits") or {}).get("memory", ""))


def _described(pod: Pod) -> Mapping[str, Any]:
    """Return the worker's container from the pod's spec, which may hold others that the cluster has added."""
    return _worker_of(pod.get("spec", {}).get("containers"))


def _container(pod: Pod) -> Mapping[str, Any]:
    """Return the status of the worker's container; empty where that is not known yet."""
    return _worker_of(pod.get("status", {}).get("containerStatuses"))


def _starting_container(pod: Pod) -> tuple[str, Mapping[str, Any]]:
    """Return the container whose turn it is to start: its name if it is an init container, else "", and its status.

    Init containers, which an overlay or the cluster adds, start before it, one after the other. Those that are always
    started again stay beside it.
    """
    described = pod.get("spec", {}).get("initContainers") or ()
    stay = {each["name"] for each in described if each.get("restartPolicy") == "Always"}
    for status in pod.get("status", {}).get("initContainerStatuses") or ():
        state, name = status.get("state", {}), str(status.get("name"))
        has_started = name in stay and status.get("started") and "running" in state
        if not has_started and (state.get("terminated") or {}).get("exitCode") != 0:
            return name, status
    return "", _container(pod)


def _init(name: str) -> str:
    """Return words for a pod's init container of this name, for the beginning of a sentence."""
    return f"Its init container {name}"


def _image(pod: Pod, status: Mapping[str, Any]) -> str:
    """Return the image of a container that has this status."""
    return str(_description(pod, status).get("image", ""))


def _description(pod: Pod, status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return from a pod's spec the container that has this status; the worker's is known before that has one."""
    spec = pod.get("spec", {})
    described = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    name = status.get("name", CONTAINER)
    return next((each for each in described if each.get("name") == name), {})


def _worker_of(entries: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any]:
    return next((entry for entry in entries or () if entry.get("name") == CONTAINER), {})


def _image_cause(image: str, text: str) -> Cause:
    if REFUSED_IMAGE.search(text):
        advice: str = ArgumentText(Argument("image_pull_secrets", ""), " a Secret with a login for that registry")
        return Cause("image", f"The registry does not give its image {image}. Kubernetes says: {text}", advice)
    return Cause("image", f"There is no image {image}. Kubernetes says: {text}", IMAGE)


def _with_words(cause: Cause, said: str) -> Cause:
    return cause._replace(text=f"{cause.text}. Kubernetes says: {said}" if said else f"{cause.text}.")
