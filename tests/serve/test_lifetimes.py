"""A service that ends, in order or not, ends its workers; those it could not end, the next one does."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from muster.agent import linux
from muster.commands.main import main
from muster.records import folders
from muster.security.certificates import make_certificate
from muster.serve.record import ServiceRecord, clean_up
from muster.serve.site import ServiceSite

from tests.serve.service import Client, Service, new_keys, serving
from tests.support import command_line, descendants_of, environment, eventually, is_gone

pytestmark = pytest.mark.slow
SLEEPS = "import subprocess\nprint('child', subprocess.Popen(['sleep', '600']).pid, flush=True)"


def started(service: Service) -> list[int]:
    """The processes of a worker that has been launched: IPython, and a child of it."""
    worker = Client(service.client_environment()).start(SLEEPS)
    found = linux.marked("CDSW_ENGINE_ID", worker["id"])
    assert len(found) == 2, [command_line(pid) for pid in found]
    return found


def record_of(service: Service) -> Path:
    """The folder that the service keeps its records in."""
    (folder,) = [
        path.parent for path in folders.muster_home().glob("serve/*/service.json") if service.url in path.read_text()
    ]
    return folder


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_service_that_is_told_to_end_ends_its_workers_first(tmp_path: Path, signum: signal.Signals) -> None:
    if signal.getsignal(signum) is signal.SIG_IGN:
        pytest.skip("these tests run under nohup, and so does the service")
    with serving(tmp_path) as service:
        workers = started(service)
        folder = record_of(service)
        everything = descendants_of(service.process.pid)
        os.kill(service.process.pid, signum)
        assert service.process.wait(10) == 0
        assert all(is_gone(pid) for pid in (*workers, *everything))
    assert not (folder / "service.json").exists()
    assert list(folder.glob("*.log")), "logs are kept"


def test_ending_does_not_wait_long_for_a_request_under_way(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        host, port = service.url.removeprefix("http://").split(":")
        proof = base64.b64encode(f"{service.key}:".encode()).decode()
        head = (
            "POST /api/v1/project/dashboards HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n"
            f"Authorization: Basic {proof}\r\n\r\n"
        )
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(head.encode())
            assert slow.recv(1000).startswith(b"HTTP/1.1 100")
            service.process.terminate()
            assert service.process.wait(15) == 0
            assert slow.recv(1000).startswith(b"HTTP/1.1 503")


def test_when_a_service_is_killed_its_workers_end(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        workers = started(service)
        service.process.kill()
        eventually(lambda: all(is_gone(pid) for pid in workers), "the workers have ended")


def test_the_next_service_ends_what_was_left(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        started(service)
        folder = record_of(service)
        # What is left where everything that watches was killed with the service.
        left = subprocess.Popen(["sleep", "600"], env={"MUSTER_RUN_ID": folder.name})
        for pid in (service.process.pid, *descendants_of(service.process.pid)):
            linux.kill(pid)
    assert (folder / "service.json").exists()
    assert left.poll() is None
    with serving(tmp_path):
        assert left.wait(5) == -signal.SIGKILL
        assert not (folder / "service.json").exists()


def test_what_cannot_be_ended_is_said_and_kept_for_the_next_start() -> None:
    record = ServiceRecord()
    record.announce("workbench", ServiceSite("http://127.0.0.1:1", "project", "127.0.0.1"), Path("keys"))
    owner = record.folder / "service.json"
    facts = json.loads(owner.read_text())
    with subprocess.Popen(["true"]) as ended:
        facts["session"]["pid"] = ended.pid
    owner.write_text(json.dumps(facts))
    (trouble,) = clean_up()
    assert trouble.startswith(f"What {record.id}, which was killed, left cannot be ended: This is no session")
    assert owner.exists()


def test_services_of_one_home_leave_one_another_alone(tmp_path: Path) -> None:
    with serving(tmp_path) as one:
        workers = started(one)
        with serving(tmp_path) as other:
            others = started(other)
            assert not any(is_gone(pid) for pid in workers)
            answer = Client({**one.client_environment(), "CDSW_API_KEY": other.key}).list()
            assert answer.status_code == 401
            result = CliRunner().invoke(main, ["serve", "--print-env"])
            assert result.exit_code == 2
            assert one.url in result.output
            assert other.url in result.output
        assert all(is_gone(pid) for pid in others)
        assert not any(is_gone(pid) for pid in workers)


def test_logs_of_the_last_few_services_are_kept(tmp_path: Path, muster_home: Path) -> None:
    for index in range(12):
        folder = muster_home / "serve" / f"serve-old-{index:02}"
        folder.mkdir(parents=True)
        os.utime(folder, (index, index))
    with serving(tmp_path):
        kept = sorted(path.name for path in (muster_home / "serve").glob("serve-old-*"))
    assert kept == [f"serve-old-{index:02}" for index in range(2, 12)]


def test_each_time_it_is_printed_makes_a_new_session(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        one = service.printed
        del service.printed
        another = service.printed
    assert one["CDSW_API_KEY"] == another["CDSW_API_KEY"] == service.key
    assert {name for name in one if one[name] != another[name]} == {"CDSW_ENGINE_ID", "CDSW_ENGINE_URL"}
    assert one["CDSW_ENGINE_URL"].endswith("/" + one["CDSW_ENGINE_ID"])
    assert one["CDSW_MASTER_ID"] == ""


def test_without_a_service_there_is_nothing_to_print() -> None:
    result = CliRunner().invoke(main, ["serve", "--print-env"])
    assert result.exit_code == 2
    assert "start `muster serve` first" in result.output


def once_started(tmp_path: Path, *options: str) -> tuple[Path, str, str]:
    """A service that has ended again: its file of keys, the key in it, and what it said."""
    argv = [sys.executable, "-m", "muster", "serve", "--port", "0", *options]
    with subprocess.Popen(argv, env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        keys = Path(lines[1].removeprefix("API keys: ").strip())
        assert keys.stat().st_mode & 0o777 == 0o600
        key = keys.read_text().strip()
        process.terminate()
    return keys, key, "".join(lines)


def test_without_a_file_of_keys_a_key_ends_with_its_service(tmp_path: Path, muster_home: Path) -> None:
    """Over plain http, whoever has the port next gets what clients send that have not heard of its end."""
    keys, key, said = once_started(tmp_path)
    assert said.startswith(f"Serving {tmp_path} on http://127.0.0.1:")
    assert keys.parent.parent == muster_home / "serve"
    assert not keys.exists()
    assert not keys.parent.exists(), "a service without workers leaves nothing"
    other_keys, other_key, _ = once_started(tmp_path)
    assert (other_keys != keys, other_key != key) == (True, True)


def test_keys_that_outlive_their_service_are_warned_of_without_tls(tmp_path: Path) -> None:
    path = new_keys(tmp_path / "keys")
    keys, key, said = once_started(tmp_path, "--keys", str(path))
    assert (keys, path.read_text()) == (path, f"{key}\n")
    assert "These keys outlive the service" in said


def test_tls_needs_nothing_of_clients_but_their_environment(tmp_path: Path) -> None:
    certificate, key = make_certificate("127.0.0.1")
    (tmp_path / "cert.pem").write_text(certificate)
    (tmp_path / "key.pem").write_text(key)
    with serving(tmp_path, "--tls-cert", f"{tmp_path}/cert.pem", "--tls-key", f"{tmp_path}/key.pem") as service:
        assert service.url.startswith("https://127.0.0.1:")
        client = Client(service.client_environment())
        url = "os.environ['CDSW_ENGINE_URL'] + '/workers'"
        code = f"import os, requests\nprint(requests.get({url}, auth=(os.environ['CDSW_API_KEY'], '')).status_code)"
        assert client.run(code=code)[1] == "200\n"


@pytest.mark.parametrize(("host", "name"), [("localhost", "localhost"), ("0.0.0.0", socket.getfqdn())])
def test_with_tls_clients_are_given_a_name_rather_than_an_address(tmp_path: Path, host: str, name: str) -> None:
    certificate, key = make_certificate(name)
    (tmp_path / "cert.pem").write_text(certificate)
    (tmp_path / "key.pem").write_text(key)
    tls = ("--tls-cert", f"{tmp_path}/cert.pem", "--tls-key", f"{tmp_path}/key.pem")
    with serving(tmp_path, "--host", host, *tls) as service:
        assert service.url.startswith(f"https://{name}:")
        assert Client(service.client_environment()).list().json() == []
