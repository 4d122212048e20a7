"""The platform ``kubernetes``: workers as bare pods, which Kubernetes does not replace, as runs do that themselves."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from muster.agent.owners import owner
from muster.agent.pod_tunnel import HERE
from muster.errors import LaunchRefused, PlatformError
from muster.job import Resources, Status, Worker, WorkerSpec
from muster.options.fields import option
from muster.platforms.agents import default_log_cap
from muster.platforms.base import Platform, Reach, Relay, Storage, oldest_first
from muster.platforms.kubernetes import pods, pulls, rights, states
from muster.platforms.kubernetes.causes import PREPARED
from muster.platforms.kubernetes.client import ApiClient, ApiRefused, ClusterGone
from muster.platforms.kubernetes.defaults import PodDefaults, find_defaults
from muster.platforms.kubernetes.exec_stream import ExecStream, open_exec
from muster.platforms.kubernetes.guard import POLL_SECONDS, PodGuard, is_on_a_node, sweep
from muster.platforms.kubernetes.inquiries import WAITING, Inquiries
from muster.platforms.kubernetes.kubeconfig import find_access
from muster.platforms.kubernetes.limits import FEWER, ClusterLimits, read_limits
from muster.platforms.kubernetes.refusals import asking
from muster.platforms.kubernetes.tunnels import Tunnels, command_of
from muster.platforms.parallel import at_once
from muster.runtime.extras import extra
from muster.text.arguments import Argument, ArgumentText

KUEUE = "/apis/kueue.x-k8s.io"  # of the cluster's API
AT_ONCE = 8  # requests to the cluster at the same time
IDLE_POLL_SECONDS = 6.0  # between two polls while nothing changes: connected agents report their ends themselves
LIMITS_SECONDS = 10.0  # for which what was read of the cluster's limits counts
CLOSE_SECONDS = 15.0  # time that pods may take to end
TAKEN_SECONDS = 30.0  # for which a pod that is being deleted may still have the same name
NOBODY = Worker("", "")


@dataclass(eq=False, repr=False)
class KubernetesPlatform(Platform):
    """Runs each worker in a pod of its own, in a cluster that ``kubectl`` reaches from here, or that this pod is in.

    Args:
        image: image of the pods; it needs Python 3.6 or later, and what the script imports. None for that of the pod
            that the session runs in.
        namespace: namespace of the pods; None for the kubeconfig's, or the session's own.
        context: entry of the kubeconfig; None for its current one.
        service_account: service account of the pods, of which they get no token. None for the namespace's default.
        image_pull_secrets: names of Secrets with logins to registries.
        node_selector: labels of the nodes that pods may run on, as ``key=value``.
        tolerations: taints that the pods tolerate, as ``key``, ``key=value`` or either with ``:effect``.
        queue: local queue of Kueue that the pods wait in, to be admitted all or none.
        tunnel: whether agents reach the session through the cluster's exec; False if they only dial it. None if they
            dial it, and only those that cannot do so use the exec.
        user: user and group id of the pods' processes; 0 for root, which many clusters refuse.
        lifetime: seconds after which a pod ends, whatever happens.
        overlay: file (YAML or JSON) that is merged into each pod: volumes, priority, or anything that pods can have.
        log_cap: largest size of a worker's log in bytes.
    """

    image: str | None = option(
        None, "Image of the workers' containers", default="that of the session's own pod", metavar="NAME"
    )
    namespace: str | None = option(None, "Namespace of the pods", default="the kubeconfig's", metavar="NAME")
    context: str | None = option(None, "Context of the kubeconfig", default="its current one", metavar="NAME")
    service_account: str | None = option(
        None, "Service account of the pods", default="the namespace's default", metavar="NAME"
    )
    image_pull_secrets: tuple[str, ...] = option((), "Secrets with logins to registries, in quotes", metavar="NAMES")
    node_selector: tuple[str, ...] = option((), "Labels of the nodes for pods, in quotes", metavar="KEY=VALUE")
    tolerations: tuple[str, ...] = option((), "Taints that pods put up with, in quotes", metavar="KEY[=VALUE][:EFFECT]")
    queue: str | None = option(None, "Local queue of Kueue's that the pods wait in", metavar="NAME")
    tunnel: bool | None = option(
        None, "Have workers reach this session through ssh, or the cluster's exec", default="where needed"
    )
    user: int | None = option(None, "User id of the pods' processes", default="yours, or 1000 for root's", minimum=0)
    lifetime: int | None = option(
        None, "Seconds after which a pod ends, whatever happens", default="no limit", metavar="SECONDS", minimum=1
    )
    overlay: Path | None = option(None, "File with what is laid over each pod", metavar="PATH")
    log_cap: int | None = option(
        None, "Largest size of a worker's log in bytes", default="64 MiB", metavar="BYTES", minimum=1
    )
    name = "kubernetes"
    poll_seconds = (POLL_SECONDS, IDLE_POLL_SECONDS)
    explain_seconds = 6.0
    storage = Storage.NOTHING
    python = "python3"

    def __post_init__(self) -> None:
        self._asked: ApiClient | None = None
        self._found: PodDefaults | None = None
        self._guard: PodGuard | None = None
        self._process = owner()
        self._owner = secrets.token_hex(5)
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}
        self._submitted: dict[str, list[str]] = {}
        self._secrets: list[str] = []
        self._told_to_stop: set[str] = set()
        self._deleted: set[str] = set()  # those of these whose deletion the cluster has confirmed
        self._inquiries = Inquiries(self._client, self.explain_seconds)
        self._looked_at = float("-inf")
        self._looked_for: frozenset[str] = frozenset()  # the workers that the last look was for
        self._seen: dict[str, dict[str, Any]] = {}
        self._relays: list[Tunnels] = []
        self._limits: ClusterLimits | None = None
        self._limits_read_at = float("-inf")

    # -- before a launch ----------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Return, in words, the cluster and namespace of the pods, and their image."""
        defaults, way = self._defaults(), ""
        if self._is_tunnelled:
            way = "; agents come through the cluster's exec"
        elif self.tunnel is None:
            way = "; agents that cannot dial this session come through the cluster's exec"
        cluster = self._client().access.server
        return f"{self.name}, namespace {defaults.namespace} of {cluster}, image {defaults.image}{way}"

    def check(self) -> None:
        """Raise PlatformUnsupported where no cluster is known, or no image for the pods."""
        defaults = self._defaults()
        defaults.check()
        self.python = "" if defaults.is_mine else "python3"

    def reach(self) -> Reach:
        """Return this machine's address on the route to the cluster; a loopback address if all agents use tunnels."""
        address = HERE if self._is_tunnelled else self._defaults().address
        return Reach(address, address, relayed=self.tunnel is not False)

    def reach_of_pool(self) -> Reach:
        """Return this machine's address on the route to the cluster.

        Raises:
            PlatformUnsupported: no pod can dial it.
        """
        if self._is_tunnelled:
            return super().reach_of_pool()
        return replace(self.reach(), relayed=False)

    def open_relay(self, host: str, port: int) -> Relay:
        """Return a relay through the cluster's exec for agents that cannot dial the session."""
        defaults, client = self._defaults(), self._client()
        command = command_of(defaults.python, pods.HOME)

        def open_stream(pod: str) -> ExecStream:
            return open_exec(client, defaults.namespace, pod, pods.CONTAINER, command)

        self._relays.append(Tunnels(open_stream, (host, port), always=self._is_tunnelled))
        return self._relays[-1]

    @property
    def _is_tunnelled(self) -> bool:
        """True if no agent can dial the session: the user says so, or its only address is a loopback address."""
        return bool(self.tunnel) or (self.tunnel is None and self._defaults().address.startswith("127."))

    def _client(self) -> ApiClient:
        with self._lock:
            if self._asked is None:
                self._asked = ApiClient(find_access(self.context))
            return self._asked

    def _defaults(self) -> PodDefaults:
        if self._found is None:
            self._found = find_defaults(self._client(), self)
        return self._found

    # -- workers ------------------------------------------------------------------------------------------------------

    def missing_rights(self) -> list[str]:
        """Return, in words, the rights of the guide's Role that this user lacks, according to the cluster."""
        namespace = self._defaults().namespace
        wanted = {**rights.RUNS, **rights.TOLD, **(rights.TUNNELS if self._is_tunnelled else {})}
        with asking("The cluster could not be asked for this user's rights"):
            lacks = rights.missing(self._client(), namespace, wanted)
        return [
            f"no right to {verb} {resource} in the namespace {namespace}: {rights.rules({resource: [verb]})}"
            for resource, verbs in lacks.items()
            for verb in verbs
        ]

    def limits(self) -> list[str]:
        """Return, in words, the quotas and limits of the namespace, and which of them this user may not read."""
        with asking("The cluster could not be asked for the namespace's limits"):
            return self._known_limits().in_words()

    def shortages(self, wanted: Sequence[Resources]) -> list[str]:
        """Return, in words, the quotas that are used up, and what no node has now, where this user may list these.

        Raises:
            ResourceError: a quota or a limit of the namespace can never allow a worker, or no node could ever take it.
        """
        asked = self._pods_of(wanted)
        try:
            return self._known_limits().shortages(asked, is_queued=bool(self.queue))
        except PlatformError:  # the launch asks the cluster, too, and tells what is wrong
            return []

    def _pods_of(self, wanted: Sequence[Resources]) -> list[dict[str, Any]]:
        """Return the pods of workers with these resources, as far as the cluster's limits count them."""
        setting = self._setting("shortages")
        pod_of = {resources: pods.pod_of_size(resources, setting) for resources in dict.fromkeys(wanted)}
        return [pod_of[each] for each in wanted]

    def _check_room(self, wanted: Sequence[Resources]) -> None:
        """Raise LaunchRefused where a quota is used up, by living pods, and ResourceError as ``shortages`` does."""
        self.shortages(wanted)
        left: list[str] = []
        with contextlib.suppress(PlatformError):  # else the cluster itself refuses pods
            left = self._known_limits().used_up(self._pods_of(wanted))
            if left:
                self._limits = None  # what dead sessions had left may be gone since
                left = self._known_limits().used_up(self._pods_of(wanted))
        if left:
            raise LaunchRefused(left[0], advice=FEWER)

    def _known_limits(self) -> ClusterLimits:
        """Return the limits of the namespace as they were some seconds ago. Raises PlatformError."""
        if self._limits is None or time.monotonic() > self._limits_read_at + LIMITS_SECONDS:
            self._limits = read_limits(self._client(), self._defaults().namespace)
            self._limits_read_at = time.monotonic()
            self._inquiries.sizes |= pulls.sizes_of_nodes(self._limits.nodes)
        return self._limits

    def _check_queue(self, client: ApiClient) -> None:
        """Raise LaunchRefused where pods are to wait in a queue of Kueue's, and the cluster has no Kueue."""
        if self.queue:
            try:
                client.get(KUEUE)
            except ApiRefused as refused:  # whoever may not ask learns nothing
                if refused.code == HTTPStatus.NOT_FOUND:
                    raise LaunchRefused(
                        f"The cluster has no Kueue, and so no queue {self.queue!r}: pods would start at once.",
                        advice=ArgumentText("leave out ", Argument("queue", self.queue)),
                    ) from None

    def _check_rights(self, client: ApiClient, namespace: str) -> None:
        """Raise LaunchRefused where this user lacks a right that a run needs sooner or later."""
        wanted = {**rights.RUNS, **(rights.TUNNELS_BEFORE_LAUNCH if self._is_tunnelled else {})}
        lacks: dict[str, list[str]] = {}
        with contextlib.suppress(ApiRefused):  # a user who may not ask learns it from the refusals of requests
            lacks = rights.missing(client, namespace, wanted)
        if lacks:
            has_none = set(lacks) == set(wanted) and "list" in lacks["pods"]
            other = ArgumentText(Argument("namespace", ""), " one in which you may run pods; or ")
            raise LaunchRefused(
                f"This user has no right to {rights.in_words(lacks)} in the namespace {namespace}.",
                advice=ArgumentText(other if has_none else "", rights.advice(lacks, namespace)),
            )

    def submission_text(self, specs: Sequence[WorkerSpec]) -> str:
        """Return the manifests of Secrets and pods, as ``kubectl create`` takes them; the Secrets without contents."""
        with extra("kubernetes"):
            import yaml
        setting = replace(self._setting("plan"), owner="plan")
        made = [pods.agent_secret(setting), *pods.config_secrets(specs, setting), *pods.pods(specs, setting)]
        shown = [pods.shown(each, self._defaults().namespace) for each in made]
        plain = json.loads(json.dumps(shown))  # a copy, as YAML would write shared objects as references
        text: str = yaml.safe_dump_all(plain, sort_keys=False, explicit_start=True)
        return text

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Make one pod per spec. The agent's Secret owns them; the session's own pod, if any, owns that Secret."""
        if run_key in self._submitted:
            return self._submitted[run_key]
        defaults = self._defaults()
        defaults.check()
        client = self._client()
        setting = replace(self._setting(run_key), has_tunnel=any(self._relay_of(spec) for spec in specs))
        if self._guard is None:
            self._check_rights(client, defaults.namespace)
            self._check_queue(client)
            sweep(client, defaults.namespace)
            self._check_room([spec.resources for spec in specs])
            self._guard = PodGuard(client.access, defaults.namespace, self._owner)
        made = [*pods.config_secrets(specs, setting)]
        self._secrets += [pods.name_of_agent(self._owner, run_key), *(each["metadata"]["name"] for each in made)]
        self._guard.watch(self._secrets)
        path = f"/api/v1/namespaces/{defaults.namespace}"
        try:
            agent = pods.agent_secret(setting)
            agent = self._make_secret(pods.owned_by(agent, defaults.owner) if defaults.owner else agent)
            anchor = {**agent, "apiVersion": "v1", "kind": "Secret"}
            _for_each(self._make_secret, [pods.owned_by(each, anchor) for each in made])
            named = zip(specs, pods.pods(specs, setting), strict=True)
            _for_each(lambda pair: self._make_pod(pair[0], pods.owned_by(pair[1], anchor)), list(named))
        except BaseException:
            with contextlib.suppress(PlatformError):
                self._remove(client, path, [pods.pod_name(spec) for spec in specs], [agent, *made], run_key)
            raise
        now = time.time()
        handles = [f"{defaults.namespace}/{pods.pod_name(spec)}" for spec in specs]
        for handle, spec in zip(handles, specs, strict=True):
            self._workers[handle] = Worker(handle, spec.name, created_at=now)
        self._submitted[run_key] = handles
        return handles

    def _relay_of(self, spec: WorkerSpec) -> Tunnels | None:
        return next((relay for relay in self._relays if relay.has(pods.pod_name(spec))), None)

    def _setting(self, run_key: str) -> pods.PodSetting:
        defaults = self._defaults()
        return pods.PodSetting(
            owner=self._owner,
            session=self._process,
            submission=run_key,
            image=defaults.image,
            python=defaults.python,
            user=defaults.user,
            log_cap=self.log_cap or default_log_cap(),
            seconds=self.lifetime,
            queue=self.queue or "",
            spec=defaults.spec,
            overlay=defaults.overlay,
        )

    def _make_secret(self, secret: Mapping[str, Any]) -> dict[str, Any]:
        """Make a Secret, and return it. An existing one, from a request whose answer was lost, is replaced."""
        client, path = self._client(), f"/api/v1/namespaces/{self._defaults().namespace}/secrets"
        with asking("A Secret with the workers' agent could not be made", "the agent"):
            try:
                return client.create(path, secret)
            except ApiRefused as error:
                if error.code != 409:
                    raise
                client.delete(f"{path}/{secret['metadata']['name']}")
                return client.create(path, secret)

    def _make_pod(self, spec: WorkerSpec, pod: Mapping[str, Any]) -> None:
        """Make a worker's pod. Raises LaunchRefused."""
        client, path = self._client(), f"/api/v1/namespaces/{self._defaults().namespace}/pods"
        deadline = time.monotonic() + TAKEN_SECONDS
        with asking(f"{spec.name} was refused", spec.name):
            while True:
                try:
                    client.create(path, pod)
                    return
                except ApiRefused as error:
                    if error.code != 409 or time.monotonic() > deadline:
                        raise
                    taken_by = self._pod(f"{path}/{pod['metadata']['name']}")
                    if taken_by is not None and _is_same(taken_by, pod):
                        return
                    if taken_by is not None and not taken_by["metadata"].get("deletionTimestamp"):
                        raise
                time.sleep(0.5)

    def _pod(self, path: str) -> dict[str, Any] | None:
        try:
            return self._client().get(path)
        except ApiRefused as error:
            if error.code == 404:
                return None
            raise

    def _remove(
        self, client: ApiClient, path: str, names: Sequence[str], made: Sequence[Mapping[str, Any]], run_key: str
    ) -> None:
        """Delete the pods and Secrets of a submission that was refused."""

        def delete(name: str) -> None:
            pod = self._pod(f"{path}/pods/{name}")
            if pod is not None and pod["metadata"].get("annotations", {}).get(pods.SUBMISSION) == run_key:
                client.delete(f"{path}/pods/{name}", gracePeriodSeconds="0")

        with asking("What a refused launch has left could not be deleted"):
            _for_each(delete, names, goes_on=True)
            for secret in made:
                client.delete(f"{path}/secrets/{secret['metadata']['name']}")

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Return the workers' states from one list of pods, which is requested every two seconds at most."""
        known = [self._workers.get(handle) or Worker(handle, handle) for handle in handles]
        if all(worker.status.is_final for worker in known):
            return known
        others = {worker.id for worker in known if worker.id not in self._workers}
        if time.monotonic() >= self._looked_at + POLL_SECONDS or not others <= self._looked_for:
            self._look(handles)
        return [self._workers.get(worker.id) or self._current(worker) for worker in known]

    def _look(self, handles: Sequence[str]) -> None:
        """List the pods, and update the states of workers and tunnels."""
        selector = f"{pods.OWNER}={self._owner}" if all(handle in self._workers for handle in handles) else pods.OWNER
        spaces = {handle.partition("/")[0] for handle in handles if "/" in handle}
        found = self._listed(spaces, selector, resourceVersion="0")
        expected = {
            handle for handle in handles
            if "/" in handle and handle not in found and not self._workers.get(handle, NOBODY).status.is_final
        }  # fmt: skip
        if expected:  # the server's cache may be older than the pod: only its store shows that there is none
            found |= self._listed({handle.partition("/")[0] for handle in expected}, selector)
        self._seen = found
        self._looked_for = frozenset(handles)
        self._looked_at = time.monotonic()
        for relay in self._relays:
            relay.update({handle.partition("/")[2]: pod for handle, pod in found.items()})
        for handle in handles:
            if handle in self._workers:
                self._workers[handle] = self._current(self._workers[handle])
        self._inquiries.ask_for_a_delay([self._workers[handle] for handle in handles if handle in self._workers])

    def _listed(self, namespaces: Iterable[str], selector: str, **query: str) -> dict[str, dict[str, Any]]:
        """Return the pods of these namespaces, by handle. Raises PlatformError."""
        found: dict[str, dict[str, Any]] = {}
        for namespace in namespaces:
            with asking("The pods could not be listed"):
                listed = self._client().get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector, **query)
            found |= {f"{namespace}/{pod['metadata']['name']}": pod for pod in listed["items"]}
        return found

    def _current(self, worker: Worker) -> Worker:
        """Return a worker in its current state, as the last look at its pod and the inquiries about it tell."""
        pod = self._seen.get(worker.id)
        name = worker.id.partition("/")[2]
        refusal = next((found for relay in self._relays if (found := relay.refusal(name)) is not None), None)
        if refusal is not None and not worker.status.is_final:
            return worker.moved(Status.FAILED, finished_at=time.time(), **_no_way(refusal))
        if pod is not None:
            self._inquiries.remember(worker.id, pod)
        trouble = self._inquiries.pull_troubles.get(worker.id)
        now = states.state_of(worker, pod, worker.id in self._told_to_stop, trouble.error if trouble else "")
        delay = self._inquiries.delays.get(worker.id)
        if now.status in WAITING and delay and trouble is None:
            said = "" if str(now.reason).startswith(PREPARED) else now.reason  # then the delay says more
            return replace(now, reason=" ".join(filter(None, [said, delay])))
        if not states.is_unexplained(now):
            return now
        cause = self._inquiries.why_removed(worker.id)
        return now if cause is None else states.explained(now, cause)

    def stop(self, handles: Sequence[str]) -> None:
        """Delete the pods of workers, so that their agents end their processes, and then themselves."""

        def stop(handle: str) -> None:
            known = self._workers.get(handle)
            if "/" not in handle or (known is not None and known.status.is_final) or handle in self._deleted:
                return
            self._told_to_stop.add(handle)  # before the request, which may succeed although its answer is lost
            self._delete(handle)
            self._deleted.add(handle)

        _for_each(stop, handles, goes_on=True)

    def _delete(self, handle: str) -> None:
        namespace, _, name = handle.partition("/")
        with asking(f"The pod {name} could not be deleted"):
            self._client().delete(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def list(self) -> list[Worker]:
        """Return all workers that this object has launched, oldest first."""
        return oldest_first(self.poll([*self._workers]))

    def logs(self, handle: str) -> Iterator[str]:
        """Yield the lines of an ended worker's log while its pod exists; at other times only a session has them."""
        namespace, _, name = handle.partition("/")
        if not name:
            return iter(())
        most = 2 * (self.log_cap or default_log_cap())  # the older part, and the log itself
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
        text = self._client().text(path, most, container=pods.CONTAINER, limitBytes=str(most))
        return iter(text.removesuffix("\n").split("\n") if text else ())

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Delete all pods and Secrets that this object has made, and wait until their processes have ended.

        Raises:
            PlatformError: the cluster fails to; the guard keeps trying.
        """
        if self._process != owner() or self._asked is None:  # a forked child's copy
            return
        try:
            self._end_all()
        except BaseException:  # Ctrl-C while the pods end, too
            if self._guard is not None:
                self._guard.clean_up()
                self._guard = None
            # What is launched from now on is not that guard's to remove.
            self._owner, self._secrets = secrets.token_hex(5), []
            raise
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()
        self._secrets = []
        for handle, worker in self._workers.items():
            self._workers[handle] = worker.moved(Status.STOPPED, finished_at=time.time())
        self._asked.close()

    def _end_all(self) -> None:
        """Delete all pods, wait for their ends, and delete the Secrets. Raises PlatformError."""
        client = self._client()
        living = [handle for handle in self._workers if self._may_run(handle)]
        with asking("The workers could not be deleted"):
            self._told_to_stop.update(living)
            _for_each(self._delete, [*self._workers], goes_on=True)
        deadline = time.monotonic() + CLOSE_SECONDS
        while living and time.monotonic() < deadline:
            time.sleep(max(0.0, self._looked_at + POLL_SECONDS - time.monotonic()))
            self._look(living)
            living = [handle for handle in living if self._may_run(handle)]
        if self._found is not None:
            path = f"/api/v1/namespaces/{self._found.namespace}"
            with asking("The workers' Secrets could not be deleted"):
                _for_each(lambda name: client.delete(f"{path}/secrets/{name}"), self._secrets, goes_on=True)

    def _may_run(self, handle: str) -> bool:
        """Return whether a worker has not ended, or a node still has its pod, though it was stopped before it ran."""
        return not self._workers[handle].status.is_final or is_on_a_node(self._seen.get(handle, {}))


def _no_way(refusal: ApiRefused) -> dict[str, str]:
    """Return the reason and the advice for a worker that can neither dial the session nor have a tunnel."""
    lacks = rights.refused(refusal.said)
    reason = "Its agent cannot dial this session, and the cluster does not let the session come to it"
    return {
        "reason": f"{reason}. Kubernetes says: {refusal.said}",
        "advice": rights.advice(lacks) if lacks else "a session that pods can dial, such as a notebook in the cluster",
    }


def _is_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an existing pod is of this submission, from a request whose answer was lost."""
    there, here = found["metadata"], wanted["metadata"]
    is_ours = there.get("labels", {}).get(pods.OWNER) == here["labels"][pods.OWNER]
    return bool(is_ours and there.get("annotations", {}).get(pods.SUBMISSION) == here["annotations"][pods.SUBMISSION])


def _for_each(call: Callable[[Any], object], items: Sequence[Any], *, goes_on: bool = False) -> None:
    """Call ``call`` for each item, several at the same time, wait for all calls, and raise the first error.

    Args:
        call: the function; raises PlatformError.
        items: its arguments.
        goes_on: whether further calls are made after an error; after ClusterGone none are.
    """
    errors: list[Exception] = []

    def attempt(item: Any) -> None:
        if any(not goes_on or isinstance(error, ClusterGone) for error in errors):
            return
        try:
            call(item)
        except Exception as error:  # raised below, on the thread that waits
            errors.append(error)

    at_once(attempt, items, AT_ONCE)
    if errors:
        raise errors[0]
