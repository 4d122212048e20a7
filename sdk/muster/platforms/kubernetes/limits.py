"""The limits of a cluster, and the workers that exceed them: quotas, limits of containers, sizes of nodes.

Reading any of these may take a right that a user lacks: then nothing is known of it, and the cluster itself says later
what it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from http import HTTPStatus
from typing import Any

from muster.errors import ResourceError
from muster.platforms.kubernetes.client import ApiClient, ApiRefused
from muster.platforms.kubernetes.pods import CONTAINER
from muster.platforms.kubernetes.quantities import GPU, Amounts, amounts, in_words
from muster.text.arguments import Argument, ArgumentText
from muster.text.names import join_names

Object = Mapping[str, Any]  # of the cluster's API

A_PAGE = "100"  # nodes in one answer: that of the first page mostly shows one that is large enough
SECRETS = 2  # at least, for any number of workers
SMALLER = ArgumentText("smaller workers, or ", Argument("namespace", ""), " one with other limits")
FEWER = "fewer or smaller workers; kubectl describe quota says what there is, and who uses it"
# What tells that a cluster may add nodes: beginnings of labels and annotations; the status of the autoscaler.
AUTOSCALED = ("karpenter.sh/", "cluster-autoscaler.kubernetes.io/", "cluster.x-k8s.io/", "machine.openshift.io/")
AUTOSCALER = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
ON_ONE_MACHINE = ("kind://", "k3s://")  # beginnings of ids that no cloud has given to a node
SIZES = ("cpu", "memory", GPU)  # what nodes are compared by
READ = {"resourcequotas": "quotas", "limitranges": "limits of containers", "nodes": "the sizes of nodes"}


@dataclass(frozen=True)
class ClusterLimits:
    """The known limits of a cluster.

    Attributes:
        client: a client of the cluster.
        namespace: the namespace.
        quotas: its ResourceQuotas.
        ranges: its LimitRanges.
        nodes: nodes of the cluster, which may have more.
        more_nodes: the mark of the next page of nodes; empty where ``nodes`` are all.
        unknown: what this user may not list, as the API names it.
    """

    client: ApiClient
    namespace: str
    quotas: Sequence[Object] = ()
    ranges: Sequence[Object] = ()
    nodes: Sequence[Object] = ()
    more_nodes: str = ""
    unknown: Sequence[str] = field(default_factory=list)

    def shortages(self, pods: Sequence[Object], *, is_queued: bool = False) -> list[str]:
        """Return, in words, the quotas that are used up, and what workers ask for that no node has now.

        Args:
            pods: the workers' pods, in launch order; equal ones may be the same object.
            is_queued: whether something else than the scheduler has to admit them, which may add nodes.

        Raises:
            ResourceError: the cluster would refuse pods at any time, or no node could ever take them.
            PlatformError: the cluster cannot be asked for more nodes.
        """
        different = [*{id(pod): pod for pod in pods}.values()]
        for pod in different:
            for container in _containers(pod):
                self._check_range(pod, container)
        for text, is_too_small in self._without_room(pods):
            if is_too_small:
                raise ResourceError(text, advice=FEWER)
        return [*self.used_up(pods), *self._without_nodes(different, is_queued)]

    def _without_nodes(self, different: Sequence[Object], is_queued: bool) -> list[str]:
        """Return, in words, what no node has now, but may have. Raises ResourceError for what none ever will."""
        nodes, homeless = self._without_a_node(different)
        unlabelled = [text for pod in homeless if (text := _why_unselected(pod, nodes))]
        if unlabelled:
            return [f"{text}: the workers wait until one has." for text in unlabelled]
        found = [self._why_too_large(pod, nodes) for pod in homeless]
        if found and not (is_queued or self._may_grow()):
            advice = ArgumentText("smaller workers, or ", Argument("context", ""), " that of another cluster")
            raise ResourceError(f"{found[0]}.", advice=advice)
        return [f"{text}: the workers wait, unless the cluster adds a larger one." for text in found]

    def in_words(self) -> list[str]:
        """Return the limits of the namespace in words, and what is not known."""
        found = [self._of_quota(quota) for quota in self.quotas]
        found += [self._of_range(made, item) for made in self.ranges for item in made["spec"].get("limits") or ()]
        if self.unknown:
            lacks = join_names([f"{READ[name]} ({name})" for name in self.unknown])
            found.append(f"no right to list {lacks}: what these would refuse shows when pods are made")
        return found

    # -- limits of containers -----------------------------------------------------------------------------------------

    def _check_range(self, pod: Object, container: Object) -> None:
        """Raise ResourceError for a container that a LimitRange refuses."""
        name = str(container.get("name"))
        whose = "each worker" if name == CONTAINER else f"the container {name} of each worker"
        for made in self.ranges:
            for item in made["spec"].get("limits") or ():
                if item.get("type") == "Container":
                    requests, limits = _of_container(container, item)
                    self._compare(made, item, whose, requests, limits)
                elif item.get("type") == "Pod" and name == CONTAINER:
                    self._compare(made, item, whose, *_of_pod(pod, self._defaults()))

    def _compare(self, made: Object, item: Object, whose: str, requests: Amounts, limits: Amounts) -> None:
        what = f"the LimitRange {made['metadata']['name']} of the namespace {self.namespace} allows a"
        kind = str(item["type"]).lower()
        for resource, most in amounts(item.get("max")).items():
            asked = limits.get(resource)
            if asked is not None and asked > most:
                self._refuse(whose, resource, asked, f"{what} {kind} {in_words(resource, most)} at most")
        for resource, least in amounts(item.get("min")).items():
            asked = requests.get(resource)
            if asked is not None and asked < least:
                self._refuse(whose, resource, asked, f"{what} {kind} {in_words(resource, least)} at least")

    @staticmethod
    def _refuse(whose: str, resource: str, asked: Fraction, why: str) -> None:
        agent = ", its agent included" if resource == "memory" and whose == "each worker" else ""
        raise ResourceError(f"{whose.capitalize()} asks for {in_words(resource, asked)}{agent}; {why}.", advice=SMALLER)

    def _defaults(self) -> Object:
        """Return all defaults for containers, as one item of a LimitRange."""
        items = [item for made in self.ranges for item in made["spec"].get("limits") or ()]
        merged: dict[str, dict[str, Any]] = {"default": {}, "defaultRequest": {}}
        for item in items:
            if item.get("type") == "Container":
                for kind in merged:
                    merged[kind] |= item.get(kind) or {}
        return merged

    def _of_range(self, made: Object, item: Object) -> str:
        words = {"max": "at most", "min": "at least", "default": "limit by default", "defaultRequest": "by default"}
        parts = [
            f"{said} {join_names([in_words(resource, amount) for resource, amount in amounts(item[kind]).items()])}"
            for kind, said in words.items()
            if item.get(kind)
        ]
        name, kind = made["metadata"]["name"], str(item.get("type", "")).lower()
        return f"LimitRange {name} of the namespace {self.namespace}, each {kind}: {'; '.join(parts)}"

    # -- quotas -------------------------------------------------------------------------------------------------------

    def used_up(self, pods: Sequence[Object]) -> list[str]:
        """Return, in words, the quotas of which so much is used now that they would refuse one of these pods."""
        return [text for text, is_too_small in self._without_room(pods) if not is_too_small]

    def _without_room(self, pods: Sequence[Object]) -> Iterator[tuple[str, bool]]:
        """Yield what each quota lacks that would refuse one of these pods, and whether it would with nothing used."""
        defaults = self._defaults()
        asked = {id(pod): _counted(pod, defaults) for pod in pods}
        for quota in self.quotas:
            hard, used = _hard_and_used(quota)
            total = {"secrets": Fraction(SECRETS), "count/secrets": Fraction(SECRETS)}
            fit: int | None = None
            for number, pod in enumerate(pods):
                if not counts(quota, pod):
                    continue
                for resource, amount in asked[id(pod)].items():
                    total[resource] = total.get(resource, Fraction(0)) + amount
                if fit is None and _exceeded(total, hard, used):
                    fit = number
            is_too_small = bool(_exceeded(total, hard, {}))
            over = _exceeded(total, hard, {}) or _exceeded(total, hard, used)
            if over:
                yield self._why_no_room(quota, over, total[over], (fit or 0, len(pods))), is_too_small

    def _why_no_room(self, quota: Object, resource: str, asked: Fraction, room: tuple[int, int]) -> str:
        hard, used = _hard_and_used(quota)
        name, (fit, workers) = quota["metadata"]["name"], room
        return (
            f"The quota {name} of the namespace {self.namespace} has room for {fit} of {workers} "
            f"worker{'' if workers == 1 else 's'}: {'it asks' if workers == 1 else 'they ask'} for "
            f"{in_words(resource, asked)} ({resource}); it allows {in_words(resource, hard[resource])}, of which "
            f"{in_words(resource, used.get(resource, Fraction(0)))} are used."
        )

    def _of_quota(self, quota: Object) -> str:
        hard, used = _hard_and_used(quota)
        parts = [
            f"{in_words(resource, used.get(resource, Fraction(0)))} of {in_words(resource, most)} ({resource})"
            for resource, most in hard.items()
        ]
        return f"quota {quota['metadata']['name']} of the namespace {self.namespace}, used: {', '.join(parts)}"

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _without_a_node(self, pods: Sequence[Object]) -> tuple[Sequence[Object], list[Object]]:
        """Return nodes that were looked at, and the pods that none of them takes; no pods where nodes are unknown."""
        defaults = self._defaults()
        seen: list[Object] = []
        left = list(pods)
        for page in self._pages():
            seen += page
            left = [pod for pod in left if not any(_takes(node, pod, _size(pod, defaults)) for node in page)]
            if not left:
                break
        return seen, left if seen else []

    def _pages(self) -> Iterator[Sequence[Object]]:
        """Yield the nodes, page by page. Raises PlatformError where the cluster does not give the next page."""
        yield self.nodes
        mark = self.more_nodes
        while mark:
            listed = self.client.get("/api/v1/nodes", **{"limit": A_PAGE, "continue": mark})
            yield listed["items"]
            mark = str((listed.get("metadata") or {}).get("continue") or "")

    def _why_too_large(self, pod: Object, nodes: Sequence[Object]) -> str:
        """Return, in words, what a pod asks for that none of the nodes with its labels has."""
        labels, asked = _labels(pod), _size(pod, self._defaults())
        those = [node for node in nodes if _is_selected(node, labels)]
        largest: dict[str, Fraction] = {}
        for node in those:
            for resource, amount in _offered(node).items():
                largest[resource] = max(amount, largest.get(resource, Fraction(0)))
        where = f"{len(those)} node{'' if len(those) == 1 else 's'}{_with_labels(labels)}"
        for resource, amount in asked.items():
            there = largest.get(resource, Fraction(0))
            if amount > there:
                agent = ", its agent included" if resource == "memory" else ""
                return (
                    f"Each worker asks for {in_words(resource, amount)}{agent}; the largest of the cluster's {where} "
                    f"has {in_words(resource, there)}"
                )
        all_of_it = join_names([in_words(resource, amount) for resource, amount in asked.items()])
        return f"Each worker asks for {all_of_it}; none of the cluster's {where} has all of that"

    def _may_grow(self) -> bool:
        """Return whether the cluster, or the cloud that it runs in, may add nodes, as far as this user can see."""
        for node in self.nodes:
            metadata, provider = node["metadata"], str(node.get("spec", {}).get("providerID") or "")
            marks = [*(metadata.get("labels") or {}), *(metadata.get("annotations") or {})]
            if any(mark.startswith(AUTOSCALED) for mark in marks):
                return True
            if provider and not provider.startswith(ON_ONE_MACHINE):
                return True
        try:
            self.client.get(AUTOSCALER)
        except ApiRefused as refused:
            return refused.code != HTTPStatus.NOT_FOUND  # else nobody knows
        return True


def read_limits(client: ApiClient, namespace: str) -> ClusterLimits:
    """Return what this user may know of the limits of a namespace. Raises PlatformError where nothing answers."""
    unknown: list[str] = []

    def listed(path: str, resource: str, **query: str) -> Object:
        try:
            return client.get(f"{path}/{resource}", **query)
        except ApiRefused as refused:
            if refused.code == HTTPStatus.FORBIDDEN:
                unknown.append(resource)
            return {}

    here = f"/api/v1/namespaces/{namespace}"
    quotas, ranges = listed(here, "resourcequotas"), listed(here, "limitranges")
    nodes = listed("/api/v1", "nodes", limit=A_PAGE)
    return ClusterLimits(
        client,
        namespace,
        quotas=quotas.get("items") or (),
        ranges=ranges.get("items") or (),
        nodes=nodes.get("items") or (),
        more_nodes=str((nodes.get("metadata") or {}).get("continue") or ""),
        unknown=unknown,
    )


def counts(quota: Object, pod: Object) -> bool:
    """Return whether a quota counts a pod, which its scopes tell; False for scopes that nothing is known of."""
    spec = quota.get("spec") or {}
    wanted = [(scope, "Exists", ()) for scope in spec.get("scopes") or ()]
    wanted += [
        (each.get("scopeName"), each.get("operator"), each.get("values") or ())
        for each in (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    ]
    has_limit = pod["spec"].get("activeDeadlineSeconds") is not None
    is_of = {"Terminating": has_limit, "NotTerminating": not has_limit, "NotBestEffort": True, "BestEffort": False}
    priority = pod["spec"].get("priorityClassName")

    def holds(scope: str, operator: str, values: Sequence[str]) -> bool:
        if scope == "PriorityClass":
            return {"In": priority in values, "Exists": bool(priority)}.get(operator, False)
        return is_of.get(scope, False)

    return all(holds(*each) for each in wanted)


def _hard_and_used(quota: Object) -> tuple[Amounts, Amounts]:
    status = quota.get("status") or {}
    return amounts(status.get("hard") or quota["spec"].get("hard")), amounts(status.get("used"))


def _exceeded(asked: Amounts, hard: Amounts, used: Amounts) -> str:
    """Return a resource of which more is asked for than is left; empty where there is none."""
    nothing = Fraction(0)
    over = (name for name, amount in asked.items() if name in hard and used.get(name, nothing) + amount > hard[name])
    return next(over, "")


def _counted(pod: Object, defaults: Object) -> Amounts:
    """Return what quotas count of a pod, by the names that they have for it."""
    requests, limits = _of_pod(pod, defaults)
    found = {"pods": Fraction(1), "count/pods": Fraction(1)}
    found |= {name: requests[name] for name in ("cpu", "memory", "ephemeral-storage") if name in requests}
    found |= {f"requests.{name}": amount for name, amount in requests.items()}
    return found | {f"limits.{name}": amount for name, amount in limits.items()}


def _of_container(container: Object, item: Object) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """Return what a container requests, and its limits, with the defaults of an item of a LimitRange."""
    resources = container.get("resources") or {}
    limits = {**amounts(item.get("default")), **amounts(resources.get("limits"))}
    given = {**amounts(resources.get("limits")), **amounts(resources.get("requests"))}
    return {**amounts(item.get("defaultRequest") or item.get("default")), **given}, limits


def _of_pod(pod: Object, defaults: Object) -> tuple[Amounts, Amounts]:
    """Return what a pod requests, and its limits: sums over its containers, or an init container's own if more."""
    sums: tuple[dict[str, Fraction], dict[str, Fraction]] = ({}, {})
    for container in pod["spec"]["containers"]:
        for total, part in zip(sums, _of_container(container, defaults), strict=True):
            for resource, amount in part.items():
                total[resource] = total.get(resource, Fraction(0)) + amount
    for container in pod["spec"].get("initContainers") or ():
        for total, part in zip(sums, _of_container(container, defaults), strict=True):
            for resource, amount in part.items():
                total[resource] = max(total.get(resource, Fraction(0)), amount)
    return sums


def _containers(pod: Object) -> list[Object]:
    return [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]


def _offered(node: Object) -> Amounts:
    """Return what a node has for pods; of devices also those whose driver is only just away."""
    status = node.get("status") or {}
    offered, has = amounts(status.get("allocatable")), amounts(status.get("capacity"))
    return {**offered, **({GPU: max(has[GPU], offered.get(GPU, Fraction(0)))} if GPU in has else {})}


def _size(pod: Object, defaults: Object) -> Amounts:
    """Return what a pod asks for of what nodes differ in."""
    return {name: amount for name, amount in _of_pod(pod, defaults)[0].items() if name in SIZES}


def _labels(pod: Object) -> Mapping[str, str]:
    return pod["spec"].get("nodeSelector") or {}


def _with_labels(labels: Mapping[str, str]) -> str:
    return f" with {', '.join(f'{key}={value}' for key, value in labels.items())}" if labels else ""


def _is_selected(node: Object, labels: Mapping[str, str]) -> bool:
    return labels.items() <= (node["metadata"].get("labels") or {}).items()


def _why_unselected(pod: Object, nodes: Sequence[Object]) -> str:
    """Return, in words, that no node has the labels that a pod asks for; empty where one has."""
    labels = _labels(pod)
    is_there = any(_is_selected(node, labels) for node in nodes)
    return "" if is_there else f"The cluster has no node{_with_labels(labels)}"


def _takes(node: Object, pod: Object, asked: Amounts) -> bool:
    """Return whether a node would take a pod if nothing else were on it, as far as labels and sizes tell."""
    offered = _offered(node)
    return _is_selected(node, _labels(pod)) and all(offered.get(name, 0) >= amount for name, amount in asked.items())
