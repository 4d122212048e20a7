"""The platform where a cluster's API answers late, twice, or with what is no longer so. By a fake server."""

from __future__ import annotations

import json
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from muster.agent.owners import owner
from muster.agent.places import symbol
from muster.errors import LaunchRefused, PlatformError
from muster.job import EndCause, Status, Worker
from muster.platforms.kubernetes import notes
from muster.platforms.kubernetes.client import ClusterGone
from muster.platforms.kubernetes.guard import remove_everything, sweep
from muster.platforms.kubernetes.platform import KubernetesPlatform, _for_each

from tests.platforms.kubernetes.fake_server import Answer, Fake, fake_kubeconfig, fake_server
from tests.support import Run, eventually

META = {"name": "p", "labels": {"muster/owner": "a"}}
POD: dict[str, Any] = {"metadata": META, "spec": {}, "status": {"phase": "Pending"}}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """The server, which is the current one of a kubeconfig."""
    with fake_server() as fake:
        (tmp_path / "config").write_text(json.dumps(fake_kubeconfig(fake)))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield fake


def launched(*handles: str, at: float | None = None) -> KubernetesPlatform:
    """Return a platform object that has launched pods of these handles at a time, and has not looked at them yet."""
    platform = KubernetesPlatform()
    platform._workers.update((handle, Worker(handle, handle, created_at=at or time.time())) for handle in handles)
    return platform


def look(platform: KubernetesPlatform) -> list[Worker]:
    """Return the workers of a platform, after a new look at their pods, however recent the last one is."""
    platform._looked_at = float("-inf")
    return platform.poll([*platform._workers])


def deleted(fake: Fake) -> list[str]:
    """Return what the server was asked to delete in the namespace, sorted."""
    return sorted(path.removeprefix("/api/v1/namespaces/ml/") for method, path, _ in fake.asked if method == "DELETE")


def test_a_list_that_is_older_than_a_pod_is_no_proof_that_it_is_gone(fake: Fake) -> None:
    def answer(method: str, path: str) -> Answer:  # what one of several servers remembers is older
        return Answer(200, {"items": [] if "resourceVersion" in path else [POD]})

    fake.otherwise = answer
    platform = launched("ml/p")
    (worker,) = look(platform)
    assert worker.status is Status.SCHEDULING
    fake.otherwise = lambda method, path: Answer(200, {"items": []})
    (worker,) = look(platform)
    assert (worker.status, len(fake.asked)) == (Status.FAILED, 5)
    assert fake.asked[-1][1] == "/api/v1/namespaces/ml/events?fieldSelector=involvedObject.name%3Dp"
    platform.poll(["ml/p"])
    assert len(fake.asked) == 5


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: types.SimpleNamespace) -> None:
    """Have the platform take the time from ``clock``."""
    for module in ("platform", "inquiries"):
        monkeypatch.setattr(f"muster.platforms.kubernetes.{module}.time", clock)


def test_the_events_of_an_older_pod_of_that_name_say_nothing_of_a_pod(fake: Fake) -> None:
    def told_by(event: dict[str, Any]) -> EndCause | None:
        listed = {**POD, "metadata": {**META, "uid": "mine", "creationTimestamp": "2026-01-01T00:10:00Z"}}
        fake.otherwise = lambda method, path: Answer(200, {"items": [listed]})
        platform = launched("ml/p")
        look(platform)
        assert [*platform._inquiries._metadata["ml/p"]] == ["uid", "creationTimestamp"], "all else is large"
        fake.otherwise = lambda method, path: Answer(200, {"items": [event] if "/events" in path else []})
        return look(platform)[0].cause

    preempted = {"reason": "Preempted", "lastTimestamp": "2026-01-01T00:20:00Z"}
    assert told_by({**preempted, "involvedObject": {"name": "p", "uid": "mine"}}) is EndCause.PREEMPTED
    assert told_by({**preempted, "involvedObject": {"name": "p", "uid": "older"}}) is EndCause.CANCELLED
    tainted = {"reason": "TaintManagerEviction", "involvedObject": {"name": "p"}}  # which Kubernetes sends without uid
    assert told_by({**tainted, "lastTimestamp": "2026-01-01T00:20:00Z"}) is EndCause.LOST
    assert told_by({**tainted, "lastTimestamp": "2026-01-01T00:00:00Z"}) is EndCause.CANCELLED


def test_why_a_pod_is_gone_is_asked_once_where_that_is_refused(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.platforms.kubernetes.platform.POLL_SECONDS", 0.0)
    leaving = {**POD, "metadata": {**META, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    refused = Answer(403, {"message": "cannot list events"})
    fake.otherwise = lambda method, path: refused if "/events" in path else Answer(200, {"items": [leaving]})
    platform = launched("ml/p")
    for _ in range(5):
        look(platform)
    assert sum("/events" in path for _, path, _ in fake.asked) == 1


RUNNING: dict[str, Any] = {"phase": "Running", "containerStatuses": [{"name": "worker", "state": {"running": {}}}]}
LEAVING = {**META, "deletionTimestamp": "2026-01-01T00:00:00Z"}
PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "its words"}
KILLED = [{"name": "worker", "state": {"terminated": {"exitCode": 143}}}]


@pytest.mark.parametrize(
    "last",
    [[], [{**POD, "metadata": LEAVING, "status": {"phase": "Failed", "containerStatuses": KILLED}}]],
    ids=["gone", "ended"],
)
@pytest.mark.parametrize("metadata", [META, LEAVING], ids=["not deleted yet", "being deleted"])
def test_a_pod_that_was_last_seen_as_it_was_to_make_room_has_made_room(
    fake: Fake, metadata: dict[str, Any], last: list[dict[str, Any]]
) -> None:
    """The cluster forgets a pod with all that it said of its end, mostly between two looks at it."""
    running = {**POD, "metadata": metadata, "status": {**RUNNING, "conditions": [PREEMPTED]}}
    fake.otherwise = lambda method, path: Answer(200, {"items": [running]})
    platform = launched("ml/p")
    (worker,) = look(platform)
    assert worker.status is (Status.STOPPING if metadata is LEAVING else Status.RUNNING)
    fake.otherwise = lambda method, path: Answer(200, {"items": [] if "/events" in path else last})
    (worker,) = look(platform)
    assert (worker.status, worker.cause) == (Status.FAILED, EndCause.PREEMPTED)
    assert "A pod of higher priority took its place. Kubernetes says: its words" in str(worker.reason)


@pytest.mark.parametrize("events", [200, 403])
@pytest.mark.parametrize(
    ("node", "cause", "words"),
    [
        (Answer(200, {"spec": {"unschedulable": True}}), EndCause.LOST, "from its node n, which is being emptied"),
        (Answer(200, {"spec": {}}), EndCause.CANCELLED, "evicted (kubectl drain)"),
        (Answer(403, {"message": "cannot get nodes"}), EndCause.CANCELLED, "evicted (kubectl drain)"),
    ],
)
def test_a_pod_that_is_deleted_while_its_node_is_closed_to_others_has_been_drained(
    fake: Fake, events: int, node: Answer, cause: EndCause, words: str
) -> None:
    """Kubernetes before 1.26 says of an eviction through its API nothing else, in no event and in no field."""
    leaving = [
        {**POD, "metadata": {**LEAVING, "name": name}, "spec": {"nodeName": "n"}, "status": RUNNING} for name in "pq"
    ]
    listed = {"nodes/n": node, "/events": Answer(events, {"items": []}), "/pods": Answer(200, {"items": leaving})}
    fake.otherwise = lambda method, path: next(answer for part, answer in listed.items() if part in path)
    platform = launched("ml/p", "ml/q")
    for _ in range(3):
        workers = look(platform)
    assert [worker.cause for worker in workers] == [None if cause is EndCause.CANCELLED else cause] * 2
    listed["/pods"] = Answer(200, {"items": []})
    workers = look(platform)
    assert [worker.cause for worker in workers] == [cause] * 2
    assert words in str(workers[0].reason)
    assert sum("/nodes/n" in path for _, path, _ in fake.asked) == (1 if node.status == 403 else 2)


def test_a_pod_that_was_not_removed_after_all_and_then_deleted_was_deleted(fake: Fake) -> None:
    platform = launched("ml/p")
    for conditions in ([PREEMPTED], [{**PREEMPTED, "status": "False"}]):
        running = {**POD, "status": {**RUNNING, "conditions": conditions}}
        fake.otherwise = lambda method, path, running=running: Answer(200, {"items": [running]})  # type: ignore[misc]
        look(platform)
    fake.otherwise = lambda method, path: Answer(200, {"items": []})
    (worker,) = look(platform)
    assert worker.cause is EndCause.CANCELLED


def test_a_sweep_removes_what_is_muster_s_alone_and_holds_up_nothing(fake: Fake) -> None:
    gone = ".".join([*owner().split(".")[:3], "1", "1"])  # no process of this machine's ever was that
    reads = [{"secret": {"name": name}} for name in ("muster-a-1", "muster-a-1-0", "mine", "muster-b-1")]
    pod = {**POD, "spec": {"volumes": [{"name": "secrets", "projected": {"sources": reads}}]}}
    pod["metadata"] = {**META, "annotations": {"muster/session": gone}}
    listed = Answer(200, {"items": [pod]})
    fake.otherwise = lambda method, path: listed if method == "GET" else Answer(403, {"message": "cannot delete"})
    platform = KubernetesPlatform()
    sweep(platform._client(), "ml")
    alive = {**POD, "metadata": {**META, "name": "q", "annotations": {"muster/session": owner()}}}
    both = Answer(200, {"items": [pod, alive]})  # whoever may make pods can give one the label of another session
    fake.otherwise = lambda method, path: both if method == "GET" else Answer(200)
    sweep(platform._client(), "ml")
    assert deleted(fake) == ["pods/p", "pods/p"], "refused, and then alone: the Secrets may be the living session's"
    fake.otherwise = lambda method, path: listed if method == "GET" else Answer(200)
    fake.asked.clear()
    sweep(platform._client(), "ml")
    assert deleted(fake) == ["pods/p", "secrets/muster-a-1", "secrets/muster-a-1-0"]


def test_secrets_go_once_the_pods_that_read_them_have_ended(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.platforms.kubernetes.guard.POLL_SECONDS", 0.01)
    on_a_node = {"spec": {"nodeName": "n"}, "status": {"phase": "Pending"}}
    looks = [Answer(200, {"items": [{**POD, **on_a_node}]})] * 3

    def answer(method: str, path: str) -> Answer:
        return looks.pop() if method == "GET" and looks else Answer(200, {"items": []})

    fake.otherwise = answer
    client = KubernetesPlatform()._client()
    remove_everything(client, "ml", "a", ["muster-a-1"])
    done = [(method, path.removeprefix("/api/v1/namespaces/ml/").partition("?")[0]) for method, path, _ in fake.asked]
    get = ("GET", "pods")
    assert done == [get, ("DELETE", "pods/p"), get, get, get, ("DELETE", "secrets/muster-a-1")]


def test_the_end_is_looked_for_no_more_often_than_anything_else(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0], sleep=sleep)
    for module in ("platform", "inquiries", "guard"):
        monkeypatch.setattr(f"muster.platforms.kubernetes.{module}.time", clock)

    def answer(method: str, path: str) -> Answer:
        if method == "GET" and "/events" not in path:
            looks.append(now[0])
        return Answer(200, {"items": [{**POD, "spec": {"nodeName": "n"}, "status": RUNNING}]})

    fake.otherwise = answer
    platform = launched("ml/p")
    look(platform)
    platform.close()
    assert [at - 1000.0 for at in looks] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]
    looks.clear()
    remove_everything(KubernetesPlatform()._client(), "ml", "a", [])
    assert [at - looks[0] for at in looks] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_the_cluster_is_asked_for_as_many_rights_as_the_guide_says(fake: Fake, run: Run) -> None:
    made = {"metadata": {"name": "x", "uid": "u"}, "status": {"allowed": True}}
    fake.otherwise = lambda method, path: Answer(201 if method == "POST" else 200, {**made, "items": []})
    for tunnel, questions in ((False, 6), (True, 7)):
        fake.asked.clear()
        platform = KubernetesPlatform(image="my/image:1", tunnel=tunnel)
        platform.submit([run.spec(scratch=Path(symbol("scratch")), cwd=symbol("scratch"))], "key")
        platform.close()
        assert sum(path.endswith("selfsubjectaccessreviews") for _, path, _ in fake.asked) == questions
    for page in ("kubernetes.md", "administration.md"):
        said = (Path(__file__).parents[3] / "docs" / page).read_text().lower()
        assert "six questions for rights before a run (seven with `tunnel=true`)" in said


@pytest.mark.parametrize(
    ("metadata", "status"),
    [({}, RUNNING), ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"phase": "Pending"})],
    ids=["running", "deleted before it ran"],
)
def test_a_platform_s_secrets_go_once_its_pods_have_ended(
    fake: Fake, run: Run, metadata: dict[str, Any], status: dict[str, Any]
) -> None:
    living = iter([True, True, False])
    made: list[str] = []

    def answer(method: str, path: str) -> Answer:
        if method == "POST":
            made.append(path)
            return Answer(201, {"metadata": {"name": "x", "uid": "u"}, "kind": "Secret"})
        on_a_node = {**POD, "spec": {"nodeName": "n"}, "status": status}
        pods = [{**on_a_node, "metadata": {**META, **metadata, "name": name}} for name in names]
        return Answer(200, {"items": pods if method == "GET" and next(living, False) else []})

    fake.otherwise = answer
    names: list[str] = []
    platform = KubernetesPlatform(image="my/image:1")
    (handle,) = platform.submit([run.spec(scratch=Path(symbol("scratch")), cwd=symbol("scratch"))], "key")
    names.append(handle.partition("/")[2])
    platform.close()
    asked = [
        (method, path.split("/")[5].partition("?")[0]) for method, path, _ in fake.asked if "/namespaces/ml" in path
    ]
    ends = asked[asked.index(("DELETE", "pods")) :]
    assert [method for method, what in ends if what == "secrets"] == ["DELETE"] * 2
    assert ("GET", "pods") not in ends[ends.index(("DELETE", "secrets")) :], "nobody is waited for any more"
    assert ends.count(("GET", "pods")) >= 2


def test_pods_that_are_made_after_a_close_that_failed_are_not_its_guard_s_to_remove(fake: Fake, run: Run) -> None:
    deletion = Answer(403, {"message": "cannot delete"})

    def answer(method: str, path: str) -> Answer:
        if method == "POST":
            return Answer(201, {"metadata": {"name": "x", "uid": "u"}, "kind": "Secret"})
        return deletion if method == "DELETE" else Answer(200, {"items": []})

    fake.otherwise = answer
    platform = KubernetesPlatform(image="my/image:1")
    spec = run.spec(scratch=Path(symbol("scratch")), cwd=symbol("scratch"))
    platform.submit([spec], "first")
    with pytest.raises(PlatformError):
        platform.close()
    deletion = Answer(200)
    platform.submit([replace(spec, generation=1)], "second")
    platform.close()
    eventually(lambda: not any(notes.folder().iterdir()), "the first guard has removed everything")
    deleted = [path.rpartition("/")[2] for method, path, _ in fake.asked if method == "DELETE" and "secrets" in path]
    assert len({name.split("-")[1] for name in deleted}) == 2, "the owners that Secrets are named by"


def test_a_sweep_removes_secrets_without_pods_by_the_note_of_who_made_them(fake: Fake, muster_home: Path) -> None:
    gone = ".".join([*owner().split(".")[:3], "1", "1"])
    facts = {
        "server": fake.url,
        "namespace": "ml",
        "secrets": ["muster-x-1", "muster-x-1-0"],
        "files": "",
        "context": "",
    }
    for label, changes in {"x": {}, "other": {"namespace": "else"}, "alive": {"process": owner()}}.items():
        notes.write({**facts, "owner": label})
        path = notes.folder() / f"{label}.json"
        assert path.stat().st_mode & 0o77 == 0
        path.write_text(json.dumps({**json.loads(path.read_text()), "process": gone, **changes}))
    made_by = {"ours": gone, "a-stranger-s": "", "of-the-living": owner()}  # all have the label, by whoever made them
    pods = [
        {**POD, "metadata": {**META, "name": name, "annotations": {"muster/session": by}}}
        for name, by in made_by.items()
    ]
    fake.otherwise = lambda method, path: Answer(200, {"items": pods if "%3Dx" in path else []})
    platform = KubernetesPlatform()
    sweep(platform._client(), "ml")
    assert deleted(fake) == ["pods/ours", "secrets/muster-x-1", "secrets/muster-x-1-0"]
    assert sorted(path.stem for path in notes.folder().iterdir()) == ["alive", "other"]


def test_a_note_is_there_from_before_a_submission_until_nothing_is_left(
    fake: Fake, muster_home: Path, run: Run
) -> None:
    seen: list[list[str]] = []

    def answer(method: str, path: str) -> Answer:
        seen.append([path.stem for path in notes.folder().glob("*.json")])
        made = {"metadata": {"name": "x", "uid": "u"}, "kind": "Secret"}
        return Answer(201, made) if method == "POST" else Answer(200, {"items": []})

    fake.otherwise = answer
    platform = KubernetesPlatform(image="my/image:1")
    platform.submit([run.spec(scratch=Path(symbol("scratch")), cwd=symbol("scratch"))], "key")
    asked = zip(seen, fake.asked, strict=True)
    posts = [noted for noted, (method, path, _) in asked if method == "POST" and path.startswith("/api/v1/")]
    assert posts == [[platform._owner]] * 3
    platform.close()
    assert not any(notes.folder().iterdir())


def test_what_a_plan_shows_names_the_namespace(fake: Fake, run: Run) -> None:
    specs = [run.spec(scratch=Path(symbol("scratch")), cwd=symbol("scratch"))]
    shown = [*yaml.safe_load_all(KubernetesPlatform(image="my/image:1").submission_text(specs))]
    assert [(each["kind"], each["metadata"]["namespace"]) for each in shown] == [
        ("Secret", "ml"), ("Secret", "ml"), ("Pod", "ml"),
    ]  # fmt: skip
    assert not any(text for each in shown[:2] for text in each["data"].values())


def test_a_log_is_the_worker_s_and_bounded(fake: Fake) -> None:
    fake.otherwise = lambda method, path: Answer(200, "one\ntwo\n", {"Content-Type": "text/plain"})
    assert [*KubernetesPlatform(log_cap=1000).logs("ml/p")] == ["one", "two"]
    assert fake.asked[-1][1] == "/api/v1/namespaces/ml/pods/p/log?container=worker&limitBytes=2000"


def test_a_look_at_some_pods_says_nothing_of_others(fake: Fake) -> None:
    fake.otherwise = lambda method, path: Answer(200, {"items": [POD] if "/namespaces/other/" in path else []})
    platform = KubernetesPlatform()
    assert platform.poll(["ml/p"])[0].status is Status.FAILED
    assert platform.poll(["other/p"])[0].status is Status.SCHEDULING


def test_a_stop_that_was_refused_is_asked_for_again(fake: Fake) -> None:
    fake.otherwise = lambda method, path: Answer(403, {"message": "cannot delete"})
    platform = KubernetesPlatform()
    with pytest.raises(PlatformError):
        platform.stop(["ml/p", "ml/q"])
    fake.otherwise = lambda method, path: Answer(200)
    fake.asked.clear()
    platform.stop(["ml/p", "ml/q"])
    platform.stop(["ml/p", "ml/q"])
    assert sorted(path[-1] for _, path, _ in fake.asked) == ["p", "q"]


def made(worker: str, status: dict[str, Any]) -> dict[str, Any]:
    """A pod of this worker's."""
    return {"metadata": {**META, "name": worker}, "spec": {"nodeName": "n"}, "status": status}


@pytest.mark.parametrize("workers", [10, 100, 1000])
@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_the_cluster_is_asked_as_often_for_a_thousand_workers_as_for_ten(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, workers: int, phase: str
) -> None:
    """The engine polls every 2 s or more; here a minute passes at once, in which it does so every 0.5 s."""
    now = [1000.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=lambda: 1.8e9 + now[0])
    set_clock(monkeypatch, clock)
    running = [{"name": "worker", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]
    status = {"phase": phase, "containerStatuses": running if phase == "Running" else []}
    listed = Answer(200, {"items": [made(f"w-{number}", status) for number in range(workers)]})
    fake.otherwise = lambda method, path: Answer(200, {"items": []}) if "/events" in path else listed
    handles = [f"ml/w-{number}" for number in range(workers)]
    platform = launched(*handles, at=clock.time())
    look(platform)
    while now[0] < 1060:
        now[0] += 0.5
        platform.poll(handles)
    asked = [path.partition("?")[0].rpartition("/")[2] for _, path, _ in fake.asked]
    assert asked.count("pods") == 1 + 30
    assert asked.count("events") == (6 if phase == "Pending" else 0)  # one for a pod that waits, whatever their number
    assert len(asked) == asked.count("pods") + asked.count("events")


def test_an_image_that_cannot_be_pulled_is_not_said_to_be_on_its_way(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=lambda: 1.8e9 + now[0])
    set_clock(monkeypatch, clock)
    pulling = {"reason": "Pulling", "message": "Pulling image", "lastTimestamp": "2026-01-01T00:00:00Z"}
    waits = {"name": "worker", "state": {"waiting": {"reason": "ErrImagePull", "message": "dial tcp: refused"}}}
    placed = {"type": "PodScheduled", "status": "True"}
    pod = made("a", {"phase": "Pending", "containerStatuses": [waits], "conditions": [placed]})
    pods = Answer(200, {"items": [pod]})
    fake.otherwise = lambda method, path: Answer(200, {"items": [pulling]}) if "/events" in path else pods
    platform = launched("ml/a")
    look(platform)
    for _ in range(30):
        now[0] += 1.0
        (worker,) = platform.poll(["ml/a"])
    assert "could not be pulled and is tried again: dial tcp: refused" in str(worker.reason)
    assert "being pulled" not in str(worker.reason)


@pytest.mark.slow
def test_an_image_that_is_being_pulled_is_told_with_the_size_that_another_pod_s_pull_has_shown(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=lambda: 1.8e9 + now[0])
    set_clock(monkeypatch, clock)
    pulling = {"reason": "Pulling", "message": 'Pulling image "my/a:1"', "lastTimestamp": "2026-01-01T00:00:00Z"}
    told = 'Successfully pulled image "my/a:1" in 9s (9s including waiting). Image size: 2500000000 bytes.'
    waits = {"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}
    placed = {"type": "PodScheduled", "status": "True"}
    pods = Answer(
        200, {"items": [made("a", {"phase": "Pending", "containerStatuses": [waits], "conditions": [placed]})]}
    )
    others: list[dict[str, Any]] = []

    def answer(method: str, path: str) -> Answer:
        if "reason%3DPulled" in path:
            return Answer(200, {"items": others})
        return Answer(200, {"items": [pulling]}) if "/events" in path else pods

    fake.otherwise = answer
    platform = launched("ml/a")
    look(platform)

    def reason_after(seconds: int) -> str:
        for _ in range(seconds):
            now[0] += 1.0
            (worker,) = platform.poll(["ml/a"])
        return str(worker.reason)

    assert reason_after(80) == "Its image my/a:1 is being pulled since 2026-01-01T00:00:00Z."
    assert sum("reason%3DPulled" in path for _, path, _ in fake.asked) == 2  # one a minute
    others.append({"reason": "Pulled", "message": told, "lastTimestamp": "2026-01-01T00:01:00Z"})
    fake.asked.clear()
    assert reason_after(300) == "Its image my/a:1 (2.5 GB) is being pulled since 2026-01-01T00:00:00Z."
    assert sum("reason%3DPulled" in path for _, path, _ in fake.asked) == 1  # and never again once it is known


class Looks:
    """A platform whose looks at its one pod find what a test says, at times that it says, too."""

    def __init__(self, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 1000.0
        clock = types.SimpleNamespace(monotonic=lambda: self._now, time=lambda: 1.8e9 + self._now)
        set_clock(monkeypatch, clock)
        self._fake = fake
        self._platform = launched("ml/a")
        self.events: list[dict[str, Any]] = []

    def look(self, status: dict[str, Any], **spec: Any) -> Worker:
        """Find the pod with this status and these fields of its spec."""
        placed = {"type": "PodScheduled", "status": "True"}
        pod = made("a", {"phase": "Pending", "conditions": [placed], **status})
        pod["spec"].update(spec)

        def answer(method: str, path: str) -> Answer:
            return Answer(200, {"items": self.events if "/events" in path else [pod]})

        self._fake.otherwise = answer
        self._now += 20.0
        (worker,) = look(self._platform)
        return worker


def waiting(name: str, reason: str, message: str = "") -> dict[str, Any]:
    """The status of a container that waits."""
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


BACK_OFF = ("ImagePullBackOff", 'Back-off pulling image "x"')  # all that clusters up to 1.30 say after an error


def test_the_missing_image_of_a_container_before_the_worker_s_is_told_at_once(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, spec = Looks(fake, monkeypatch), {"initContainers": [{"name": "mesh", "image": "mesh:1"}]}
    rest = {"containerStatuses": [waiting("worker", "PodInitializing")]}
    looks.look({"initContainerStatuses": [waiting("mesh", "ErrImagePull", "mesh:1: not found")], **rest}, **spec)
    worker = looks.look({"initContainerStatuses": [waiting("mesh", *BACK_OFF)], **rest}, **spec)
    assert worker.status is Status.FAILED
    assert "Its init container mesh: There is no image mesh:1. Kubernetes says: mesh:1: not found" in str(worker.reason)


def test_an_error_of_pulling_an_image_is_not_told_of_the_next_container(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, spec = Looks(fake, monkeypatch), {"initContainers": [{"name": "mesh", "image": "mesh:1"}]}
    looks.look({"initContainerStatuses": [waiting("mesh", "ErrImagePull", "connection refused")]}, **spec)
    done = {"name": "mesh", "state": {"terminated": {"exitCode": 0}}}
    ended = {"initContainerStatuses": [done], "containerStatuses": [waiting("worker", *BACK_OFF)]}
    assert "connection refused" not in str(looks.look(ended, **spec).reason)


def test_what_delays_a_pod_is_told_once_its_image_is_pulled_anew(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node forgets the error when its kubelet is started again, or when the next container's image is pulled."""
    looks = Looks(fake, monkeypatch)
    for said in (("ErrImagePull", "connection refused"), BACK_OFF):
        worker = looks.look({"containerStatuses": [waiting("worker", *said)]})
        assert "tried again: connection refused" in str(worker.reason)
    looks.events = [{"reason": "Pulling", "message": "Pulling image", "lastTimestamp": "2026-01-01T00:00:00Z"}]
    looks.look({"containerStatuses": [waiting("worker", *BACK_OFF)]})
    worker = looks.look({"containerStatuses": [waiting("worker", *BACK_OFF)]})
    assert "being pulled" not in str(worker.reason)
    worker = looks.look({"containerStatuses": [waiting("worker", "ContainerCreating")]})
    assert "Its image is being pulled since 2026-01-01T00:00:00Z" in str(worker.reason)


def test_an_image_is_not_told_as_pulled_and_as_tried_again_where_the_error_was_missed(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(fake, monkeypatch)
    looks.events = [{"reason": "Pulling", "message": "Pulling image", "lastTimestamp": "2026-01-01T00:00:00Z"}]
    for _ in range(3):  # events are read at the second, and told at the next
        worker = looks.look({"containerStatuses": [waiting("worker", *BACK_OFF)]})
    assert "tried again: Back-off" in str(worker.reason)
    assert "being pulled" not in str(worker.reason)


@pytest.mark.slow
def test_what_delays_pods_is_asked_for_one_after_the_other_and_never_where_that_is_refused(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=lambda: 1.8e9 + now[0])
    set_clock(monkeypatch, clock)
    event = {"reason": "FailedMount", "message": 'secret "data" not found', "lastTimestamp": "2026-01-01T00:00:00Z"}
    pods = Answer(200, {"items": [made(name, {"phase": "Pending"}) for name in ("a", "b")]})
    fake.otherwise = lambda method, path: Answer(200, {"items": [event]}) if "/events" in path else pods
    handles = ["ml/a", "ml/b"]
    platform = launched(*handles, at=clock.time())
    look(platform)
    for _ in range(50):
        now[0] += 1.0
        workers = platform.poll(handles)
    asked = [path.rpartition("%3D")[2] for _, path, _ in fake.asked if "/events" in path]
    assert asked == ["a", "b", "a", "b", "a"]
    assert all(
        'A volume of it cannot be mounted. Kubernetes says: secret "data"' in str(each.reason) for each in workers
    )
    for code, times in ((400, 5), (403, 1)):  # any other failure may be over the next time
        refusal = Answer(code, {"message": "cannot list"})
        fake.otherwise = lambda method, path, refusal=refusal: refusal if "/events" in path else pods  # type: ignore[misc]
        fake.asked.clear()
        for _ in range(50):
            now[0] += 1.0
            platform.poll(handles)
        assert sum("/events" in path for _, path, _ in fake.asked) == times


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (403, 'admission webhook "rules.example" denied the request: no team label', "a rule of the cluster"),
        (400, 'admission webhook "rules.example" denied the request without explanation', "a rule of the cluster"),
        (400, 'failed calling webhook "rules.example": connection refused', "a program that the cluster asks"),
    ],
)
def test_what_an_admission_webhook_denies_is_told_with_its_words(
    fake: Fake, run: Run, code: int, said: str, words: str
) -> None:
    def answer(method: str, path: str) -> Answer:
        if method == "POST" and path.endswith("/pods"):
            return Answer(code, {"message": said})
        return Answer(201 if method == "POST" else 200, {"metadata": {"name": "x", "uid": "u"}, "items": []})

    fake.otherwise = answer
    platform = KubernetesPlatform(image="my/image:1")
    with pytest.raises(LaunchRefused) as refused:
        platform.submit([run.spec(scratch=Path(symbol("scratch")), cwd=symbol("scratch"))], "key")
    assert words in refused.value.message
    assert said in refused.value.message
    assert refused.value.advice
    platform.close()


@pytest.mark.parametrize("error", [PlatformError("no"), ClusterGone("away")])
@pytest.mark.parametrize("goes_on", [True, False])
def test_after_an_error_only_what_may_work_is_tried(error: PlatformError, goes_on: bool) -> None:
    called: list[int] = []

    def call(item: int) -> None:
        called.append(item)
        time.sleep(0.001)
        raise error

    with pytest.raises(type(error)):
        _for_each(call, range(400), goes_on=goes_on)
    assert (len(called) == 400) is (goes_on and not isinstance(error, ClusterGone))
