"""Users who may do what the guide says, or less. On a real Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from muster.errors import LaunchRefused
from muster.platforms import get_platform
from muster.platforms.kubernetes import rights

from tests.platforms.kubernetes.accounts import change_rules, guide_role, kubeconfig_of, make_account
from tests.platforms.kubernetes.cluster import until
from tests.platforms.kubernetes.space import Space

GUIDE = {**rights.RUNS, **rights.TOLD, **rights.TUNNELS}
ONE_BY_ONE = [(resource, verb) for resource, verbs in rights.RUNS.items() for verb in verbs]


def rules(wanted: Mapping[str, Sequence[str]]) -> list[dict[str, list[str]]]:
    return [{"apiGroups": [""], "resources": [kind], "verbs": [*verbs]} for kind, verbs in wanted.items() if verbs]


def test_the_guide_s_role_is_what_is_asked_for() -> None:
    said = [(kind, verb) for rule in guide_role() for kind in rule["resources"] for verb in rule["verbs"]]
    assert sorted(said) == sorted((kind, verb) for kind, verbs in GUIDE.items() for verb in verbs)


@pytest.mark.parametrize("tunnel", [None, True])
def test_a_user_who_may_do_what_the_guide_says_and_nothing_else(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tunnel: bool | None
) -> None:
    account = make_account(space, guide_role())
    monkeypatch.setenv("KUBECONFIG", kubeconfig_of(space, account, tmp_path))
    assert space.run("print('done')\n", 1, tunnel=tunnel).logs("worker-0") == "done\n"
    assert get_platform("kubernetes", **space.options).missing_rights() == []


def test_a_right_that_is_missing_is_named_with_its_rule_before_anything_starts(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig_of(space, make_account(space, guide_role()), tmp_path))
    for kind, verb in ONE_BY_ONE:
        change_rules(space, rules({**GUIDE, kind: [other for other in GUIDE[kind] if other != verb]}))
        told = [f"no right to {verb} {kind} in the namespace {space.name}: {rights.rules({kind: [verb]})}"]
        until(lambda told=told: get_platform("kubernetes", **space.options).missing_rights() == told, told[0])
        with pytest.raises(LaunchRefused, match=f"no right to {verb} {kind} in the namespace {space.name}") as raised:
            space.run("pass", 1)
        assert f'- {{apiGroups: [""], resources: [{kind}], verbs: [{verb}]}}' in str(raised.value.advice)
        assert space.cluster.pods(space.name) == []


def test_a_user_without_rights_is_told_all_of_them(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig_of(space, make_account(space, []), tmp_path))
    with pytest.raises(
        LaunchRefused, match="get pods, list pods, create pods, delete pods, create secrets, delete s"
    ) as told:
        space.run("print('done')\n", 1)
    assert "namespace= one in which you may run pods" in str(told.value.advice)
    assert len(get_platform("kubernetes", **space.options).missing_rights()) == 8
    assert len(get_platform("kubernetes", **space.options, tunnel=True).missing_rights()) == 10


def test_without_the_right_to_exec_the_tunnel_is_refused_and_logs_are_not_needed(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig_of(space, make_account(space, rules(rights.RUNS)), tmp_path))
    with pytest.raises(LaunchRefused, match="no right to get pods/exec"):
        space.run("print('done')\n", 1, tunnel=True)
    assert space.run("print('done')\n", 1).logs("worker-0") == "done\n"
