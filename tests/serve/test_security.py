"""Permissions of a service: keys, sessions, and the credentials of workers."""

from __future__ import annotations

import socket
import stat
import sys
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner
from muster.agent import linux
from muster.commands.main import main
from muster.errors import JobError
from muster.serve.app import LARGEST_BODY
from muster.serve.keys import make_key_file, read_keys
from muster.serve.record import ServiceRecord, client_environment
from muster.serve.site import ServiceSite

from tests.serve.service import Client, Service, new_keys, serving
from tests.support import command_line

CALL_AS_A_WORKER = """
import os, requests
auth = (os.environ["CDSW_API_KEY"], "")
def launch(session):
    order = {"cpu": 1, "memory": 0.5, "code": "print('launched by a worker')", "master_id": session}
    return requests.post(os.environ["CDSW_PROJECT_URL"] + "/dashboards", json=order, auth=auth)
def workers(url):
    return requests.get(url + "/workers", auth=auth)
"""


@pytest.mark.parametrize("auth", [None, ("", ""), ("wrong", ""), ("a.b", ""), ("", "password"), ("\xe9", "")])
def test_without_a_key_nothing_can_be_done(client: Client, auth: tuple[str, str] | None) -> None:
    project, engine = client.variables["CDSW_PROJECT_URL"], client.variables["CDSW_ENGINE_URL"]
    order = {"cpu": 1, "memory": 1, "code": "1", "master_id": "x"}
    for answer in (
        requests.get(f"{engine}/workers", auth=auth),
        requests.post(f"{project}/dashboards", auth=auth, json=order),
        requests.put(f"{project}/dashboards/x/stop", auth=auth),
        requests.delete(engine, auth=auth),
    ):
        assert answer.status_code == 401
        assert set(answer.json()) == {"message", "engineId"}
    assert Client({**client.variables, "CDSW_ENGINE_URL": engine[: -len(client.id)] + "x"}).list().json() == []


def test_another_key_sees_and_stops_nothing(client: Client, other_client: Client) -> None:
    worker = client.start("")
    assert other_client.list().json() == []
    assert other_client.stop(worker["id"]).status_code == 404
    assert other_client.call("GET", client.variables["CDSW_ENGINE_URL"] + "/workers").status_code == 403
    assert other_client.call("DELETE", client.variables["CDSW_ENGINE_URL"]).status_code == 403
    refused = other_client.launch(code="1", master_id=client.id)
    assert refused.status_code == 403
    assert refused.json()["engineId"] == client.id
    assert client.worker(worker["id"])["status"] == "running"
    client.stop(worker["id"])


def test_sessions_of_one_key_see_their_own_workers(client: Client, service: Service) -> None:
    other = Client(service.client_environment())
    one, another = client.launch(code="1").json(), other.launch(code="1").json()
    assert [worker["id"] for worker in client.list().json()] == [one["id"]]
    assert [worker["id"] for worker in other.list().json()] == [another["id"]]


def test_a_worker_may_act_for_its_own_session_only(client: Client, service: Service) -> None:
    other = Client(service.client_environment())
    bystander = other.start("")
    code = f"""
{CALL_AS_A_WORKER}
own, other = os.environ["CDSW_MASTER_ID"], {other.id!r}
print(launch(own).status_code, launch(other).status_code, launch("a-new-one").status_code)
print(workers(os.environ["CDSW_ENGINE_URL"]).status_code, workers({other.variables["CDSW_ENGINE_URL"]!r}).status_code)
stop = os.environ["CDSW_PROJECT_URL"] + "/dashboards/{bystander["id"]}/stop"
print(requests.put(stop, auth=auth).status_code)
"""
    _, log = client.run(code=code)
    assert log.splitlines() == ["200 403 403", "200 403", "404"]
    assert len(client.list().json()) == 2
    assert [worker["status"] for worker in other.list().json()] == ["running"]
    other.stop(bystander["id"])


def test_the_credential_of_a_worker_ends_with_its_session(client: Client) -> None:
    worker = client.start("!echo $CDSW_API_KEY")
    credential, _ = Path(worker["log"]).read_text().splitlines()
    as_worker = Client({**client.variables, "CDSW_API_KEY": credential})
    assert as_worker.list().status_code == 200
    client.call("DELETE", client.variables["CDSW_ENGINE_URL"])
    assert as_worker.list().status_code == 401
    client.launch(code="1")
    assert as_worker.list().status_code == 401, "nor does it come back with the session"


@pytest.mark.parametrize("size", [LARGEST_BODY + 1, 20 * LARGEST_BODY])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long_is_refused(client: Client, size: int, chunked: bool) -> None:
    url = client.variables["CDSW_PROJECT_URL"] + "/dashboards"
    body = iter([b"x" * size]) if chunked else b"x" * size
    answer = client.call("POST", url, data=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert answer.json()["message"] == "The body has more than 4 MiB."


@pytest.mark.slow
def test_keys_are_neither_printed_nor_on_command_lines(tmp_path: Path, muster_home: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    secret = keys.read_text().strip()
    with serving(tmp_path, keys=keys, CDSW_API_KEY=secret) as service:
        client = Client(service.client_environment())
        client.start("!env")
        requests.get(client.variables["CDSW_ENGINE_URL"] + "/workers", auth=(secret + "x", ""))
        assert secret not in "\n".join(command_line(pid) for pid in linux.all_pids())
    assert secret not in service.output
    texts = [path.read_text(errors="replace") for path in muster_home.rglob("*") if path.is_file()]
    assert any("CDSW_MASTER_ID" in text for text in texts), "the worker's environment is in its log"
    assert not any(secret in text for text in texts)


def test_what_a_service_writes_is_for_its_owner_only(client: Client) -> None:
    worker, _ = client.run(code="1")
    folder = Path(worker["log"]).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / f"{worker['id']}.py").stat().st_mode) == 0o600


class TestKeyFile:
    def test_is_made_with_a_key_that_only_its_owner_can_read(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "keys"
        assert make_key_file(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (key,) = read_keys(path)
        assert len(key) >= 43
        assert not make_key_file(path)
        assert read_keys(path) == [key]

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
    def test_is_refused_where_others_can_read_it(self, tmp_path: Path, mode: int) -> None:
        path = new_keys(tmp_path / "keys")
        path.chmod(mode)
        with pytest.raises(JobError, match=f"chmod 600 {path}"):
            read_keys(path)

    @pytest.mark.parametrize("text", ["", "short\n", "\n" + "k" * 40, "k" * 40 + "\n# no key\n", "k" * 40 + ".x"])
    def test_is_refused_with_anything_but_keys_in_it(self, tmp_path: Path, text: str) -> None:
        path = new_keys(tmp_path / "keys")
        path.write_text(text)
        with pytest.raises(JobError, match="is no key") as caught:
            read_keys(path)
        assert "kkkk" not in str(caught.value)


class TestOptions:
    def refusal(self, *options: str) -> str:
        result = CliRunner().invoke(main, ["serve", *options])
        assert result.exit_code == 2, result.output
        return result.output

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
    def test_nobody_is_served_in_the_open(self, host: str) -> None:
        assert "without TLS they could read along" in self.refusal("--host", host, "--port", "0")

    def test_a_certificate_needs_its_key(self, tmp_path: Path) -> None:
        certificate = tmp_path / "cert.pem"
        certificate.write_text("")
        assert "needs both" in self.refusal("--tls-cert", str(certificate))
        assert "cannot be used" in self.refusal(
            "--tls-cert", str(certificate), "--tls-key", str(certificate), "--port", "0"
        )

    def test_a_port_that_is_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            assert "--port 0" in self.refusal("--port", str(taken.getsockname()[1]))

    def test_a_platform_that_is_none(self) -> None:
        assert "no platform 'nowhere'" in self.refusal("--platform", "nowhere")

    def test_a_package_that_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        monkeypatch.delitem(sys.modules, "muster.serve.server", raising=False)
        assert "pip install 'muster[serve]'" in self.refusal()


def test_a_port_that_no_service_listens_on_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    record = ServiceRecord()
    record.announce("local", ServiceSite("http://127.0.0.1:8765", "project", "127.0.0.1"), record.keys)
    assert "CDSW_API_KEY" in client_environment(8765)
    with pytest.raises(JobError, match=r"listens on port 9.*http://127\.0\.0\.1:8765"):
        client_environment(9)
