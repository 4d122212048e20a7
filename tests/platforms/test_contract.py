"""The contract of every platform. A new one is added as one line of ``PLATFORMS``.

For one outside Muster a file imports these tests and has a fixture ``platform`` of its own, as docs/write-a-platform.md
shows. So they make other objects of a platform by its class, which takes no arguments that it must have.
"""

from __future__ import annotations

import functools
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from muster.errors import JobError, LaunchRefused, MusterError, ResourceError
from muster.job import Process, Resources, Status, Worker, WorkerSpec
from muster.platforms import get_platform
from muster.platforms.base import Platform
from muster.platforms.containers.engine import connect
from muster.platforms.containers.images import tiny_image
from muster.platforms.containers.platform import ContainersPlatform
from muster.platforms.containers.worker import container_name

from tests.platforms.isolated import isolated
from tests.support import Run, StubSession, environment, eventually, handles_of, shell

PLATFORMS = [
    "local",
    "isolated",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("hosts", "containers", "docker", "slurm", "workbench")),
]

# Where TMPDIR ends on platforms whose workers have folders of their own.
TEMPORARY = {"hosts": "/ps-1/scratch/tmp", "kubernetes": "/muster/scratch/tmp"}
LOGS_LATER = ("kubernetes",)  # platforms that have the log of a worker once it has ended


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest, run: Run) -> Iterator[Platform]:
    if request.param == "workbench":
        request.getfixturevalue("workbench_session")
    if request.param == "hosts":
        request.getfixturevalue("hosts")
    if request.param == "containers":
        request.getfixturevalue("engine")
    if request.param == "docker":
        request.getfixturevalue("docker")
    if request.param == "slurm":
        request.getfixturevalue("slurm")
    name = "containers" if request.param == "docker" else request.param
    platform = isolated() if name == "isolated" else get_platform(name)
    yield platform
    platform.close()


def ended(platform: Platform, workers: Sequence[Worker]) -> list[Worker]:
    """The given workers, once all have ended."""

    def poll() -> list[Worker] | None:
        polled = platform.poll(handles_of(workers))
        return polled if all(worker.status.is_final for worker in polled) else None

    found: list[Worker] = eventually(poll, "all workers have ended")
    return found


def nothing_lives(platform: Platform) -> bool:
    """Return whether no worker of the platform is left."""
    return all(worker.status.is_final for worker in platform.list())


def running(platform: Platform, workers: Sequence[Worker]) -> list[Worker]:
    """The given workers, once all run."""

    def poll() -> list[Worker] | None:
        polled = platform.poll(handles_of(workers))
        return polled if all(worker.status is Status.RUNNING for worker in polled) else None

    found: list[Worker] = eventually(poll, "all workers run")
    return found


def test_handles_are_strings_in_the_order_of_the_specs(platform: Platform, run: Run) -> None:
    handles = platform.submit([run.spec(f"worker-{index}") for index in range(3)], run.id)
    assert all(type(handle) is str for handle in handles)
    assert len(set(handles)) == 3
    assert [(worker.id, worker.name) for worker in platform.poll(handles)] == [
        (handle, f"worker-{index}") for index, handle in enumerate(handles)
    ]
    assert [worker.id for worker in platform.poll(handles[::-1])] == handles[::-1]


def lines_of(platform: Platform, handle: str) -> list[str]:
    return list(platform.logs(handle))


def test_the_same_run_key_again_starts_nothing(platform: Platform, run: Run) -> None:
    specs = [run.spec(f"worker-{index}", process=shell("echo started; sleep 600")) for index in range(2)]
    handles = platform.submit(specs, run.id)
    running(platform, platform.poll(handles))
    assert platform.submit(specs, run.id) == handles
    assert sorted(handles_of(platform.list())) == sorted(handles)  # those of one submission may begin in any order
    for handle in handles if platform.name not in LOGS_LATER else ():
        assert eventually(functools.partial(lines_of, platform, handle), "it has printed") == ["started"]
    another = platform.submit([run.spec("worker-2")], f"{run.id}-again")
    assert sorted(handles_of(platform.list())) == sorted([*handles, *another])


def test_the_next_generation_of_a_worker_is_another_one(platform: Platform, run: Run) -> None:
    spec = run.spec(process=shell("echo $MUSTER_WORKER; sleep 600"))
    (first,) = platform.submit([spec], run.id)
    running(platform, platform.poll([first]))
    platform.stop([first])
    ended(platform, platform.poll([first]))
    (second,) = platform.submit([replace(spec, generation=1)], f"{run.id}.1")
    assert second != first
    running(platform, platform.poll([second]))
    assert [(worker.name, worker.status) for worker in platform.poll([first, second])] == [
        ("worker-0", Status.STOPPED), ("worker-0", Status.RUNNING),
    ]  # fmt: skip
    assert handles_of(platform.list()) == [first, second]
    platform.stop([first])
    assert platform.poll([second])[0].status is Status.RUNNING


def test_another_object_finds_and_stops_workers_by_their_handles(platform: Platform, run: Run) -> None:
    handles = platform.submit([run.spec(f"worker-{index}", process=shell("sleep 600")) for index in range(2)], run.id)
    workers = running(platform, platform.poll(handles))
    other = type(platform)()
    assert [(worker.id, worker.status, worker.address) for worker in other.poll(handles)] == [
        (worker.id, Status.RUNNING, worker.address) for worker in workers
    ]
    other.stop(handles[:1])
    (stopped,) = ended(other, workers[:1])
    assert stopped.status is Status.STOPPED
    (seen,) = ended(platform, workers[:1])
    assert seen.status is Status.STOPPED
    assert platform.poll(handles[1:])[0].status is Status.RUNNING


def test_another_process_finds_and_stops_workers_by_their_handles(platform: Platform, run: Run) -> None:
    (handle,) = platform.submit([run.spec(process=shell("sleep 600"))], run.id)
    workers = running(platform, platform.poll([handle]))
    program = (
        "import importlib, sys; platform = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(); "
        "print(platform.poll(sys.argv[3:])[0].status); platform.stop(sys.argv[3:])"
    )
    command = [sys.executable, "-c", program, type(platform).__module__, type(platform).__name__, handle]
    env = environment(PYTHONPATH=os.pathsep.join(map(os.path.abspath, sys.path)))
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "running\n"
    assert ended(platform, workers)[0].status is Status.STOPPED


def test_running_workers_have_an_address_and_times(platform: Platform, run: Run) -> None:
    workers = running(platform, platform.launch([run.spec("worker-0"), run.spec("worker-1")]))
    for worker in workers:
        assert worker.address
        assert worker.created_at is not None
        assert worker.placed_at is not None
        assert worker.running_at is not None
        assert worker.created_at <= worker.running_at
        assert worker.finished_at is None


def test_a_worker_ends_with_its_process(platform: Platform, run: Run) -> None:
    specs = [
        run.spec("worker-0", process=shell("exit 0")),
        run.spec("worker-1", process=shell("exit 3")),
        run.spec("worker-2", process=shell("kill -9 $$")),
    ]
    succeeded, failed, killed = ended(platform, platform.launch(specs))
    assert (succeeded.status, succeeded.exit_code, succeeded.reason) == (Status.SUCCEEDED, 0, None)
    assert (failed.status, failed.exit_code) == (Status.FAILED, 3)
    assert failed.reason
    assert "3" in failed.reason
    assert (killed.status, killed.signal) == (Status.FAILED, 9)
    assert killed.reason
    assert "SIGKILL" in killed.reason
    assert all(worker.finished_at is not None for worker in (succeeded, failed, killed))


def test_a_program_that_is_not_there_is_a_reason(platform: Platform, run: Run) -> None:
    (worker,) = ended(platform, platform.launch([run.spec(process=Process(("/no/such/program",)))]))
    assert worker.status is Status.FAILED
    assert worker.reason
    assert "/no/such/program" in worker.reason


def test_stopping_is_a_request_that_may_be_repeated(platform: Platform, run: Run) -> None:
    workers = running(platform, platform.launch([run.spec("worker-0", process=shell("sleep 600"))]))
    platform.stop(handles_of(workers))
    platform.stop(handles_of(workers))
    (worker,) = ended(platform, workers)
    assert worker.status is Status.STOPPED
    platform.stop([worker.id])
    assert platform.poll([worker.id]) == [worker]


def test_nobody_finds_what_the_agent_of_a_worker_was_to_know_that_was_stopped_before(
    platform: Platform, run: Run
) -> None:
    secret = secrets.token_hex(16)
    handles = platform.submit([run.spec(process=shell("sleep 600"), env={"SECRET": secret})], run.id)
    platform.stop(handles)
    (worker,) = ended(platform, platform.poll(handles))
    assert worker.status is Status.STOPPED
    eventually(lambda: not run.files_with(secret), "no file holds what its agent was to know")


def test_stopping_one_leaves_the_others(platform: Platform, run: Run) -> None:
    specs = [run.spec(f"worker-{index}", process=shell("sleep 600")) for index in range(2)]
    first, second = running(platform, platform.launch(specs))
    platform.stop([first.id])
    ended(platform, [first])
    assert platform.poll([second.id])[0].status is Status.RUNNING


def test_lists_everything_it_launched_oldest_first(platform: Platform, run: Run) -> None:
    assert platform.list() == []
    ended(platform, platform.launch([run.spec("worker-0", process=shell("exit 0"))]))
    platform.launch([run.spec("worker-1")])
    assert [worker.name for worker in platform.list()] == ["worker-0", "worker-1"]


def test_logs_of_a_worker_that_has_ended(platform: Platform, run: Run) -> None:
    workers = platform.launch([run.spec(process=shell("echo out; echo err >&2; printf last"))])
    ended(platform, workers)
    assert list(platform.logs(workers[0].id)) == ["out", "err", "last"]


def test_a_worker_that_nobody_knows_has_failed(platform: Platform) -> None:
    (worker,) = platform.poll(["stranger"])
    assert worker.id == "stranger"
    assert worker.status is Status.FAILED
    assert worker.reason


def test_processes_get_what_was_asked_for(platform: Platform, run: Run) -> None:
    command = 'echo "$GREETING $MUSTER_RUN_ID $MUSTER_WORKER $MUSTER_ROLE $MUSTER_INDEX"; pwd; ls -d "$TMPDIR"'
    spec = run.spec("ps-1", env={"GREETING": "hello you"}, process=shell(command))
    workers = platform.launch([spec])
    ended(platform, workers)
    greeting, folder, temporary = platform.logs(workers[0].id)
    assert greeting == f"hello you {run.id} ps-1 ps 1"
    if platform.name in TEMPORARY:
        assert temporary.endswith(TEMPORARY[platform.name])
        assert folder != spec.cwd
    else:
        assert (folder, temporary) == (spec.cwd, f"{spec.scratch}/tmp")


def test_workers_with_a_session_say_hello(platform: Platform, run: Run, stub_session: StubSession) -> None:
    stub_session.listen_for(platform)
    specs = [run.spec(f"worker-{index}", session=stub_session.address, ports=2) for index in range(2)]
    if platform.reach().relayed:
        relay = platform.open_relay(stub_session.address.host, stub_session.address.port)
        specs = list(map(stub_session.dialled_at, specs, relay.addresses_for(specs)))
    workers = platform.launch(specs)
    stub_session.wait_for("hello", count=2)
    addresses = {worker.name: worker.address for worker in running(platform, workers)}
    for name in ("worker-0", "worker-1"):
        hello = stub_session.wait_for("hello", name)
        assert hello["host"] == addresses[name]
        assert len(set(hello["ports"])) == 2


@pytest.mark.parametrize("resources", [Resources(cpu=4096), Resources(memory=1e6), Resources(gpu=512)])
def test_what_could_never_be_granted_is_refused(platform: Platform, run: Run, resources: Resources) -> None:
    with pytest.raises((ResourceError, LaunchRefused)):
        platform.launch([run.spec("worker-0"), run.spec("worker-1", resources=resources)])
    eventually(lambda: nothing_lives(platform), "nothing lives")


def test_all_or_nothing(platform: Platform, run: Run) -> None:
    (run.folder / "file").write_text("in the way")
    impossible = run.spec("worker-1", log=run.folder / "file" / "log")
    clear: Callable[[], object] = (run.folder / "file").unlink
    if isinstance(platform, ContainersPlatform):  # whose workers have folders of their own
        clear = take_name(impossible)
    secret = secrets.token_hex(16)
    specs = [run.spec("worker-0", process=shell("sleep 600"), env={"SECRET": secret}), impossible]
    with pytest.raises(LaunchRefused, match="worker-1"):
        platform.submit(specs, run.id)
    assert platform.list() == []
    eventually(lambda: not run.processes(), "nothing runs")
    eventually(lambda: not run.files_with(secret), "no file holds what its agent was to know")
    clear()  # what was in the way of the same submission is gone
    assert len(platform.submit(specs, run.id)) == 2


def take_name(spec: WorkerSpec) -> Callable[[], object]:
    """Give the name of a worker's container to another one, and return what removes that."""
    client = connect().client
    client.create_container(tiny_image(connect()), command=["true"], name=container_name(spec))
    return functools.partial(client.remove_container, container_name(spec))


def test_closing_ends_everything_at_once_and_twice(platform: Platform, run: Run) -> None:
    workers = running(platform, platform.launch([run.spec("worker-0", process=shell("sleep 600"))]))
    platform.close()
    if platform.name == "slurm":  # waits for what agents say of their ends: these, and srun, live for a moment longer
        eventually(lambda: not run.left_behind(), "nothing is left", timeout=5)
    assert [left for left in run.left_behind() if ": gone" not in left] == []
    assert platform.poll(handles_of(workers))[0].status is Status.STOPPED
    platform.close()


def test_can_launch_again_after_closing(platform: Platform, run: Run) -> None:
    platform.launch([run.spec("worker-0")])
    platform.close()
    (worker,) = ended(platform, platform.launch([run.spec("worker-1", process=shell("exit 0"))]))
    assert worker.status is Status.SUCCEEDED


def test_no_platform_of_that_name() -> None:
    with pytest.raises(JobError, match="nowhere"):
        get_platform("nowhere")
    assert issubclass(JobError, MusterError)
