"""Answers to clients: workers, in the workbench's shapes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.serve.service import Client, Service, serving
from tests.support import eventually

KEYS = ["id", "status", "created_at", "running_at", "finished_at", "duration", "ip_address", "app_url"]


def project_of(service: Service) -> Path:
    return service.keys.parent / "my project"


def test_workers_are_launched_listed_and_stopped(client: Client) -> None:
    assert client.list().json() == []
    launched = [client.launch(code="import time; time.sleep(600)").json() for _ in range(2)]
    assert set(launched[0]) >= set(KEYS)
    assert [worker["id"] for worker in client.list().json()] == [worker["id"] for worker in launched]
    eventually(lambda: {worker["status"] for worker in client.list().json()} == {"running"}, "both run")
    first, second = client.list().json()
    assert first["ip_address"] != second["ip_address"]
    assert first["created_at"] <= first["running_at"]

    assert client.stop(first["id"]).status_code == 200
    assert client.ended(first["id"])["status"] == "stopped"
    assert client.worker(second["id"])["status"] == "running"
    assert client.stop(first["id"]).status_code == 200, "asking twice is fine"
    client.stop(second["id"])


def test_code_runs_in_the_project_with_shell_commands(client: Client, service: Service) -> None:
    worker, log = client.run(code="!echo hello $NAME; pwd\nprint(1 + 1)", env={"NAME": "you", "NUMBER": 5})
    assert worker["status"] == "succeeded"
    assert worker["reason"] is None
    assert log.splitlines() == ["hello you", str(project_of(service)), "2"]


def test_a_failing_command_fails_the_worker(client: Client) -> None:
    worker, log = client.run(code="!grep nothing /dev/null\nprint('after')")
    assert worker["status"] == "failed"
    assert worker["reason"] == "Its process exited with status 1."
    assert "!grep nothing /dev/null exited with status 1" in log


def test_a_script_of_the_project_wins_over_code(client: Client, service: Service) -> None:
    (project_of(service) / "scripts").mkdir()
    (project_of(service) / "scripts" / "train.py").write_text("!echo trained\nprint(__file__)")
    worker, log = client.run(script="scripts/train.py", code="raise SystemExit(1)")
    assert worker["status"] == "succeeded"
    assert log.splitlines() == ["trained", f"{project_of(service)}/scripts/train.py"]


def test_a_worker_has_the_environment_of_an_engine(client: Client, service: Service) -> None:
    code = "import os, json\nprint(json.dumps({k: v for k, v in os.environ.items() if k.startswith('CDSW_')}))"
    forged = {"CDSW_API_KEY": "another", "CDSW_MASTER_ID": "another", "MUSTER_RUN_ID": "another"}
    worker, log = client.run(code=code, cpu=1.5, memory=0.5, env=forged)
    found = json.loads(log)
    key = found.pop("CDSW_API_KEY")
    assert key.startswith(client.id + ".")
    assert key not in service.keys.read_text()
    assert found == {
        "CDSW_APP_PORT": "8100",
        "CDSW_CPU_MILLICORES": "1500",
        "CDSW_DOMAIN": service.url.removeprefix("http://"),
        "CDSW_ENGINE_ID": worker["id"],
        "CDSW_ENGINE_URL": client.variables["CDSW_ENGINE_URL"],
        "CDSW_IP_ADDRESS": worker["ip_address"],
        "CDSW_MASTER_ID": client.id,
        "CDSW_MASTER_IP": "127.0.0.1",
        "CDSW_MEMORY_MB": "500",
        "CDSW_PROJECT": "my project",
        "CDSW_PROJECT_URL": client.variables["CDSW_PROJECT_URL"],
    }


def test_more_memory_than_was_asked_for_ends_a_worker(client: Client) -> None:
    worker, _ = client.run(code="x = bytearray(400_000_000)\nimport time; time.sleep(60)", memory=0.2)
    assert worker["status"] == "failed"
    assert "more than it was given" in worker["reason"]


@pytest.mark.parametrize(
    ("order", "status", "why"),
    [
        ({}, 409, "nothing to run"),
        ({"code": " \n"}, 409, "nothing to run"),
        ({"code": "1", "cpu": 4096}, 409, "4096.0 cores; this machine has"),
        ({"code": "1", "memory": 1e6}, 409, "this machine has"),
        ({"code": "1", "nvidia_gpu": 512}, 409, "512 GPUs; this machine has"),
        ({"script": "missing.py"}, 409, "no script 'missing.py'"),
        ({"script": "."}, 409, "no script"),
        ({"script": "../keys"}, 409, "no script '../keys'"),
        ({"script": "/etc/hostname"}, 409, "no script"),
        ({"script": "link.py"}, 409, "no script 'link.py'"),
        ({"script": "loop.py"}, 409, "no script 'loop.py'"),
        ({"script": "x" * 1000}, 409, "no script"),
        ({"code": "1", "kernel": "r"}, 422, "body.kernel: Input should be 'python3'"),
        ({"code": "1", "cpu": 0}, 422, "body.cpu: Input should be greater than 0"),
        ({"code": "1", "memory": "much"}, 422, "body.memory"),
        ({"code": "1", "env": {"A B": "1"}}, 422, "body.env"),
        ({"code": "1", "env": {"A": "\0"}}, 422, "body.env.A"),
        ({"code": "\ud800"}, 422, "body.code"),
        ({"code": "1", "master_id": "a/../b"}, 422, "body.master_id"),
    ],
)
def test_a_refused_launch_says_why(
    client: Client, service: Service, order: dict[str, Any], status: int, why: str
) -> None:
    for name, target in (("link.py", service.keys), ("loop.py", "loop.py")):
        if not os.path.lexists(project_of(service) / name):
            (project_of(service) / name).symlink_to(target)
    answer = client.launch(**order)
    assert answer.status_code == status
    refusal = answer.json()
    assert set(refusal) == {"message", "engineId"}
    assert why in refusal["message"]
    assert refusal["engineId"] == order.get("master_id", client.id)
    assert client.list().json() == []


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 422), (b"[]", 422), (b'{"cpu": 1', 422), (b"[" * 100_000, 400), (b"\xff", 400), (b"1" * 5000, 400)],
)
def test_what_is_no_order_is_refused(client: Client, body: bytes, status: int) -> None:
    url = client.variables["CDSW_PROJECT_URL"] + "/dashboards"
    answer = client.call("POST", url, data=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert set(answer.json()) == {"message", "engineId"}


def test_a_disk_that_cannot_be_written_is_said(client: Client, service: Service) -> None:
    assert service.home
    (folder,) = (service.home / "serve").glob("serve-*")
    moved = folder.rename(folder.with_name("moved"))
    try:
        answer = client.launch(code="1")
    finally:
        moved.rename(folder)
    assert answer.status_code == 503
    assert str(folder) in answer.json()["message"]
    assert client.list().json() == []


@pytest.mark.slow
def test_workers_are_limited_in_a_session_and_in_all(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-workers", "3", "--max-session-workers", "2") as service:
        one, other = Client(service.client_environment()), Client(service.client_environment())
        first, _ = one.start(""), one.start("")
        refused = one.launch(code="1")
        assert refused.status_code == 429
        assert refused.json() == {
            "message": "No more workers: this session has 2, the most it may.", "engineId": one.id,
        }  # fmt: skip
        other.start("")
        assert other.launch(code="1").json()["message"] == "No more workers: this service has 3, the most it may."
        one.stop(first["id"])
        one.ended(first["id"])
        assert other.launch(code="1").status_code == 200, "those that have ended do not count"


def test_a_session_ends_with_its_workers(client: Client, service: Service) -> None:
    worker = client.start("")
    other = Client(service.client_environment())
    bystander = other.start("")
    assert client.call("DELETE", client.variables["CDSW_ENGINE_URL"]).status_code == 204
    assert client.list().json() == []
    assert client.stop(worker["id"]).status_code == 200, "its worker is not gone before it has ended"
    assert other.worker(bystander["id"])["status"] == "running"
    other.stop(bystander["id"])


def test_its_description_needs_no_key(service: Service) -> None:
    description = requests.get(f"{service.url}/openapi.json").json()
    assert "/api/v1/project/dashboards" in description["paths"]
    assert requests.get(f"{service.url}/docs", auth=(service.key, "")).status_code == 404
