"""Users of a real Kubernetes with few rights."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import yaml

from tests.platforms.kubernetes.cluster import until
from tests.platforms.kubernetes.space import Space


def guide_role() -> list[dict[str, list[str]]]:
    """The rules of the Role that the guide prints."""
    rules: list[dict[str, list[str]]] = in_guide("Role")["rules"]
    return rules


def in_guide(kind: str) -> dict[str, Any]:
    """The object of this kind that the guide prints."""
    text = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text()
    block = next(part for part in text.split("```")[1::2] if f"kind: {kind}\n" in part)
    text = textwrap.dedent(block.removeprefix("yaml\n"))
    found: dict[str, Any] = next(each for each in yaml.safe_load_all(text) if each["kind"] == kind)
    return found


def make_account(space: Space, rules: list[dict[str, list[str]]]) -> str:
    """Make a service account with these rights in the namespace, and return its token."""
    client, rbac = space.cluster.client, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.name}"
    client.create(f"/api/v1/namespaces/{space.name}/serviceaccounts", {"metadata": {"name": "user"}})
    if rules:
        client.create(f"{rbac}/roles", {"metadata": {"name": "muster"}, "rules": rules})
        binding = {
            "metadata": {"name": "muster"},
            "subjects": [{"kind": "ServiceAccount", "name": "user", "namespace": space.name}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "muster"},
        }
        client.create(f"{rbac}/rolebindings", binding)
        until(lambda: _may(space, rules[0]), "the cluster knows the rights")
    return space.cluster.token(space.name, "user")


def _may(space: Space, rule: dict[str, list[str]]) -> bool:
    asked = {"namespace": space.name, "resource": rule["resources"][0], "verb": rule["verbs"][0]}
    spec = {"user": f"system:serviceaccount:{space.name}:user", "resourceAttributes": asked}
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = space.cluster.client.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", kind)
    return bool(answer["status"].get("allowed"))


def change_rules(space: Space, rules: list[dict[str, list[str]]]) -> None:
    """Give the account of ``make_account`` these rights instead; the cluster knows a moment later."""
    client, rbac = space.cluster.client, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.name}"
    path = f"{rbac}/roles/muster"
    client.ask("PUT", path, {"metadata": {"name": "muster"}, "rules": rules})


def kubeconfig_of(space: Space, token: str, folder: Path) -> str:
    """Write the kubeconfig of a user with this token, and return its path."""
    config = json.loads(Path(space.cluster.kubeconfig).read_text())
    config["users"] = [{"name": "user", "user": {"token": token}}]
    config["contexts"][0]["context"]["user"] = "user"
    (folder / "kubeconfig").write_text(json.dumps(config))
    return str(folder / "kubeconfig")
