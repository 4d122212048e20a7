"""Agents without a guard, started as the engine of a worker starts them: from text, by the bootstrap."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from muster.agent import linux, unpacking
from muster.agent.environment import resolved
from muster.agent.places import settle, symbol
from muster.agent.ports import random_loopback_address
from muster.agent.slurm_bootstrap import PACKED
from muster.agent.worker import complete, own_address, take_config
from muster.job import SessionAddress, WorkerSpec
from muster.platforms.agent_package import packed_agent
from muster.platforms.agents import agent_config
from muster.platforms.slurm.script import start_program
from muster.platforms.workbench import agent_files

from tests.support import Run, StubSession, environment, eventually, fresh_identity, is_gone, shell

ADDRESS = random_loopback_address()


class Engines:
    """The engines of some workers: plain interpreters that run the code of their launch."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, spec: WorkerSpec, write_config: bool = True, address: str = ADDRESS) -> subprocess.Popen[str]:
        """Start the engine of a worker."""
        if write_config:
            agent_files.write_config(spec)
        code = agent_files.launch_request(spec)["code"]
        pipe = subprocess.PIPE
        engine = subprocess.Popen(
            [sys.executable, "-I", "-"],
            env=environment(
                CDSW_IP_ADDRESS=address,
                CDSW_ENGINE_ID="engine-7",
                CDSW_MASTER_ID="session",
                TMPDIR=str(self._run.scratch),
            ),
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(engine)
        assert engine.stdin is not None
        engine.stdin.write(code)
        engine.stdin.close()
        return engine


@pytest.fixture
def engines(run: Run, stub_session: StubSession) -> Iterator[Engines]:
    """Killed before their session hangs up: an engine that is killed as it removes its folder leaves it."""
    engines = Engines(run)
    yield engines
    for engine in engines.processes:
        engine.kill()
        engine.wait()
        assert engine.stdout is not None
        engine.stdout.close()


def ended(engine: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and output of an engine."""
    assert engine.stdout is not None
    output = engine.stdout.read()
    return engine.wait(15), output


def test_it_runs_its_process_with_the_environment_of_the_engine(engines: Engines, run: Run) -> None:
    variables = "$MUSTER_WORKER $CDSW_ENGINE_ID $CDSW_MASTER_ID $CDSW_IP_ADDRESS $GREETING"
    spec = run.spec(process=shell(f"echo {variables}; exit 3"), env={"GREETING": "hello"})
    status, output = ended(engines.start(spec))
    assert spec.log.read_text().split() == ["worker-0", "engine-7", "session", ADDRESS, "hello"]
    assert agent_files.outcome(spec)["exit_code"] == 3
    assert (status, output) == (1, "muster: this worker's agent ended with status 1\n")


def test_its_config_is_private_and_is_taken_away(engines: Engines, run: Run) -> None:
    spec = run.spec(process=shell("exit 0"))
    agent_files.write_config(spec)
    path = agent_files.config_path(spec)
    assert path.stat().st_mode & 0o777 == 0o600
    assert ended(engines.start(spec))[0] == 0
    assert not path.exists()
    assert take_config(str(path), {"CDSW_ENGINE_ID": "engine-8"}) is None


def test_without_its_config_it_ends_at_once(engines: Engines, run: Run) -> None:
    status, output = ended(engines.start(run.spec(), write_config=False))
    assert status == 1
    assert "nobody waits for this worker any more" in output


def test_nothing_secret_is_in_what_the_platform_is_told(run: Run, stub_session: StubSession) -> None:
    identity = fresh_identity()
    spec = run.spec(session=stub_session.address, ssh=identity, env={"PASSWORD": "hunter2"})
    request = json.dumps(agent_files.launch_request(spec))
    for secret in (stub_session.token, "PRIVATE KEY", identity.authorized_key, "hunter2", "BEGIN CERTIFICATE"):
        assert secret not in request


def test_it_ends_when_its_session_hangs_up(engines: Engines, run: Run, stub_session: StubSession) -> None:
    engine = engines.start(run.spec(session=stub_session.address))
    hello = stub_session.wait_for("hello")
    assert (hello["host"], hello["interfaces"]) == (ADDRESS, ["lo"])
    stub_session.send("worker-0", "start", argv=["/bin/sleep", "600"], env={})
    started = stub_session.wait_for("started")
    stub_session.hang_up("worker-0")
    assert ended(engine) == (0, "")
    assert is_gone(started["pid"])


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_engine(engines: Engines, run: Run, stub_session: StubSession, signum: signal.Signals) -> None:
    engine = engines.start(run.spec(session=stub_session.address))
    agent = stub_session.wait_for("hello")["pid"]
    engine.send_signal(signum)
    stub_session.wait_for("hung_up")
    eventually(lambda: is_gone(agent), "the agent is gone")
    engine.wait(10)  # it removes the folder where it can
    eventually(lambda: not [*run.scratch.glob("muster-agent-*")], "its folder is gone")


def test_what_a_worker_that_is_killed_whole_has_left_goes_with_the_next(
    engines: Engines, run: Run, stub_session: StubSession
) -> None:
    """Nothing is removed that a living one has, be it only its agent that lives."""
    scratch: dict[str, Any] = {"scratch": Path(symbol("scratch"))}
    killed = engines.start(run.spec(session=stub_session.address, **scratch))
    agent = stub_session.wait_for("hello")["pid"]
    (left,) = run.scratch.glob("muster-agent-*")
    os.kill(agent, signal.SIGSTOP)  # or it would see its engine's end, and remove everything
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    engines.start(run.spec("worker-1", session=stub_session.address, **scratch))
    stub_session.wait_for("hello", "worker-1")
    (second,) = set(run.scratch.glob("muster-agent-*")) - {left}
    assert left.exists()
    os.kill(agent, signal.SIGKILL)
    engines.start(run.spec("worker-2", session=stub_session.address, **scratch))
    stub_session.wait_for("hello", "worker-2")
    eventually(lambda: not left.exists(), "the third has removed it")
    assert len([*second.iterdir()]) == 2


def test_a_session_that_cannot_be_reached_is_named(engines: Engines, run: Run, stub_session: StubSession) -> None:
    with socket.socket() as deaf:  # it is bound, but does not listen
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        spec = run.spec(session=SessionAddress("127.0.0.1", port, stub_session.certificate, stub_session.token))
        assert ended(engines.start(spec))[0] == 1
    reason = f"cannot reach the session at 127.0.0.1:{port}: [Errno 111] Connection refused"
    assert reason in agent_files.outcome(spec)["reason"]
    assert spec.log.read_text() == f"[muster] the agent failed: it {reason}\n"


@pytest.mark.skipif(not shutil.which("ssh-keyscan"), reason="there is no ssh client")
@pytest.mark.parametrize("taken", [(), (2222,), (2222, 2223)])
def test_sshd_listens_on_the_workers_address_and_on_another_port_where_the_first_is_taken(
    engines: Engines, run: Run, stub_session: StubSession, taken: tuple[int, ...]
) -> None:
    others = [socket.create_server((ADDRESS, port)) for port in taken]
    try:
        identity = fresh_identity()
        engines.start(run.spec(session=stub_session.address, ssh=identity))
        hello = stub_session.wait_for("hello")
        assert hello["host"] == ADDRESS
        assert hello["ssh_port"] == 2222 + len(taken) if len(taken) < 2 else hello["ssh_port"] > 2223
        keys = subprocess.run(
            ["ssh-keyscan", "-t", "ed25519", "-p", str(hello["ssh_port"]), ADDRESS],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert hello["host_key"] in keys.stdout
    finally:
        for other in others:
            other.close()


def test_gpus_are_those_that_the_engine_sees(run: Run) -> None:
    config = {**config_of(run.spec()), "gpu": 2, "variables": agent_files.VARIABLES}
    assert complete(config, {}, "/nowhere")["gpus"] == ["0", "1"]
    assert complete(config, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "/nowhere")["gpus"] == ["GPU-a", "GPU-b"]
    assert complete({**config, "gpu": 0}, {"CUDA_VISIBLE_DEVICES": "-1"}, "/nowhere")["gpus"] == []


def test_without_a_platform_that_says_it_the_address_is_that_of_the_route_to_the_session() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("localhost") == "127.0.0.1"


def test_a_worker_that_has_no_way_to_its_session_says_so(engines: Engines, run: Run, stub_session: StubSession) -> None:
    spec = run.spec(session=replace(stub_session.address, host="255.255.255.255"))  # to which there are no connections
    assert ended(engines.start(spec, address=""))[0] == 1
    assert agent_files.outcome(spec)["reason"].startswith("Its agent failed: it cannot reach the session at 255.")


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_that_address_is_of_ipv6_where_the_session_has_one() -> None:
    assert own_address("::1") == "::1"


def test_interfaces_are_known_by_their_addresses() -> None:
    for name, addresses in psutil.net_if_addrs().items():
        first = next((address.address for address in addresses if address.family is socket.AF_INET), None)
        assert first is None or name in linux.interfaces_of(first)
    assert linux.interfaces_of("192.0.2.1") == []  # an address for documentation, which nobody has


def config_of(spec: WorkerSpec, places: dict[str, str] | None = None) -> dict[str, Any]:
    config = agent_config(spec, 1 << 20, places)
    return {**config, "variables": {"id": "ID", "address": "ADDRESS", "session": "SESSION", "own": "OWN_"}}


def by_places(run: Run) -> WorkerSpec:
    return run.spec(scratch=Path(symbol("scratch")), cwd=symbol("project") + "/src")


def test_places_that_nobody_has_chosen_are_in_a_folder_that_goes_with_the_worker(run: Run) -> None:
    config = complete(config_of(by_places(run)), {"ADDRESS": "127.0.0.1"}, str(run.scratch))
    places = config["places"]
    assert sorted(places) == ["library", "project", "run", "scratch"]
    assert all(os.stat(path).st_mode & 0o777 == 0o700 for path in places.values())
    assert os.path.dirname(places["scratch"]) == str(run.scratch)
    assert {os.path.dirname(places[name]) for name in ("library", "project", "run")} == {places["scratch"]}
    assert config["scratch"] == places["scratch"]
    assert config["cwd"] == places["project"] + "/src"
    assert config["log"] == places["run"] + "/logs/worker-0.log"
    shutil.rmtree(config["scratch"])  # whose name may look like that of a worker's


def test_places_that_its_platform_has_chosen_stay(run: Run, tmp_path: Path) -> None:
    chosen = {"project": str(tmp_path / "code"), "scratch": str(tmp_path / "scratch")}
    config = complete(config_of(by_places(run), chosen), {"ADDRESS": "127.0.0.1"}, "/nowhere")
    assert config["places"] == {**chosen, "library": f"{tmp_path}/scratch/library", "run": f"{tmp_path}/scratch/run"}
    assert config["cwd"] == f"{tmp_path}/code/src"


def test_a_worker_that_shares_files_has_the_paths_that_it_is_given(run: Run) -> None:
    spec = run.spec(places={"run": str(run.folder), "library": "/lib", "scratch": "/s", "project": "/p"})
    config = config_of(spec)
    assert settle(config, "/nowhere") == config
    assert (config["scratch"], config["cwd"]) == (str(spec.scratch), spec.cwd)
    assert config["log"] == f"{run.folder}/logs/worker-0.log"


def test_the_workers_own_path_of_modules_comes_behind_a_library_of_unknown_path() -> None:
    config = {"places": {"library": "/there"}, "environ": {"PYTHONPATH": "/own"}}
    assert resolved({"PYTHONPATH": symbol("library"), "A": "b"}, config) == {"PYTHONPATH": "/there:/own", "A": "b"}
    assert resolved({"PYTHONPATH": "/session"}, config) == {"PYTHONPATH": "/session"}


@pytest.mark.parametrize("version", ["this", "3.6"])
def test_an_agent_starts_without_modules_that_take_a_while_to_import(tmp_path: Path, version: str) -> None:
    found = [sys.executable] if version == "this" else [*Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    if not found:
        pytest.skip(f"there is no Python {version}")
    (tmp_path / "start.py").write_text(start_program(str(tmp_path), "127.0.0.1"))
    (tmp_path / PACKED).write_bytes(packed_agent(has_bytecode=True))
    argv = [found[0], "-I", "-S", "-v", "start.py"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment(SLURM_PROCID="0"), capture_output=True, text=True)
    assert "nobody waits for this worker" in done.stderr
    imported = set(re.findall(r"^import '?([\w.]+)'?", done.stderr, re.MULTILINE))
    assert "agent.agent" in imported
    late = {"agent.gpus", "agent.ranks", "agent.sshd"}
    assert imported.isdisjoint({"shutil", "subprocess", "tempfile", "threading", "traceback", *late})


def test_the_folder_of_another_agent_is_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b"1111", b"1111", b"2222"]
    monkeypatch.setattr(os, "urandom", lambda size: names.pop(0) if names else bytes(size))
    monkeypatch.setattr(unpacking, "LONGEST", 500)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    packed = packed_agent()
    with unpacking.unpacked(packed, "own-", True) as one, unpacking.unpacked(packed, "own-", True) as other:
        assert one != other
        assert {stat.S_IMODE(os.stat(folder).st_mode) for folder in (one, other)} == {0o700}
    assert not [*tmp_path.iterdir()]
