"""The states of workers, and their causes, from pods as clusters have shown them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from muster.job import EndCause, Status, Worker
from muster.platforms.kubernetes import causes, pulls
from muster.platforms.kubernetes.causes import delay_in_words, end_of_events, newest_delay
from muster.platforms.kubernetes.pods import WORKER
from muster.platforms.kubernetes.states import DELETED, GONE, explained, is_unexplained, state_of

START = "2026-11-22T18:00:00Z"
PLACED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": START}
LIMIT = {"resources": {"limits": {"memory": "567M"}}}


def pod(
    phase: str = "Pending",
    state: dict[str, Any] | None = None,
    *,
    conditions: tuple[dict[str, Any], ...] = (PLACED,),
    deleted: bool = False,
    **status: Any,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "p", "creationTimestamp": START, "annotations": {WORKER: "worker-0"}}
    if deleted:
        metadata["deletionTimestamp"] = START
    container = {"name": "worker", "image": "my/image:1", "command": ["python3"], **LIMIT}
    statuses = [{"name": "worker", "state": state}] if state else []
    return {
        "metadata": metadata,
        "spec": {"containers": [container], "nodeName": "n1"},
        "status": {"phase": phase, "conditions": list(conditions), "containerStatuses": statuses, **status},
    }


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": START}}


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def look(shown: dict[str, Any] | None, was_stopped: bool = False, said: str = "", **known: Any) -> Worker:
    return state_of(Worker("ml/p", "worker-0", **known), shown, was_stopped, said)


def unplaced(message: str, reason: str = "Unschedulable") -> dict[str, Any]:
    return pod(conditions=({"type": "PodScheduled", "status": "False", "reason": reason, "message": message},))


def disrupted(reason: str, kind: str = "DisruptionTarget") -> dict[str, Any]:
    condition = {"type": kind, "status": "True", "reason": reason, "message": "its words"}
    return pod("Failed", ended(137), conditions=(PLACED, condition))


# What runtimes say of a container that does not start: runc and crun of its program, and others of its node.
CREATED = "failed to create containerd task: failed to create shim task: "
NO_PYTHON = (
    f"{CREATED}OCI runtime create failed: runc create failed: unable to start container process: "
    'exec: "python3": executable file not found in $PATH: unknown'
)
NO_PYTHON_BY_CRUN = "executable file `python3` not found in $PATH: No such file or directory"
NO_GPU = "error running prestart hook #0: stderr: nvidia-container-cli: device error: GPU-1: unknown device: unknown"
NO_RUNTIME = f'{CREATED}exec: "nvidia-container-runtime": executable file not found in $PATH: unknown'
NO_DEVICE = f"{CREATED}error gathering device information: stat /dev/nvidia0: no such file or directory: unknown"


def test_a_pod_for_a_node_that_is_not_there_says_which() -> None:
    shown = pod(conditions=())
    shown["spec"] = {**shown.get("spec", {}), "nodeName": "node9"}
    assert "Its node node9, which an overlay names" in str(look(shown).reason)


def test_a_pod_that_is_too_large_says_by_which_number() -> None:
    shown = unplaced("0/3 nodes are available: 1 Insufficient memory, 2 Insufficient cpu.")
    requests = {"cpu": "50", "memory": "100067108864"}
    shown["spec"] = {**shown.get("spec", {}), "containers": [{"name": "worker", "resources": {"requests": requests}}]}
    assert "; it asks for memory 100 GB, cpu 50. Kubernetes says: 0/3" in str(look(shown).reason)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ({**pod(conditions=()), "spec": {}}, "The scheduler has not looked at it yet."),
        (unplaced("0/1 nodes are available: 1 Insufficient cpu."), "too few free cores.*1 Insufficient cpu"),
        (unplaced("0/2 nodes are available: 2 Insufficient nvidia.com/gpu."), "too few free GPUs"),
        (unplaced("0/1 nodes are available: 1 node(s) had taint {a: b}, that"), "kept for others by a taint"),
        (unplaced("0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."), "apart.*anti-affinity"),
        (unplaced("0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules."), "apart"),
        (unplaced("0/2 nodes are available: 2 node(s) didn't match pod affinity rules."), "without the pods that it"),
        (unplaced("0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints."), "spread evenly"),
        (unplaced('persistentvolumeclaim "data" not found'), "volume"),
        (unplaced("Scheduling is blocked", "SchedulingGated"), "held back by Scheduling is blocked"),
    ],
)
def test_a_pod_without_a_node_says_what_it_waits_for(shown: dict[str, Any], words: str) -> None:
    worker = look(shown)
    assert (worker.status, worker.placed_at) == (Status.SCHEDULING, None)
    assert re.search(words, str(worker.reason))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("0/2 nodes are available: 2 node(s) had volume node affinity conflict.", "a volume that cannot be had there"),
        (
            "0/2 nodes are available: 2 node(s) didn't match pod affinity/anti-affinity rules, "
            "2 node(s) didn't match pod affinity rules.",  # as 1.19 and 1.20 say it
            "without the pods that it is to be near",
        ),
        (
            "0/2 nodes are available: 2 node(s) didn't match pod affinity/anti-affinity rules, "
            "2 node(s) didn't match pod anti-affinity rules.",
            "to be kept apart from pods that are there (anti-affinity)",
        ),
        (
            "0/2 nodes are available: 1 node(s) had volume node affinity conflict, "
            "1 node(s) didn't match Pod's node affinity/selector.",
            "not those that are asked for by label; a volume that cannot be had there",
        ),
    ],
)
def test_nothing_is_told_that_nodes_do_not_lack(message: str, words: str) -> None:
    assert causes.lacks_of(message) == words


@pytest.mark.parametrize(
    ("shown", "said", "words"),
    [
        (pod(state=waits("ContainerCreating")), "", "Its node prepares it"),
        (pod(state=waits("ErrImagePull", "rpc error: connection refused")), "", "tried again: rpc error"),
        (pod(state=waits("ImagePullBackOff", "Back-off pulling image")), "no route to host", "tried again: no route"),
        (pod(state=waits("CreateContainerError", "context deadline exceeded")), "", "make its container. Kubernetes"),
        (
            pod(state=waits("CreateContainerError", 'name "x" is reserved for "7"')),
            "",
            "make its container. Kubernetes",
        ),
        (pod(state=waits("RunContainerError", "context deadline exceeded")), "", "start its container. Kubernetes"),
        (pod(state=waits("CreateContainerConfigError", "failed to sync secret cache: timed out")), "", "timed out"),
    ],
)
def test_a_pod_with_a_node_may_still_come_up(shown: dict[str, Any], said: str, words: str) -> None:
    worker = look(shown, said=said)
    assert (worker.status, worker.placed_at is None) == (Status.STARTING, False)
    assert words in str(worker.reason)


@pytest.mark.parametrize(
    ("shown", "said", "words"),
    [
        (pod(state=waits("InvalidImageName", "couldn't parse")), "", "The name of its image is none"),
        (pod(state=waits("ErrImageNeverPull")), "", "may not be pulled"),
        (pod(state=waits("CreateContainerConfigError", "runAsNonRoot")), "", "cannot be made as it is described"),
        (pod(state=waits("CreateContainerError", "no command specified")), "", "cannot make its container.*no command"),
        (pod(state=waits("RunContainerError", "mount /data: not a directory")), "", "cannot start its container"),
        (pod(state=waits("CrashLoopBackOff", "back-off 10s")), "", "Its container ends again and again.*back-off"),
        (pod(state=waits("ImagePullBackOff", "Back-off")), "my/image:1: not found", "There is no image my/image:1"),
        (pod(state=waits("ImagePullBackOff", "Back-off")), "401 unauthorized", "The registry does not give its image"),
    ],
)
def test_a_pod_that_will_never_run_has_failed(shown: dict[str, Any], said: str, words: str) -> None:
    worker = look(shown, said=said)
    assert worker.status is Status.FAILED
    assert re.search(words, str(worker.reason))
    assert worker.advice


@pytest.mark.parametrize(
    ("shown", "cause", "words"),
    [
        (disrupted("PreemptionByScheduler"), EndCause.PREEMPTED, "higher priority"),
        (disrupted("DeletionByTaintManager"), EndCause.LOST, "tainted"),
        (disrupted("EvictionByEvictionAPI"), EndCause.LOST, "evicted"),
        (disrupted("DeletionByPodGC"), EndCause.LOST, "Its node is gone"),
        (disrupted("TerminationByKubelet"), EndCause.LOST, "for want of something"),
        (pod("Failed", reason="Evicted", message="low on memory"), EndCause.LOST, "evicted it.*low on memory"),
        (disrupted("", "TerminationTarget"), EndCause.PREEMPTED, r"queue \(Kueue\) took its place away.*its words"),
        (pod("Failed", reason="Preempting"), EndCause.PREEMPTED, "higher priority"),
        (pod("Failed", reason="DeadlineExceeded"), EndCause.OVERTIME, "as long as it was allowed"),
        (pod("Failed", {"running": {}}, reason="DeadlineExceeded"), EndCause.OVERTIME, "as long as it was allowed"),
        (pod("Failed", reason="NodeLost"), EndCause.LOST, "does not answer"),
        (pod("Failed", reason="OutOfpods"), EndCause.LOST, "no room for another pod"),
        (pod("Failed", reason="OutOfcpu", message="needs 2"), EndCause.LOST, "no cores left when it came.*needs 2"),
        (pod("Failed", reason="OutOfmemory"), EndCause.LOST, "no memory left when it came"),
        (pod("Failed", reason="OutOfnvidia.com/gpu"), EndCause.LOST, "no GPU left when it came"),
        (pod("Failed", reason="OutOfmoon"), EndCause.LOST, "OutOfmoon"),
        (pod("Failed", reason="NodeAffinity"), EndCause.LOST, "no longer has the labels"),
        (pod("Failed", reason="UnexpectedAdmissionError"), EndCause.LOST, "refused it, mostly for want of a device"),
        (
            pod("Failed", reason="TopologyAffinityError"),
            EndCause.LOST,
            "cores and devices that are close to each other",
        ),
        (pod("Failed", reason="Terminated"), EndCause.LOST, "shut down"),
        (pod("Failed", ended(137, "OOMKilled")), EndCause.MEMORY, "its limit is 567M"),
        (pod("Failed", ended(137)), EndCause.LOST, "SIGKILL"),
        (pod("Failed", ended(128, "StartError", 'exec: "python3": not found')), None, "cannot run python3.*not found"),
        (pod("Failed", ended(128, "StartError", NO_PYTHON)), None, "cannot run python3.*in .PATH"),
        (pod("Failed", ended(128, "StartError", NO_PYTHON_BY_CRUN)), None, "cannot run python3.*in .PATH"),
        (pod("Failed", ended(128, "StartError", 'exec: "python3": permission denied')), None, "cannot run python3"),
        (pod("Failed", ended(127, "ContainerCannotRun", "no such file")), None, "cannot run python3.*no such file"),
        (pod("Failed", ended(128, "StartError", "context deadline exceeded")), EndCause.LOST, "cannot start.*deadline"),
        (pod("Failed", ended(128, "StartError", NO_GPU)), EndCause.LOST, "cannot start.*GPU-1"),
        (pod("Failed", ended(128, "StartError", NO_RUNTIME)), EndCause.LOST, "cannot start.*-runtime"),
        (pod("Failed", ended(128, "StartError", NO_DEVICE)), EndCause.LOST, "cannot start.*nvidia0"),
        (pod("Failed", ended(1, message="Traceback\nImportError: x")), None, "status 1 .*printed: ImportError: x"),
        (pod("Failed"), None, "does not say why"),
        (None, EndCause.CANCELLED, "gone"),
    ],
)
def test_how_a_pod_has_ended_is_told(shown: dict[str, Any] | None, cause: EndCause | None, words: str) -> None:
    worker = look(shown, status=Status.RUNNING)
    assert (worker.status, worker.cause) == (Status.FAILED, cause)
    assert re.search(words, str(worker.reason), re.DOTALL)


def beside(shown: dict[str, Any]) -> dict[str, Any]:
    """The same pod where a cluster has put a container of its own before the worker's."""
    other = {"name": "istio-proxy", "image": "mesh:1", "command": ["envoy"]}
    running = {"name": "istio-proxy", "state": {"running": {"startedAt": START}}}
    shown["spec"]["containers"].insert(0, other)
    shown["status"]["containerStatuses"].insert(0, running)
    return shown


def test_a_container_that_was_put_beside_the_worker_s_is_not_taken_for_it() -> None:
    waiting = look(
        beside(
            pod(state=waits("ImagePullBackOff", "Back-off")),
        ),
        said="my/image:1: not found",
    )
    assert (waiting.status, "There is no image my/image:1" in str(waiting.reason)) == (Status.FAILED, True)
    killed = look(beside(pod("Running", ended(137, "OOMKilled"))), status=Status.RUNNING)
    assert (killed.cause, "567M" in str(killed.reason)) == (EndCause.MEMORY, True)
    broken = look(beside(pod("Running", ended(127, "StartError"))))
    assert "my/image:1 cannot run python3" in str(broken.reason)
    assert look(beside(pod("Pending", waits("ContainerCreating")))).status is Status.STARTING
    assert look(beside(pod("Running", {"running": {"startedAt": START}}))).status is Status.RUNNING


def behind(state: dict[str, Any], phase: str = "Pending", **ended: Any) -> dict[str, Any]:
    """A pod of whose two init containers, which a cluster has added, the first has done its work."""
    shown = pod(phase, waits("PodInitializing"), **ended)
    done = {"name": "mesh-rules", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    shown["spec"]["initContainers"] = [{"name": "mesh-rules"}, {"name": "mesh-init", "image": "mesh:1"}]
    shown["status"]["initContainerStatuses"] = [done, {"name": "mesh-init", "image": "mesh:1", "state": state}]
    return shown


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"running": {"startedAt": START}}, "Its init container mesh-init runs first"),
        (waits("ErrImagePull", "dial tcp: refused"), "init container mesh-init.*mesh:1 could not be pulled.*refused"),
        (waits("CreateContainerError", "context deadline exceeded"), "init container mesh-init.*make its container"),
        (waits("CrashLoopBackOff", "back-off 10s"), "init container mesh-init: Its container ends again and again"),
        (waits("PodInitializing"), "Its node prepares it"),
    ],
)
def test_a_pod_waits_for_the_containers_that_were_put_before_the_worker_s(state: dict[str, Any], words: str) -> None:
    worker = look(behind(state))
    assert worker.status is Status.STARTING
    assert re.search(words, str(worker.reason))


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (
            behind(waits("InvalidImageName", "couldn't parse")),
            "init container mesh-init: The name of its image is none",
        ),
        (behind(waits("ImagePullBackOff", "mesh:1: not found")), "init container mesh-init: There is no image mesh:1"),
        (behind(ended(3, message="a\nno iptables"), "Failed"), "mesh-init has failed, with status 3.*no iptables"),
        (behind(ended(137, "OOMKilled"), "Failed"), "mesh-init has failed, with status 137 .OOMKilled"),
    ],
)
def test_a_container_that_was_put_before_the_worker_s_and_fails_is_named(shown: dict[str, Any], words: str) -> None:
    worker = look(shown)
    assert (worker.status, worker.cause) == (Status.FAILED, None)
    assert re.search(words, str(worker.reason), re.DOTALL)
    assert "puts that container into pods" in str(worker.advice)


def test_a_node_that_cannot_start_a_container_is_one_that_restarts_may_replace() -> None:
    """Whether the runtime's words are of the worker's container or of one before it, and already before the end."""
    for shown in (
        pod("Failed", ended(128, "StartError", NO_GPU)),
        pod(state=waits("RunContainerError", NO_GPU)),
        behind(ended(128, "StartError", NO_GPU), "Failed"),
        behind(waits("RunContainerError", NO_GPU)),
    ):
        worker = look(shown)
        assert (worker.status, worker.cause) == (Status.FAILED, EndCause.LOST)
        assert "ode cannot start its container. Kubernetes says: " in str(worker.reason)
        assert "restarts=1" in str(worker.advice)
    no_python = look(pod(state=waits("RunContainerError", NO_PYTHON)))
    assert (no_python.status, no_python.cause) == (Status.FAILED, None)
    assert "Its image my/image:1 cannot run python3. Kubernetes says: failed to create" in str(no_python.reason)
    no_program = look(behind(ended(128, "StartError", 'exec: "/bin/mesh": no such file or directory'), "Failed"))
    assert (no_program.status, no_program.cause) == (Status.FAILED, None)
    assert "init container mesh-init: Its image mesh:1 cannot run its program" in str(no_program.reason)
    assert "puts that container into pods" in str(no_program.advice)


def test_a_container_that_starts_before_the_worker_s_and_stays_is_not_waited_for() -> None:
    shown = behind({"running": {"startedAt": START}})
    shown["spec"]["initContainers"][1]["restartPolicy"] = "Always"
    shown["status"]["initContainerStatuses"][1]["started"] = True
    shown["status"]["containerStatuses"] = [{"name": "worker", "state": waits("InvalidImageName")}]
    assert "The name of its image is none" in str(look(shown).reason)
    assert "init container" not in str(look(shown).reason)
    over = [{"name": "mesh-init", "state": ended(143)}]
    assert look(pod("Succeeded", ended(0, "Completed"), initContainerStatuses=over)).status is Status.SUCCEEDED


def test_a_pod_that_is_deleted_while_a_container_before_the_worker_s_runs_was_deleted() -> None:
    worker = look(behind(ended(143), "Failed", deleted=True))
    assert (worker.status, worker.cause, worker.reason) == (Status.STOPPED, EndCause.CANCELLED, DELETED)


NEWS = '{"type": "worker", "id": "p"}\n{"type": "worker", "status": "%s", "exit_code": %d, "reason": "it said so"}\n'


def test_what_an_agent_says_of_its_end_counts_before_the_exit_status() -> None:
    worker = look(pod("Failed", ended(1, message=NEWS % ("failed", 3))))
    assert (worker.status, worker.exit_code, worker.reason) == (Status.FAILED, 3, "it said so")


def test_memory_counts_before_what_an_agent_says() -> None:
    assert look(pod("Failed", ended(137, "OOMKilled", NEWS % ("failed", 3)))).cause is EndCause.MEMORY


def test_who_was_told_to_end_was_stopped() -> None:
    assert look(pod("Failed", ended(137)), was_stopped=True).status is Status.STOPPED
    assert look(None, was_stopped=True).status is Status.STOPPED
    assert look(pod("Running", {"running": {"startedAt": START}}, deleted=True), True).status is Status.STOPPING


def test_a_pod_that_somebody_else_deletes_is_told() -> None:
    stopping = look(pod("Running", {"running": {"startedAt": START}}, deleted=True))
    assert (stopping.status, stopping.reason) == (Status.STOPPING, DELETED)
    message = '{"type": "worker", "status": "stopped"}\n'
    worker = look(pod("Succeeded", ended(0, "Completed", message), deleted=True))
    assert (worker.status, worker.cause, worker.reason) == (Status.STOPPED, EndCause.CANCELLED, DELETED)
    for status in (137, 143):  # too late, and too early for the agent to say anything
        worker = look(pod("Failed", ended(status), deleted=True))
        assert (worker.status, worker.cause, worker.reason) == (Status.STOPPED, EndCause.CANCELLED, DELETED)
    vanished = state_of(stopping, None, was_stopped=False)  # its end was between two looks
    assert (vanished.status, vanished.cause, vanished.reason) == (Status.STOPPED, EndCause.CANCELLED, DELETED)
    assert look(None).reason == GONE
    assert "run again" in str(worker.advice)
    assert "run again" in str(look(None).advice)


def test_a_pod_that_is_being_removed_says_why_from_its_status() -> None:
    assert causes.removal_of(pod("Running")) is None
    assert causes.removal_of(pod("Failed", ended(137))) is None
    assert causes.removal_of(pod("Failed", reason="DeadlineExceeded")) is None
    for shown in (disrupted("DeletionByTaintManager"), pod("Running", reason="NodeLost", deleted=True)):
        cause = causes.removal_of(shown)
        assert cause is not None
        assert explained(look(pod("Running", deleted=True)), cause).cause is EndCause.LOST


def test_a_running_pod_has_an_address_and_times() -> None:
    worker = look(pod("Running", {"running": {"startedAt": START}}, podIP="10.1.2.3"))
    assert (worker.status, worker.address, worker.reason) == (Status.RUNNING, "10.1.2.3", None)
    assert worker.created_at == worker.placed_at == worker.running_at


@pytest.mark.parametrize(
    ("reasons", "cause"),
    [
        (["Scheduled", "Killing"], None),
        (["Killing", "Preempted"], EndCause.PREEMPTED),
        (["NodeNotReady", "TaintManagerEviction"], EndCause.LOST),
        (["NodeNotReady"], EndCause.LOST),
        (["Evicted"], EndCause.LOST),
    ],
)
def test_events_tell_who_deleted_a_pod(reasons: list[str], cause: EndCause | None) -> None:
    deleted = state_of(Worker("ml/p", "worker-0"), None, was_stopped=False)
    assert is_unexplained(deleted)
    found = end_of_events([{"reason": reason, "message": "so it was"} for reason in reasons])
    assert (found is None) is (cause is None)
    if found is not None:
        told = explained(deleted, found)
        assert (told.cause, told.status) == (cause, Status.FAILED)
        assert "Kubernetes says: so it was" in str(told.reason)


def test_a_deletion_that_was_called_off_is_no_cause() -> None:
    marked = event("TaintManagerEviction", 1, "Marking for deletion Pod ml/p")
    cancelled = event("TaintManagerEviction", 2, "Cancelling deletion of Pod ml/p")
    assert end_of_events([marked]) is not None
    assert end_of_events([cancelled, marked]) is None
    again = event("TaintManagerEviction", 3, "Marking for deletion Pod ml/p")
    assert end_of_events([again, cancelled]) is not None


def event(reason: str, second: int, message: str = "its words") -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": f"2026-11-22T18:00:{second:02}Z"}


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], ""),
        ([event("FailedMount", 2), event("Scheduled", 1)], "A volume of it cannot be mounted. Kubernetes says: its"),
        ([event("FailedAttachVolume", 2)], "cannot be attached to its node"),
        ([event("FailedCreatePodSandBox", 2)], "cannot make its network"),
        ([event("TriggeredScaleUp", 2), event("FailedScheduling", 3)], "autoscaler adds a node"),
        ([event("NotTriggerScaleUp", 2)], "adds no node"),
        ([event("Pulling", 2), event("FailedMount", 1)], "Its image is being pulled since 2026-11-22T18:00:02Z."),
        ([event("FailedMount", 1), event("Pulled", 2)], ""),
        ([event("TriggeredScaleUp", 1), event("Scheduled", 2)], ""),
        ([{"reason": "FailedMount", "eventTime": "2026-11-22T18:00:01.000001Z"}], "Kubernetes says: FailedMount"),
    ],
)
def test_events_tell_what_holds_up_a_pod_that_waits(events: list[dict[str, Any]], words: str) -> None:
    told = delay_in_words(newest_delay(events), {})
    assert words in told
    assert bool(words) is bool(told)


def pulled(words: str, kind: str = "Pulled") -> dict[str, Any]:
    return {"reason": kind, "message": words, "lastTimestamp": "2026-11-22T18:00:01Z"}


OF_1_20 = 'Successfully pulled image "my/image:1" in 27.88s'
OF_1_31 = 'Successfully pulled image "my/image:1" in 27.88s (27.88s including waiting). Image size: 1685071080 bytes.'
HERE_ALREADY = 'Container image "my/image:1" already present on machine'


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([], "Its image my/image:1 is being pulled since 2026-11-22T18:00:01Z."),
        ([OF_1_20, HERE_ALREADY], "Its image my/image:1 is being pulled since 2026-11-22T18:00:01Z."),
        ([OF_1_20, OF_1_31], "Its image my/image:1 (1.69 GB) is being pulled since 2026-11-22T18:00:01Z."),
    ],
)
def test_an_image_that_is_being_pulled_has_the_size_that_the_kubelet_has_told_of_it(
    said: list[str], words: str
) -> None:
    pulling = newest_delay([pulled('Pulling image "my/image:1"', "Pulling")])
    assert pulls.image_of(pulling) == "my/image:1"
    assert delay_in_words(pulling, pulls.sizes_of_events([pulled(text) for text in said])) == words


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("python:3.11", 50),
        ("docker.io/library/python:3.11", 50),
        ("my/image", 60),
        ("my/image@sha256:6", 60),
        ("127.0.0.1:5000/a:1", 70),
        ("localhost/a:1", 80),
        ("image:1", None),
    ],
)
def test_a_node_tells_the_sizes_of_the_images_that_it_has_by_any_of_their_names(name: str, size: int | None) -> None:
    images = [
        {"names": ["docker.io/library/python@sha256:5", "docker.io/library/python:3.11"], "sizeBytes": 50},
        {"names": ["docker.io/my/image@sha256:6", "docker.io/my/image:latest"], "sizeBytes": 60},
        {"names": ["127.0.0.1:5000/a:1"], "sizeBytes": 70},
        {"names": ["localhost/a:1"], "sizeBytes": 80},
        {"names": None, "sizeBytes": 90},
    ]
    sizes = pulls.sizes_of_nodes([{"status": {"images": images}}, {"status": {}}])
    assert pulls.size_of(name, sizes) == size


@pytest.mark.parametrize("known", [causes.DISRUPTIONS, causes.EVENTS, causes.REASONS, causes.NEVER])
def test_every_cause_that_is_known_by_name_says_what_to_try(known: dict[str, causes.Cause]) -> None:
    assert [reason for reason, cause in known.items() if not cause.advice] == []


def test_a_pod_that_was_killed_or_refused_by_its_node_says_what_to_try() -> None:
    for shown in (pod("Failed", ended(137)), pod("Failed", reason="OutOfmoon"), pod("Failed", ended(127))):
        assert look(shown, status=Status.RUNNING).advice
    for shown in (pod("Failed", reason="SysctlForbidden"), pod("Failed")):
        assert "kubectl get events" in str(look(shown, status=Status.RUNNING).advice)
    assert "restarts=1" in str(look(pod("Failed", reason="OutOfmoon")).advice)
