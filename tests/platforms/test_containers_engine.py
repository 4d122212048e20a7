"""The engine of containers: where it is looked for, what its answers mean, and the network of a run. Starts none."""

from __future__ import annotations

import hashlib
import io
import ipaddress
import itertools
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError
from muster.agent.owners import is_orphaned, owner
from muster.agent.places import symbol
from muster.errors import PlatformUnsupported
from muster.job import EndCause, Status, Worker
from muster.platforms.agents import outcome_of, told_to_end_at
from muster.platforms.containers import network, states, worker
from muster.platforms.containers import platform as module
from muster.platforms.containers.addresses import candidates
from muster.platforms.containers.engine import Engine, OwnContainer, connect
from muster.platforms.containers.guard import containers_with, is_left
from muster.platforms.containers.images import outermost, own_folders, pull, tiny_archive
from muster.platforms.containers.network import free_subnet
from muster.platforms.containers.platform import ContainersPlatform
from muster.platforms.containers.refusals import REFUSALS
from muster.platforms.containers.worker import (
    ContainerSetting,
    archive,
    container_name,
    lay_out,
)
from muster.platforms.refusals import find_refusal, in_words

from tests.support import Run, environment, eventually


@pytest.fixture(autouse=True)
def no_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the developer's own settings of engines from the tests."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST", "CONTAINER_CONNECTION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("asked", "environ", "url"),
    [
        ("unix:///mine", {"DOCKER_HOST": "unix:///docker"}, "unix:///mine"),
        (None, {"DOCKER_HOST": "tcp://far:2376", "CONTAINER_HOST": "unix:///podman"}, "tcp://far:2376"),
        (None, {"CONTAINER_HOST": "unix:///podman", "CONTAINER_CONNECTION": "mine"}, "unix:///podman"),
        (None, {"CONTAINER_HOST": "unix://run/podman.sock"}, "unix:///run/podman.sock"),  # as Podman takes it
    ],
)
def test_the_engine_that_is_named_is_the_only_one(asked: str | None, environ: dict[str, str], url: str) -> None:
    assert [found.url for found in candidates(asked, environ)] == [url]


def destination(name: str, uri: str, *, is_default: bool = False) -> str:
    """What Podman's settings say of a connection."""
    default = f'active_service = "{name}"\n' if is_default else ""
    return f'[engine]\n{default}[engine.service_destinations.{name}]\nuri = "{uri}"\n'


def test_settings_of_podman_that_are_read_later_count_more(tmp_path: Path) -> None:
    home = tmp_path / "containers"
    (home / "containers.conf.d").mkdir(parents=True)
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path)}
    (home / "containers.conf").write_text(destination("one", "unix:///one", is_default=True))
    assert [found.url for found in candidates(None, environ)] == ["unix:///one"]
    (home / "containers.conf.d" / "more.conf").write_text(destination("one", "unix:///other"))
    assert [found.url for found in candidates(None, environ)] == ["unix:///other"]
    of_podman_5 = {"Default": "two", "Connections": {"two": {"URI": "tcp://far:1"}, "three": {"URI": "unix:///three"}}}
    (home / "podman-connections.json").write_text(json.dumps({"Connection": of_podman_5}))
    assert [found.url for found in candidates(None, environ)] == ["tcp://far:1"]
    assert [found.url for found in candidates(None, {**environ, "CONTAINER_CONNECTION": "one"})] == ["unix:///other"]
    with pytest.raises(PlatformUnsupported, match="Podman has no connection 'four', which CONTAINER_CONNECTION names"):
        candidates(None, {**environ, "CONTAINER_CONNECTION": "four"})
    (home / "containers.conf").write_text("[engine\n")
    with pytest.raises(PlatformUnsupported, match="address of the container engine cannot be read from .*containers"):
        candidates(None, environ)


def test_a_context_that_is_not_there_or_has_certificates(tmp_path: Path) -> None:
    environ = {"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "mine"}
    with pytest.raises(PlatformUnsupported, match="Docker has no context 'mine', which DOCKER_CONTEXT names"):
        candidates(None, environ)
    context = hashlib.sha256(b"mine").hexdigest()
    (tmp_path / "contexts" / "meta" / context).mkdir(parents=True)
    described = {"Name": "mine", "Endpoints": {"docker": {"Host": "tcp://far:2376"}}}
    (tmp_path / "contexts" / "meta" / context / "meta.json").write_text(json.dumps(described))
    assert [found.url for found in candidates(None, environ)] == ["tcp://far:2376"]
    certificates = tmp_path / "contexts" / "tls" / context / "docker"
    certificates.mkdir(parents=True)
    with pytest.raises(PlatformUnsupported, match="has certificates of its own") as raised:
        candidates(None, environ)
    assert f"DOCKER_HOST=tcp://far:2376 DOCKER_TLS_VERIFY=1 DOCKER_CERT_PATH={certificates}" in str(raised.value.advice)


def test_a_rootless_podman_is_found_at_its_usual_place(tmp_path: Path) -> None:
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman" / "podman.sock").touch()
    found = [found.url for found in candidates(None, {"XDG_RUNTIME_DIR": str(tmp_path)})]
    assert f"unix://{tmp_path}/podman/podman.sock" in found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_sockets_that_this_user_may_not_look_into(tmp_path: Path) -> None:
    """As root's Podman has one: another engine, which the user may use, is found all the same."""
    tmp_path.chmod(0o700)
    program = (
        "import os, sys; from muster.platforms.containers.addresses import candidates\n"
        "candidates(None, {})  # with everything imported that an ordinary user may not read here\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(*(found.url for found in candidates(None, {'XDG_RUNTIME_DIR': sys.argv[1]})))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert f"unix://{tmp_path}/podman/podman.sock" in done.stdout.split(), done.stderr


def test_an_engine_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(PlatformUnsupported, match=r"There is no container engine at unix:///no/such .*no such socket"):
        connect("unix:///no/such")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    with pytest.raises(PlatformUnsupported, match="does not run: nobody listens"):
        connect(f"unix://{tmp_path}/dead.sock")


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("no such image: a b: invalid reference format", "it is no name that an image can have"),
        ("normalizing name for compat API: repository name must be lowercase", "it is no name that an image can have"),
        ("write /var/lib/docker/x: no space left on device", "disk is full"),
        ("pull access denied for my/image, repository does not exist or may require 'docker login'", "gives the image"),
        ("manifest for python:nope not found: manifest unknown: manifest unknown", "has no such image"),
        ("no such image: localhost/x: image not known", "no such image here"),
        ('Get "http://127.0.0.1:5/v2/": dial tcp 127.0.0.1:5: connect: connection refused', "registry does not answer"),
        ("initializing source docker://x:1: pinging container registry x: EOF", "registry does not answer"),
        ("network nowhere not found", "no such network"),
        ("unable to find network with name or ID nowhere: network not found", "no such network"),
        ('exec: "python3": executable file not found in $PATH', "does not have the program"),
        ('exec: "/etc/passwd": permission denied', "may not be executed"),
        ("Bind for 0.0.0.0:80 failed: port is already allocated", "port is taken"),
        ("error setting rlimit type 7: operation not permitted: OCI permission denied", "may not raise the limits"),
        ('could not select device driver "" with capabilities: [[gpu]]', "cannot give GPUs"),
        ("something nobody has heard of", "something nobody has heard of"),
    ],
)
def test_what_engines_say_and_mean(said: str, meaning: str) -> None:
    assert meaning in in_words("x could not be", said, find_refusal(REFUSALS, said), "Docker")


def told_of_a_pull(*news: tuple[str, str, int, int]) -> list[str]:
    """What is told of a pull of which the engine says this: layer, status, bytes so far, and bytes in all."""
    said = [
        {"id": layer, "status": status, "progressDetail": {"current": now, "total": size} if size else {}}
        for layer, status, now, size in news
    ]
    engine: Any = SimpleNamespace(client=SimpleNamespace(pull=lambda *_, **__: iter(said)), url="", product="Docker")
    told: list[str] = []
    pull(engine, "mine:1", told.append)
    assert told[0] == "pulling the image mine:1"
    return [line.removeprefix("pulling the image mine:1: ") for line in told[1:]]


def test_a_pull_is_told_in_steps_of_ten_percent() -> None:
    half = [("a", "Downloading", 4 * 10**7 * part, 2 * 10**9) for part in range(26)]
    told = told_of_a_pull(("a", "Pulling fs layer", 0, 0), *half, ("a", "Download complete", 0, 0))
    assert told == [f"{percent} % of 2.0 GB" for percent in (0, 10, 20, 30, 40, 50, 100)]


def test_a_small_layer_that_comes_first_is_not_told_as_the_whole_image() -> None:
    """Nothing more would be told of the large one, which has yet to begin."""
    begun = [(layer, "Pulling fs layer", 0, 0) for layer in "ab"]
    small = [("a", "Downloading", 500, 500), ("a", "Download complete", 0, 0)]
    large = [("b", "Downloading", 10**8 * part, 4 * 10**8) for part in range(4)]
    told = told_of_a_pull(*begun, *small, *large, ("b", "Download complete", 0, 0))
    assert told == [f"{percent} % of 0.4 GB" for percent in (0, 20, 50, 70, 100)]


def test_a_layer_that_begins_later_makes_less_of_the_image_be_there() -> None:
    told = told_of_a_pull(
        *((layer, "Pulling fs layer", 0, 0) for layer in "ab"), ("c", "Already exists", 0, 0),
        ("a", "Downloading", 8 * 10**6, 10**7), ("a", "Download complete", 0, 0),
        ("b", "Downloading", 10**7, 8 * 10**7), ("b", "Downloading", 4 * 10**7, 8 * 10**7),
    )  # fmt: skip
    assert told == ["80 % of 10.0 MB", "20 % of 90.0 MB", "50 % of 90.0 MB"]


def test_a_subnet_that_nobody_has() -> None:
    taken = ["10.0.0.0/10", "10.128.0.0/9"]
    assert free_subnet([*taken, "fd00::/8", "", "0.0.0.0/0"]).subnet_of(ipaddress.IPv4Network("10.64.0.0/10"))
    with pytest.raises(PlatformUnsupported, match="No private subnet"):
        free_subnet(["10.0.0.0/8"])


def test_a_network_that_docker_keeps_apart_from_the_sessions_own_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a session in a container packets come from its own networks; Podman, and a host's network, keep none away."""
    monkeypatch.setattr(network, "own_address", lambda other: "10.2.0.9")
    client: Any = SimpleNamespace(
        inspect_network=lambda name: {"Name": name, "Driver": "host" if name == "host" else "bridge"}
    )
    around = OwnContainer("image", {"front": "10.1.0.2", "back": "10.2.0.2"})
    docker = Engine(client, "tcp://10.2.0.1:2375", "", "Docker", "20", 1, 0, False, False, around)

    def reached(engine: Engine, asked: str | None) -> str:
        return network.session_address(engine, network.plan_network(engine, asked, "x"))

    assert [reached(docker, asked) for asked in (None, "back", "host")] == ["10.1.0.2", "10.2.0.2", "10.2.0.9"]
    with pytest.raises(PlatformUnsupported, match="network 'other' do not reach this session, .* in 'front', 'back'"):
        reached(docker, "other")
    assert reached(replace(docker, product="Podman"), "other") == "10.2.0.9"


@pytest.mark.parametrize("name", ["a/../../info", "../x", "..", "."])
def test_what_is_no_name_of_a_network_is_not_asked_for(name: str) -> None:
    docker = Engine(SimpleNamespace(), "unix:///docker", "", "Docker", "20", 1, 0, True, False)
    with pytest.raises(PlatformUnsupported, match="is no name that a network can have"):
        network.plan_network(docker, name, "x")


def test_an_address_that_the_user_gives_will_do_where_none_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "own_address", lambda other: "127.0.0.1")
    client: Any = SimpleNamespace(networks=list)
    platform = ContainersPlatform()
    platform._connected = Engine(client, "tcp://elsewhere:2375", "", "Docker", "20", 1, 0, False, False)
    with pytest.raises(PlatformUnsupported, match="is not known"):
        platform.reach()
    assert platform._planned_network().is_own


def test_folders_within_others_are_mounted_once() -> None:
    assert set(outermost(["/usr/lib", "/usr", "/opt/x/", "/", "/usr2"])) == {"/usr", "/usr2", "/opt/x"}


def test_private_keys_of_the_machine_are_not_mounted() -> None:
    assert not [folder for folder in own_folders() if Path("/etc/ssl/private").is_relative_to(folder)]


def test_only_what_is_certainly_left_of_this_users_is_swept() -> None:
    mine = owner().split(".")
    gone = [*mine[:-1], str(int(mine[-1]) + 1)]
    assert is_orphaned(".".join(gone))
    others = [*gone[:2], str(os.getuid() + 1), *gone[3:]]  # this process may not see other users' processes
    endless = ".".join([*gone[:-2], "9" * 5000, "1"])  # which Python makes no number of
    for label in (owner(), ".".join(others), ".".join([*gone[:-2], "a", "b"]), endless, "1.2", ""):
        assert not is_orphaned(label)


@pytest.mark.parametrize("suffix", ["0123abcd/kept", "/kept", "*", "", "0123abcd\n", "0123ABCD"])
def test_a_label_that_is_no_session_s_is_nobody_s_and_names_no_folder(suffix: str) -> None:
    """Whoever may use the engine, on another machine perhaps, can give containers any label."""
    mine = owner().split(".")
    gone = ".".join([*mine[:-1], str(int(mine[-1]) + 1)])
    assert is_left(f"{gone}.0123abcd")
    assert not is_left(f"{gone}.{suffix}")


@pytest.mark.parametrize(
    ("said", "times", "is_listed"),
    [
        ("read /proc/24731/cgroup: no such process", 2, True),
        ("open /proc/24731/cgroup: no such file or directory", 2, True),
        ("read /proc/24731/cgroup: no such process", 1000, False),
        ("database is locked", 2, False),
    ],
)
def test_an_engine_that_stumbles_over_a_process_that_ends_is_asked_again(
    said: str, times: int, is_listed: bool
) -> None:
    asked: list[Any] = []

    def containers(**options: Any) -> list[dict[str, Any]]:
        asked.append(options)
        if len(asked) < times:
            raise APIError("500 Server Error", explanation=said)
        return [{"Id": "1"}]

    client = SimpleNamespace(containers=containers)
    if is_listed:
        assert containers_with(client, "muster.worker") == [{"Id": "1"}]
    else:
        with pytest.raises(APIError):
            containers_with(client, "muster.worker")
        assert len(asked) < 10


def test_the_tiny_image_is_the_same_each_time() -> None:
    assert tiny_archive() == tiny_archive()


def test_names_of_containers_are_names_that_engines_take(tmp_path: Path) -> None:
    spec = Run(tmp_path, run_id="mein lauf/ü", scratch=tmp_path).spec("ps-1", generation=2)
    assert container_name(spec) == "muster-mein_lauf__-ps-1.2"


@pytest.mark.parametrize("has_agent", [True, False])
def test_an_archive_of_files_has_nothing_after_its_end(tmp_path: Path, has_agent: bool) -> None:
    setting = ContainerSetting("image", "python3", "network", [], [], has_agent, "", {}, (0, 0), 1 << 20)
    packed = archive(Run(tmp_path, scratch=tmp_path / "scratch").spec(), setting)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        last = tar.getmembers()[-1]
    blocks = -(-last.size // tarfile.BLOCKSIZE) + 2  # the blocks of its content, and the two that end the archive
    assert len(packed) == last.offset_data + blocks * tarfile.BLOCKSIZE


def test_what_is_mounted_into_a_home_is_mounted_on_a_folder_of_the_users(tmp_path: Path) -> None:
    """The engine would make one that is root's, which the user cannot move and so not remove."""
    own = (os.getuid(), os.getgid())
    setting = ContainerSetting("image", "python3", "network", [], [], True, str(tmp_path), {}, own, 1 << 20)
    home = Path(lay_out(Run(tmp_path, scratch=Path(symbol("scratch"))).spec(), setting))
    assert (home / "agent").is_dir()
    mounted_on = (home / "agent").stat()
    assert (mounted_on.st_uid, mounted_on.st_gid) == own


@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_a_home_is_laid_out_by_a_python_without_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian 12's, whose tarfile is stood in for by one that takes no ``filter=``, which came with 3.11.4."""
    extract_all = tarfile.TarFile.extractall

    def of_before(self: tarfile.TarFile, path: str, members: Any = None, *, numeric_owner: bool = False) -> None:
        extract_all(self, path, members, numeric_owner=numeric_owner)

    monkeypatch.setattr(tarfile.TarFile, "extractall", of_before)
    setting = ContainerSetting("image", "python3", "network", [], [], False, str(tmp_path), {}, (0, 0), 1 << 20)
    home = Path(lay_out(Run(tmp_path, scratch=Path(symbol("scratch"))).spec(), setting))
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "config").stat().st_mode & 0o777 == 0o600
    assert (home / "agent" / "__main__.py").is_file()


@pytest.mark.parametrize(
    "line",
    [
        b"5",
        b"nonsense",
        b"[" * 100_000,
        b'{"status": "starting"}',
        b'{"status": []}',
        b'{"status": "failed", "signal": "9"}',
        b'{"told_to_end_at": "soon"}',
        b'{"told_to_end_at": NaN}',
    ],
)
def test_what_a_worker_writes_among_its_agents_news_is_passed_over(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = b'{"type": "worker", "status": "failed", "exit_code": 3, "signal": null, "reason": "why"}'
    engine: Any = SimpleNamespace()
    monkeypatch.setattr(worker, "read_file", lambda *_: line + b"\n" + end)
    news = worker.news(engine, "muster-run-worker-0")
    assert told_to_end_at(news) is None
    told = outcome_of(news)
    assert (told["status"], told["exit_code"], told["reason"]) == (Status.FAILED, 3, "why")


def test_of_a_last_line_without_end_the_beginning_is_read() -> None:
    client = SimpleNamespace(logs=lambda name, **_: itertools.repeat(b"x" * 1000))
    engine: Any = SimpleNamespace(client=client, url="tcp://far:1", product="Docker")
    assert states._last_words(engine, "muster-run-worker-0") == "x" * states.LARGEST_LINE
    client.logs = lambda name, **_: iter([b"exec fail", b"ed: No such file\n"])
    assert states._last_words(engine, "muster-run-worker-0") == "exec failed: No such file"


def test_an_engine_may_write_down_last_words_after_it_has_said_that_a_container_ended() -> None:
    answers = iter([[], [], [b"[FATAL] failed to exec: Permission denied\n"]])
    client = SimpleNamespace(logs=lambda name, **_: iter(next(answers)))
    engine: Any = SimpleNamespace(client=client, url="tcp://far:1", product="Podman")
    known = Worker("muster-run-worker-0", "worker-0")
    told = states._unsaid(engine, known, {"ExitCode": 1}, "mine:1")
    assert "python3 in the image mine:1 may not be executed" in told["reason"]


@pytest.mark.parametrize(
    ("printed", "status"), [(b"", Status.STOPPED), (b"python3: can't open file '/muster/agent'\n", Status.FAILED)]
)
def test_a_container_that_was_told_to_stop_before_it_became_its_first_program(
    printed: bytes, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """runc then exits with status 2, silently: all that an object learns which has not sent the signal."""
    monkeypatch.setattr(states, "WORDS_SECONDS", 0.1)
    client = SimpleNamespace(logs=lambda name, **_: iter([printed]))
    engine: Any = SimpleNamespace(client=client, url="tcp://far:1", product="Podman")
    told = states._unsaid(engine, Worker("muster-run-worker-0", "worker-0"), {"ExitCode": 2}, None)
    assert told["status"] is status
    assert "can't open file" in told.get("reason", "can't open file")


def test_workers_whose_image_is_there_start_after_those_that_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts at the same time might give a GPU of an engine elsewhere, which only this object counts, twice."""
    pulled = iter([False, True])
    monkeypatch.setattr(module, "has_image", lambda *_: next(pulled))
    monkeypatch.setattr(module, "pull", lambda *_: None)
    engine = SimpleNamespace(cores=8, memory=0, is_here=False)
    under_way: list[str] = []
    seen: list[int] = []

    class Slow(ContainersPlatform):
        def _engine(self) -> Any:
            return engine

        def _start(self, engine: Any, specs: Any) -> None:
            under_way.append(specs[0].name)
            time.sleep(0.3)
            seen.append(len(under_way))
            under_way.remove(specs[0].name)

    platform, run = Slow(image="mine:1"), Run(tmp_path, scratch=tmp_path)
    platform.submit([run.spec("worker-0")], "pulls it")
    platform.submit([run.spec("worker-1")], "finds it")
    eventually(lambda: len(seen) == 2, "both have started")
    assert seen == [1, 1]


def test_a_container_that_was_killed_after_it_was_told_to_stop_says_how_long_it_had() -> None:
    engine: Any = SimpleNamespace(product="Docker")
    state = {"ExitCode": 137, "FinishedAt": "2026-01-02T03:04:15Z"}
    told = states._unsaid(engine, Worker("muster-run-worker-0", "worker-0"), state, None, 1767323045.0)
    assert "told to stop by somebody (docker stop, at " in told["reason"]
    assert told["reason"].endswith("), and was killed 10 s later, as it had not ended by then.")


def test_a_container_that_was_killed_with_its_agent_for_want_of_memory_is_told_as_such() -> None:
    """As for a file in ``/dev/shm``, which is no process's own: the kernel may choose any of them."""
    engine: Any = SimpleNamespace(product="Docker")
    told = states._unsaid(engine, Worker("muster-run-worker-0", "worker-0"), {"ExitCode": 137, "OOMKilled": True}, None)
    assert (told["cause"], told["reason"]) == (EndCause.MEMORY, "Docker says that it ran out of memory.")
