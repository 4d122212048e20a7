"""The client of a cluster's API: logins, and what it tries again of what goes wrong. By a fake server."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from muster.errors import LaunchRefused, PlatformUnsupported
from muster.platforms.kubernetes import client as clients
from muster.platforms.kubernetes import credentials
from muster.platforms.kubernetes.client import ApiClient, ApiRefused, ClusterGone
from muster.platforms.kubernetes.credentials import Credential, Credentials
from muster.platforms.kubernetes.exec_stream import open_exec
from muster.platforms.kubernetes.guard import way_of
from muster.platforms.kubernetes.kubeconfig import Access, find_access
from muster.platforms.kubernetes.proxies import proxy_of
from muster.platforms.kubernetes.refusals import asking

from tests.platforms.kubernetes.fake_server import Answer, Fake, fake_server


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setattr(clients, "PAUSES", (0.01, 0.01))
    with fake_server() as fake:
        yield fake


@pytest.fixture
def client(fake: Fake) -> Iterator[ApiClient]:
    client = ApiClient(Access(fake.url, "ml", "a test", user={"token": "secret"}))
    yield client
    client.close()


def write_config(path: Path, user: dict[str, Any], **cluster: Any) -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://cluster:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "first", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
        "current-context": "first",
    }
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("trouble", [Answer(0), Answer(500), Answer(503), Answer(429, headers={"Retry-After": "0"})])
def test_what_may_pass_is_tried_again(fake: Fake, client: ApiClient, trouble: Answer) -> None:
    fake.answers = [trouble, trouble, Answer(201, {"kind": "Pod"})]
    assert client.create("/pods", {}) == {"kind": "Pod"}
    assert len(fake.asked) == 3


def test_a_server_says_how_long_to_wait(fake: Fake, client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr("muster.platforms.kubernetes.client.time.sleep", paused.append)
    fake.answers = [Answer(429, headers={"Retry-After": "7"}), Answer(200)]
    client.get("/pods")
    assert paused == [7.0]


def test_what_does_not_pass_ends(fake: Fake, client: ApiClient) -> None:
    fake.answers = [Answer(0)] * 9
    with pytest.raises(ClusterGone, match="does not answer"):
        client.get("/pods")
    assert len(fake.asked) == 3
    fake.answers = [Answer(500, {"message": "etcdserver: request timed out"})] * 9
    with pytest.raises(ApiRefused, match="etcdserver: request timed out"):
        client.get("/pods")


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422])
def test_a_no_is_a_no(fake: Fake, client: ApiClient, status: int) -> None:
    fake.answers = [Answer(status, {"message": "because", "reason": "So"})]
    with pytest.raises(ApiRefused, match="because") as refused:
        client.create("/pods", {})
    assert (refused.value.code, refused.value.reason, len(fake.asked)) == (status, "So", 1)


@pytest.mark.parametrize("asked_for", ["0", "0.0", "-3", "nan"])
def test_a_server_that_wants_no_pause_gets_one(
    fake: Fake, client: ApiClient, monkeypatch: pytest.MonkeyPatch, asked_for: str
) -> None:
    now, paused = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        paused.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(clients, "PAUSES", (0.2, 0.5, 1.0, 2.0, 4.0))
    monkeypatch.setattr("muster.platforms.kubernetes.client.time.sleep", sleep)
    monkeypatch.setattr("muster.platforms.kubernetes.client.time.monotonic", lambda: now[0])
    fake.otherwise = lambda method, path: Answer(429, {"message": "slow down"}, {"Retry-After": asked_for})
    with pytest.raises(ApiRefused, match="slow down"):
        client.get("/pods")
    assert paused[:5] == [0.2, 0.5, 1.0, 2.0, 4.0]
    assert sum(paused) <= clients.PATIENCE


PAGE = Answer(200, "<html>Please log in</html>", {"Content-Type": "text/html; charset=utf-8"})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(302, "", {"Location": "https://login.example/start?token=abc"}), "sends requests on to login.example:"),
        (Answer(304, ""), "answers with status 304"),
        (PAGE, "answers with a page for a browser"),
        (Answer(200, "ok", {"Content-Type": "text/plain"}), "answers with text/plain instead of JSON"),
        (Answer(200, "{", {}), "answers with something else than JSON"),
        (Answer(200, "[]", {}), "answers with something else than JSON"),
    ],
)
def test_what_answers_in_the_place_of_the_cluster_is_no_success(
    fake: Fake, client: ApiClient, answer: Answer, words: str
) -> None:
    methods = ("GET", "POST", "DELETE")
    for method in methods:
        fake.answers = [answer]
        with pytest.raises(ClusterGone, match=words) as gone:
            client.ask(method, "/pods")
        assert "abc" not in str(gone.value)
    assert [method for method, _, _ in fake.asked] == [*methods]


def test_a_page_is_no_log(fake: Fake, client: ApiClient) -> None:
    fake.answers = [PAGE]
    with pytest.raises(ClusterGone, match="page for a browser"):
        client.text("/log")
    fake.answers = [
        Answer(200, "one\ntwo\n", {"Content-Type": "text/plain"}),
        Answer(200, "three\n", {"Content-Type": ""}),
    ]
    assert [client.text("/log"), client.text("/log")] == ["one\ntwo\n", "three\n"]


def test_what_is_refused_by_a_page_shows_no_page(fake: Fake, client: ApiClient) -> None:
    fake.answers = [Answer(403, "<html>a page of a proxy's</html>", {"Content-Type": "text/html"})]
    with pytest.raises(ApiRefused, match="status 403") as refused:
        client.get("/pods")
    assert "<html>" not in str(refused.value)


def test_of_a_log_so_much_is_read_and_no_more(fake: Fake, client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.otherwise = lambda method, path: Answer(200, "x" * 5000, {"Content-Type": "text/plain"})
    assert client.text("/log", 3000) == "x" * 3000
    assert client.text("/log", 5000, container="worker") == "x" * 5000
    assert [path for _, path, _ in fake.asked] == ["/log", "/log?container=worker"]
    monkeypatch.setattr(clients, "LARGEST_ANSWER", 3000)
    fake.otherwise = lambda method, path: Answer(200, {"items": ["x" * 5000]})
    with pytest.raises(ClusterGone, match="answers with more than"):
        client.get("/pods")


def test_logins_that_are_refused_at_the_same_time_are_made_anew_once(fake: Fake, tmp_path: Path) -> None:
    program = (
        "import json, os, pathlib\n"
        "number = len(pathlib.Path(os.environ['CALLS']).read_text()) + 1\n"
        "open(os.environ['CALLS'], 'a').write('x')\n"
        "status = {'token': f'said-{number}', 'expirationTimestamp': '2999-01-01T00:00:00Z'}\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'status': status}))"
    )
    calls = tmp_path / "calls"
    calls.write_text("")
    described = {
        "apiVersion": credentials.VERSIONS[0],
        "command": sys.executable,
        "args": ["-c", program],
        "env": [{"name": "CALLS", "value": str(calls)}],
    }
    client = ApiClient(Access(fake.url, "ml", "a test", user={"exec": described}))
    client.get("/pods")
    together = threading.Barrier(6)  # all requests are under way before the first is refused

    def answer(method: str, path: str) -> Answer:
        if fake.asked[-1][2] == "Bearer said-1":
            together.wait(20)
            return Answer(401)
        return Answer(200)

    fake.otherwise = answer
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: client.get(f"/pods/{number}"), range(6)))
    assert calls.read_text() == "xx"
    client.close()


def test_a_credential_shows_nothing_of_itself(fake: Fake) -> None:
    shown = repr(Credential("Bearer secret", "PEM secret", "KEY secret"))
    assert shown == "Credential(header, certificate, key)"
    access = Access(fake.url, "ml", "a test", user={"token": "secret"}, proxy="http://me:secret@proxy:1")
    assert "secret" not in f"{access!r} {Credentials(access).current()!r} {Credentials(access)!r}"


def test_programs_are_told_of_the_cluster_where_they_ask_for_that(tmp_path: Path) -> None:
    program = (
        "import json, os\ninfo = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "print(json.dumps({'apiVersion': info['apiVersion'], 'status': {'token': json.dumps(info['spec'])}}))"
    )
    described = {"apiVersion": credentials.VERSIONS[0], "command": sys.executable, "args": ["-c", program]}
    told = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "ml"}}
    cluster: dict[str, Any] = {
        "tls-server-name": "other",
        "certificate-authority-data": "UEVN",
        "proxy-url": "http://proxy:1",
        "extensions": [{"name": "another", "extension": 1}, told],
    }
    for is_wanted in (True, False):
        write_config(tmp_path / "config", {"exec": {**described, "provideClusterInfo": is_wanted}}, **cluster)
        access = find_access(environ={"KUBECONFIG": str(tmp_path / "config")})
        spec = json.loads(Credentials(access).current().header.removeprefix("Bearer "))
        expected = {
            "server": "https://cluster:6443",
            "tls-server-name": "other",
            "certificate-authority-data": "UEVN",
            "proxy-url": "http://proxy:1",
            "config": {"audience": "ml"},
        }
        assert spec == ({"interactive": False, "cluster": expected} if is_wanted else {"interactive": False})


@pytest.mark.parametrize(
    ("server", "named", "environ", "found"),
    [
        ("https://c:6443", "", {}, ""),
        ("https://c:6443", "", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://c:6443", "", {"https_proxy": "p:1"}, "http://p:1"),
        ("https://c:6443", "", {"HTTPS_PROXY": "http://p:1", "https_proxy": "http://q:1"}, "http://p:1"),
        ("https://c:6443", "", {"HTTP_PROXY": "http://p:1"}, ""),
        ("http://c:6443", "", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("https://c:6443", "http://k:1", {"HTTPS_PROXY": "http://p:1"}, "http://k:1"),
        ("https://c:6443", "http://k:1", {"NO_PROXY": "*"}, "http://k:1"),
        ("https://127.0.0.1:6443", "", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://[::1]:6443", "", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://localhost:6443", "", {"HTTPS_PROXY": "http://p:1"}, ""),
    ],
)
def test_proxies_are_those_of_kubectl(server: str, named: str, environ: dict[str, str], found: str) -> None:
    assert proxy_of(server, named, environ) == found


@pytest.mark.parametrize(
    ("server", "exceptions", "is_direct"),
    [
        ("https://c.example.org:6443", "*", True),
        ("https://c.example.org:6443", "example.org", True),
        ("https://c.example.org:6443", "a, EXAMPLE.org ,b", True),
        ("https://c.example.org:6443", ".example.org", True),
        ("https://c.example.org:6443", "*.example.org", True),
        ("https://example.org:6443", ".example.org", False),
        ("https://badexample.org:6443", "example.org", False),
        ("https://c.example.org:6443", "example.org:6443", True),
        ("https://c.example.org:6443", "example.org:443", False),
        ("https://c.example.org", "example.org:443", True),
        ("https://10.1.2.3:6443", "10.0.0.0/8", True),
        ("https://10.1.2.3:6443", "10.1.2.3", True),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", True),
        ("https://10.1.2.3:6443", "10.1.2.4,192.168.0.0/16,nonsense/9", False),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
        ("https://[fd00::1]:6443", "fd00::1", True),
        ("https://c.example.org:6443", "", False),
    ],
)
def test_what_needs_no_proxy_is_told_as_to_kubectl(server: str, exceptions: str, is_direct: bool) -> None:
    assert proxy_of(server, "", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": exceptions}) == (
        "" if is_direct else "http://p:1"
    )


def test_requests_go_by_the_proxy_with_its_login(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    login = fake.url.replace("//", "//me:a%40b@")
    monkeypatch.setenv("http_proxy", login)
    client = ApiClient(Access("http://cluster.invalid:6443", "ml", "a test", user={"token": "secret"}))
    client.get("/pods")
    monkeypatch.delenv("http_proxy")
    other = ApiClient(Access("http://other.invalid:6443", "ml", "a test", proxy=login))
    other.get("/nodes")
    assert [path for _, path, _ in fake.asked] == [
        "http://cluster.invalid:6443/pods",
        "http://other.invalid:6443/nodes",
    ]
    assert fake.proxied_by == [f"Basic {base64.b64encode(b'me:a@b').decode()}"] * 2
    for each in (client, other):
        each.close()
    with pytest.raises(PlatformUnsupported, match=r"proxy socks5://proxy, of a kind") as refused:
        ApiClient(Access("https://cluster", "ml", "a test", proxy="socks5://me:secret@proxy:1")).get("/pods")
    assert "secret" not in str(refused.value)


def test_deleting_what_is_gone_is_fine(fake: Fake, client: ApiClient) -> None:
    fake.answers = [Answer(404), Answer(409), Answer(200)]
    assert [client.delete("/pods/a") for _ in range(3)] == [False, False, True]


def test_a_list_that_is_too_old_is_asked_for_afresh(fake: Fake, client: ApiClient) -> None:
    fake.answers = [Answer(410, {"reason": "Expired"}), Answer(200, {"items": [1]})]
    assert client.get("/pods", resourceVersion="0", labelSelector="a")["items"] == [1]
    assert [path for _, path, _ in fake.asked] == ["/pods?resourceVersion=0&labelSelector=a", "/pods?labelSelector=a"]


def test_a_token_that_has_ended_is_read_again_once(fake: Fake, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    client = ApiClient(Access(fake.url, "ml", "a test", user={"tokenFile": str(token)}))
    client.get("/pods")
    token.write_text("new\n")
    fake.answers = [Answer(401), Answer(200)]
    client.get("/pods")
    fake.answers = [Answer(401), Answer(401)]
    with pytest.raises(ApiRefused):
        client.get("/pods")
    assert [shown for _, _, shown in fake.asked] == ["Bearer old", "Bearer old", *["Bearer new"] * 3]
    client.close()


def test_refusals_say_what_they_mean_and_no_token(fake: Fake, client: ApiClient) -> None:
    said = 'pods "a" is forbidden: exceeded quota: tight, requested: pods=1, used: pods=1, limited: pods=1'
    fake.answers = [Answer(403, {"message": said})]
    words = "worker-0 was refused: the namespace's quota does not allow it"
    with pytest.raises(LaunchRefused, match=words) as refused, asking("worker-0 was refused", "worker-0"):
        client.create("/pods", {})
    assert "kubectl describe quota" in str(refused.value.advice)
    assert "secret" not in str(refused.value) + repr(client.access)


def test_kubeconfigs_are_merged_as_kubectl_does(tmp_path: Path) -> None:
    write_config(tmp_path / "one", {"token": "one"}, **{"tls-server-name": "other", "proxy-url": "http://proxy:1"})
    write_config(tmp_path / "two", {"token": "two"})
    (tmp_path / "empty").touch()
    access = find_access(environ={"KUBECONFIG": f"{tmp_path}/empty:{tmp_path}/one:{tmp_path}/none:{tmp_path}/two"})
    assert (access.server, access.namespace, access.user) == ("https://cluster:6443", "ml", {"token": "one"})
    assert (access.server_name, access.proxy, access.is_checked) == ("other", "http://proxy:1", True)
    with pytest.raises(PlatformUnsupported, match="has no context 'second'; it has: first"):
        find_access("second", {"KUBECONFIG": f"{tmp_path}/one"})
    with pytest.raises(PlatformUnsupported, match="which is not there"):
        find_access(environ={"KUBECONFIG": f"{tmp_path}/none"})


def test_certificates_may_be_on_several_lines(tmp_path: Path) -> None:
    write_config(tmp_path / "config", {}, **{"certificate-authority-data": "UEVN\nUEVN\n"})
    assert find_access(environ={"KUBECONFIG": str(tmp_path / "config")}).authority == "PEMPEM"


def test_a_guard_finds_the_session_s_cluster_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(tmp_path / "config", {"tokenFile": "token"})
    (tmp_path / "token").write_text("mine")
    monkeypatch.chdir(tmp_path)
    access = find_access(environ={"KUBECONFIG": "config"})
    config = json.loads((tmp_path / "config").read_text())
    config["contexts"].append({"name": "second", "context": {"cluster": "c", "user": "u", "namespace": "other"}})
    (tmp_path / "config").write_text(json.dumps({**config, "current-context": "second"}))
    monkeypatch.chdir("/")
    monkeypatch.setenv("KUBECONFIG", "config")
    assert Credentials(access).current().header == "Bearer mine"
    assert way_of({"context": access.context, "files": access.files}) == access


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("mine")
    (tmp_path / "namespace").write_text("ml\n")
    (tmp_path / "ca.crt").write_text("PEM")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}
    access = find_access(environ=environ, account=tmp_path)
    assert (access.server, access.namespace, access.is_inside) == ("https://10.0.0.1:443", "ml", True)
    assert Credentials(access).current().header == "Bearer mine"
    with pytest.raises(PlatformUnsupported, match="given no service account"):
        find_access(environ=environ, account=tmp_path / "nowhere")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_programs_say_tokens_until_these_end(tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = f"client.authentication.k8s.io/{version}"
    calls = tmp_path / "calls"
    program = (
        "import json, os\ninfo = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "open(os.environ['CALLS'], 'a').write('x')\n"
        "print(json.dumps({'apiVersion': info['apiVersion'], 'kind': 'ExecCredential', 'status': {'token': 'said',"
        " 'expirationTimestamp': '2020-01-01T00:00:00Z' if os.environ.get('OLD') else '2999-01-01T00:00:00Z'}}))"
    )
    described = {
        "apiVersion": version,
        "command": sys.executable,
        "args": ["-c", program],
        "env": [{"name": "CALLS", "value": str(calls)}],
    }
    known = Credentials(Access("https://cluster", "ml", "a test", user={"exec": described}))
    assert [known.current().header for _ in range(2)] == ["Bearer said"] * 2
    assert calls.read_text() == "x"
    monkeypatch.setenv("OLD", "1")
    assert known.renew(known.current())
    known.current()
    known.current()
    assert calls.read_text() == "xxx"


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"command": "/no/such", "installHint": "install it so"}, "cannot be run"),
        ({"command": "false"}, "failed with status 1"),
        ({"command": "echo", "args": ["hello"]}, "did not say a credential"),
        ({"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}, "Muster knows"),
        ({"command": "x", "interactiveMode": "Always"}, "nobody is there to answer"),
    ],
)
def test_programs_that_do_not_work_are_named(described: dict[str, Any], words: str) -> None:
    described = {"apiVersion": credentials.VERSIONS[0], **described}
    with pytest.raises(PlatformUnsupported, match=words):
        credentials.run_program(described, Access("https://cluster", "ml", "a test"))


def test_files_of_a_kubeconfig_are_found_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(tmp_path / "config", {"tokenFile": "token"})
    (tmp_path / "token").write_text("beside")
    monkeypatch.chdir("/")
    access = find_access(environ={"KUBECONFIG": str(tmp_path / "config")})
    assert Credentials(access).current().header == "Bearer beside"
    for command, found in (("bin/login", f"{tmp_path}/bin/login"), ("login", "login"), ("/bin/login", "/bin/login")):
        write_config(tmp_path / "other", {"exec": {"command": command}})
        assert find_access(environ={"KUBECONFIG": str(tmp_path / "other")}).user["exec"]["command"] == found
    os.unlink(tmp_path / "token")
    with pytest.raises(PlatformUnsupported, match="token of the cluster's user cannot be read"):
        Credentials(access).current()


def test_the_connection_to_a_proxy_that_speaks_no_http_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy, ThreadPoolExecutor() as threads:

        def answer() -> socket.socket:
            peer = proxy.accept()[0]
            peer.recv(1 << 16)
            peer.sendall(b"nonsense\r\n")
            return peer

        answered = threads.submit(answer)
        access = Access("https://cluster.invalid", "ml", "a test", proxy=f"http://127.0.0.1:{proxy.getsockname()[1]}")
        with pytest.raises(ClusterGone, match="opens no stream") as raised:  # which keeps what raised it
            open_exec(ApiClient(access), "ml", "pod", "worker", ["true"])
        with answered.result() as peer:
            peer.settimeout(10.0)
            assert peer.recv(1) == b""
    assert raised.value.__cause__ is not None
