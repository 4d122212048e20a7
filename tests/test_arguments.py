"""Arguments that are not what they should be are refused in words that help, before anything starts."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import muster
import numpy as np
import pytest
from muster.api import run_cluster
from muster.checks.arguments import plain_args, plain_bool, plain_env
from muster.checks.names import OTHER_NAMES
from muster.checks.script import make_script
from muster.errors import CallError, JobError, MusterError, RunInterrupted, without_inner_frames
from muster.job import Limits
from muster.strategies import get_strategy
from muster.strategies.processes import Processes

from tests.plain import Plain

WRONG = [
    ({"args": {"--epochs": 3}}, "args is a dict", "args=['--epochs', '3']"),
    ({"args": {"epochs": 3, "v": True, "resume": None}}, "args is a dict", "args=['--epochs', '3', '-v']"),
    ({"args": {"token": "hunter2"}, "worker_script": lambda: None}, "becomes sys.argv", "kwargs="),
    ({"args": "--epochs 3"}, "args is a string", "args=['--epochs', '3']"),
    ({"args": 3}, "args is of type int", 'args=["--epochs", "3"]'),
    ({"args": b"--epochs"}, "args is of type bytes", "args="),
    ({"args": {"--epochs", "3"}}, "args is of type set", "args="),
    ({"args": None}, "args is of type NoneType", "args="),
    ({"args": ["--epochs", None]}, "args[1] is None", "leave it out"),
    ({"args": ["--sizes", [1, 2]]}, "args[1] is of type list", "json.dumps"),
    ({"args": [{"epochs": 3}]}, "args[0] is of type dict", "json.dumps"),
    ({"args": [b"x"]}, "args[0] is of type bytes", "str("),
    ({"env": ["A=b"]}, "env is of type list", 'env={"NAME": "value"}'),
    ({"env": "A=b"}, "env is of type str", "env={"),
    ({"env": {"TOKEN": None}}, "env['TOKEN'] is None", "leave it out"),
    ({"env": {"TOKEN": ["hunter2"]}}, "env['TOKEN'] is of type list", "str("),
    ({"env": {5: "x"}}, "env has a name of type int", ""),
    ({"n_workers": "2"}, "n_workers is '2'", "n_workers=2"),
    ({"n_workers": 2.0}, "n_workers is 2.0", "n_workers=2"),
    ({"n_workers": 2.5}, "n_workers is 2.5; it must be a whole number", ""),
    ({"n_workers": True}, "n_workers is True", ""),
    ({"n_workers": None}, "n_workers is None", ""),
    ({"n_ps": "1"}, "n_ps is '1'", "n_ps=1"),
    ({"cpu": "1"}, "cpu is '1'", "cpu=1"),
    ({"memory": "2GB"}, "memory is '2GB'", "memory=2, in GB"),
    ({"memory": "much"}, "memory is 'much'", ""),
    ({"n_workers": 0}, "n_workers is 0; it must be from 1", "n_workers=1"),
    ({"memory": None}, "memory is None", ""),
    ({"nvidia_gpu": 0.5}, "nvidia_gpu is 0.5", ""),
    ({"ps_cpu": 2}, "There are no parameter servers that could be given ps_cpu", "n_ps=1"),
    ({"n_ps": 1, "ps_memory": "2GB"}, "ps_memory is '2GB'", "ps_memory=2, in GB"),
    ({"n_ps": 1, "ps_nvidia_gpu": -1}, "ps_nvidia_gpu is -1", ""),
    ({"worker_ports": 5}, "worker_ports is 5", "worker_ports=(42000, 42100)"),
    ({"worker_ports": (1, 2, 3)}, "worker_ports is (1, 2, 3)", ""),
    ({"worker_ports": (9000, 8000)}, "worker_ports is (9000, 8000)", ""),
    ({"worker_ports": ("a", "b")}, "worker_ports is ('a', 'b')", ""),
    ({"worker_ports": (0, 70000)}, "worker_ports is", ""),
    ({"session_address": 5}, "session_address is of type int", ""),
    ({"session_address": ("127.0.0.1", 0)}, "session_address is of type tuple", ""),
    ({"python": ["python3"]}, "python is of type list", ""),
    ({"name": 5}, "name is of type int", ""),
    ({"name": "  "}, "name is '  '", "leave it out"),
    ({"timeout_seconds": "60"}, "timeout_seconds is '60'", ""),
    ({"run_timeout": [1]}, "run_timeout is [1]", ""),
    ({"observers": print}, "observers is a function", "observers=["),
    ({"observers": [5]}, "observers[0] is of type int", ""),
    ({"observers": 5}, "observers is of type int", ""),
    ({"platform": 5}, "platform is of type int", ""),
    ({"strategy": 5}, "strategy is of type int", ""),
    ({"strategy": None}, "strategy is of type NoneType", ""),
    ({"strategy": "Horovod"}, "no strategy 'Horovod'", 'strategy="horovod"'),
    ({"strategy": "hvd"}, "no strategy 'hvd'", 'strategy="horovod"'),
    ({"strategy": "ps"}, "no strategy 'ps'", 'strategy="parameter_server"'),
    ({"strategy": "multi-worker"}, "no strategy 'multi-worker'", 'strategy="multi_worker"'),
    ({"strategy": "magic"}, "no strategy 'magic'", "one of parameter_server, horovod"),
    ({"platform": "Local"}, "no platform 'Local'", 'platform="local"'),
    ({"platform": "k8s"}, "no platform 'k8s'", 'platform="kubernetes"'),
    ({"platform": "SSH"}, "no platform 'SSH'", 'platform="hosts"'),
    ({"platform": "acme"}, "no platform 'acme'", "as an object: platform="),
    ({"strategy": "horovod", "slots": "2"}, "slots is '2'", ""),
    ({"strategy": "horovod", "network_interface": 5}, "network_interface is of type int", ""),
    ({"strategy": "horovod", "horovodrun_args": "--verbose"}, "horovodrun_args is of type str", ""),
    ({"strategy": "mpi", "mpi_args": "--mca x y"}, "mpi_args", ""),
    ({"strategy": "mpi", "mpiexec": 5}, "mpiexec is of type int", ""),
]


@pytest.mark.parametrize(("options", "words", "advice"), WRONG)
def test_a_wrong_type_is_refused_before_anything_starts(
    options: dict[str, Any], words: str, advice: str, muster_home: Path
) -> None:
    with pytest.raises(JobError) as caught:
        run_cluster(**{"n_workers": 1, "worker_script": "json.tool", "strategy": Plain(), **options})
    assert words in caught.value.message
    assert advice in (caught.value.advice or "")
    assert "hunter2" not in str(caught.value)
    assert not (muster_home / "runs").exists()


MISNAMED = [
    ("script", "worker_script"),
    ("gpus", "nvidia_gpu"),
    ("worker_scripts", "worker_script"),
    ("run_seconds", "run_timeout"),
    ("nmae", "name"),
    ("workers", "n_workers"),
    ("stall_second", "stall_seconds"),
    ("arguments", "args"),
    ("slot", "slots"),
    ("processes", "slots"),
    ("iface", "network_interface"),
    ("Memory", "memory"),
]


@pytest.mark.parametrize(("name", "right"), MISNAMED)
def test_a_wrong_name_names_the_right_one(name: str, right: str, muster_home: Path) -> None:
    misnamed: dict[str, Any] = {name: "x"}
    with pytest.raises(JobError, match=f"no argument {name!r}") as caught:
        run_cluster(2, strategy="horovod", **misnamed)
    assert caught.value.advice == f"{right}="
    assert not (muster_home / "runs").exists()


def test_a_timeout_may_be_of_the_run_or_of_its_start() -> None:
    with pytest.raises(CallError) as caught:
        run_cluster(2, timeout=5)
    assert caught.value.advice == "run_timeout= for the run, timeout_seconds= for its start"


def train_at(rate: float = 0.1, image: str = "") -> float:
    return rate


@pytest.mark.parametrize("name", ["rate", "image"])
def test_a_parameter_of_the_function_belongs_into_kwargs(name: str) -> None:
    misnamed: dict[str, Any] = {name: 0.5}
    with pytest.raises(CallError, match=f"no argument {name!r}") as caught:
        run_cluster(2, worker_script=train_at, strategy="processes", **misnamed)
    assert caught.value.advice == f'kwargs={{"{name}": ...}}'


@pytest.mark.parametrize("name", ["rate", "steps", "data"])
def test_a_name_that_is_only_a_little_like_another_is_the_scripts(name: str) -> None:
    misnamed: dict[str, Any] = {name: 0.5}
    with pytest.raises(CallError) as caught:
        run_cluster(2, worker_script="train.py", **misnamed)
    assert str(caught.value.advice).startswith(f'args=["--{name}", ...]')


@pytest.mark.parametrize("name", ["workers", "num_workers", "n", "n_worker"])
def test_a_misnamed_number_of_workers_is_named_in_place_of_what_is_missing(name: str) -> None:
    misnamed: dict[str, Any] = {name: 2}
    calls: list[Callable[..., Any]] = [run_cluster, muster.doctor, muster.pool]
    for call in calls:
        with pytest.raises(CallError, match=f"no argument {name!r}") as caught:
            call(**misnamed)
        assert caught.value.advice == "n_workers="


def test_a_script_in_the_place_of_a_number_is_told_its_name() -> None:
    misplaced: list[tuple[Callable[..., Any], list[Any], str]] = [
        (run_cluster, [2, train_at], "worker_script=train_at"), (run_cluster, [train_at], "worker_script=train_at"),
        (run_cluster, [2, "train.py"], 'worker_script="train.py"'), (muster.doctor, [2, train_at], "worker_script="),
        (muster.pool, [train_at], "worker_script="),
    ]  # fmt: skip
    for call, arguments, advice in misplaced:
        with pytest.raises(CallError, match="must be a number") as caught:
            call(*arguments)
        assert advice in str(caught.value.advice)


def test_a_strategy_or_platform_in_the_place_of_a_number_is_told_its_name() -> None:
    misplaced: list[tuple[Callable[..., Any], list[Any], str]] = [
        (run_cluster, [2, "processes"], 'strategy="processes"'), (run_cluster, ["slurm"], 'platform="slurm"'),
        (muster.doctor, [2, "horovod"], 'strategy="horovod"'), (muster.pool, ["hosts"], 'platform="hosts"'),
    ]  # fmt: skip
    for call, arguments, advice in misplaced:
        with pytest.raises(CallError, match=f"is '{arguments[-1]}'; it must be a number") as caught:
            call(*arguments)
        assert str(caught.value.advice) == advice


@pytest.mark.parametrize(("name", "advice"), [
    ("cpus", "cpu="), ("gpus", "nvidia_gpu="), ("strategy", "pool.run_cluster(..., strategy=...)"),
    ("slots", "pool.run_cluster(..., slots=...)"), ("worker_script", "pool.run_cluster(..., worker_script=...)"),
])  # fmt: skip
def test_a_pool_knows_other_names_and_what_belongs_to_its_runs(name: str, advice: str) -> None:
    misnamed: dict[str, Any] = {name: 1}
    with pytest.raises(CallError, match=f"muster.pool has no argument {name!r}") as caught:
        muster.pool(2, **misnamed)
    assert caught.value.advice == advice


def test_an_option_of_another_platform_names_the_platform() -> None:
    for call in (run_cluster, muster.pool):
        with pytest.raises(JobError, match="no such option: hosts") as caught:
            call(2, hosts=["a"])
        assert caught.value.advice == 'platform="hosts", whose option hosts is'


@pytest.mark.parametrize(("name", "value", "meant"), [
    ("wait", "no", False), ("reuse", "yes", True), ("dashboard", "off", False), ("warm", 1, True),
    ("from_scratch", [], False),
])  # fmt: skip
def test_what_is_true_or_false_is_nothing_else(name: str, value: Any, meant: bool) -> None:
    unclear: dict[str, Any] = {name: value}
    with pytest.raises(JobError, match=f"{name} is .*must be True or False") as caught:
        run_cluster(1, strategy="processes", worker_script="calendar", **unclear)
    assert caught.value.advice == f"{name}={meant}"


def test_a_bool_of_numpy_is_one() -> None:
    assert plain_bool("wait", np.bool_(True)) is True


def test_a_name_like_no_other_lists_them_all() -> None:
    with pytest.raises(JobError, match="no argument 'xyzzy'") as caught:
        run_cluster(2, strategy="horovod", xyzzy=1)
    assert "worker_script" in str(caught.value)
    assert "slots" in str(caught.value)


def test_an_option_of_another_strategy_is_refused_with_whose_it_is() -> None:
    with pytest.raises(JobError, match="slots") as caught:
        run_cluster(2, slots=2)
    assert "horovod, mpi, processes" in str(caught.value)


def test_every_other_name_stands_for_an_argument_that_there_is() -> None:
    known = set(inspect.signature(run_cluster).parameters)
    options = {"slots", "network_interface"}
    assert set(OTHER_NAMES) <= known | options
    others = [other for names in OTHER_NAMES.values() for other in names.split() if other != "timeout"]
    assert len(others) == len(set(others))
    assert not set(others) & (known | options)


def test_what_can_be_meant_is_taken() -> None:
    assert plain_args(["--rate", 0.1, "--file", Path("x"), np.float32(0.5), np.int64(3), True]) == (
        "--rate", "0.1", "--file", "x", "0.5", "3", "True",
    )  # fmt: skip
    assert plain_args(word for word in ("--epochs", 3)) == ("--epochs", "3")
    assert plain_env({"A": 1, "B": Path("x")}) == {"A": "1", "B": "x"}
    with pytest.raises(MusterError, match="no regular|does not exist"):
        muster.run_cluster(cast(int, np.int64(1)), worker_script="absent.py", memory=cast(float, np.float64(1)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: muster.run_cluster(0, worker_script="json.tool"),
        lambda: muster.run_cluster(2, strategi="horovod"),
        lambda: muster.open_run("no such run"),
        lambda: muster.Cluster(muster.Job(make_script("json.tool"), n_workers=0)).start(),
        lambda: muster.Cluster(muster.Job(make_script("json.tool"), 1)).wait(),
        lambda: muster.run_cluster(1, strategy=Plain(), worker_script="json.tool", args=["/absent"], dashboard=False),
    ],
    ids=["number", "name", "run", "start", "wait", "failure"],
)
def test_a_traceback_has_the_line_of_the_caller_and_no_frames_of_ours(call: Callable[[], object]) -> None:
    with pytest.raises(MusterError) as caught:
        call()
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [frame for frame in frames if "/sdk/muster/" in frame.filename]
    assert len(ours) == 1, "the one that strips the others"
    printed = "".join(traceback.format_exception(caught.value))
    assert "direct cause" not in printed
    assert "During handling" not in printed


@pytest.mark.parametrize(("options", "words"), [
    ({"worker_script": "train.py"}, "no argument worker_script"), ({"script": "train.py"}, "no argument script"),
    ({}, "is missing"), ({"job": "train.py"}, "is of type str"),
])  # fmt: skip
def test_a_cluster_says_that_it_takes_a_job(options: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words) as caught:
        muster.Cluster(**options)
    assert "Cluster(Job(Script(" in str(caught.value.advice)
    assert "worker_script=" in str(caught.value.advice)


def test_a_defect_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.api.RunRequest", None)
    with pytest.raises(TypeError) as caught:
        muster.run_cluster(1)
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 2


@pytest.mark.parametrize("kind", [JobError, RunInterrupted])
def test_errors_and_interrupts_that_were_handled_are_raised_without_inner_frames(kind: type[BaseException]) -> None:
    @without_inner_frames
    def wait() -> None:
        def inner() -> None:
            raise kind("the run was stopped")

        inner()

    with pytest.raises(kind, match="the run was stopped") as caught:
        wait()
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:] == ["call"]


def test_a_call_that_lacks_an_argument_is_an_error_of_musters_without_inner_frames() -> None:
    calls: list[Callable[..., Any]] = [run_cluster, muster.doctor]
    for call in calls:
        with pytest.raises(CallError, match="n_workers") as caught:
            call(strategy="processes")
        assert isinstance(caught.value, TypeError)
        assert caught.value.__cause__ is None
    with pytest.raises(JobError) as refused:
        run_cluster(1, strategy="processes", worker_script="calendar", epochs=3)
    assert 'args=["--epochs", ...]' in str(refused.value.advice)


@pytest.mark.parametrize(
    ("name", "meant"), [("pytorch", "processes"), ("DDP", "processes"), ("mirrored", "multi_worker")]
)
def test_names_of_frameworks_lead_to_strategies(name: str, meant: str) -> None:
    with pytest.raises(JobError) as caught:
        get_strategy(name)
    assert caught.value.advice == f'strategy="{meant}"'
    with pytest.raises(JobError) as of_class:
        get_strategy(Processes)  # type: ignore[arg-type]
    assert str(of_class.value.advice).startswith("strategy=Processes()")


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("60", "timeout_seconds=60"),
        ("10m", "timeout_seconds=600"),
        (timedelta(minutes=2), "timeout_seconds=120"),
        ("soon", None),
        (-1, None),
    ],
)
def test_limits_that_are_no_numbers_are_refused_with_the_seconds_that_are_meant(given: Any, advice: str | None) -> None:
    with pytest.raises(JobError, match="it must be a number of seconds") as refused:
        Limits.checked(timeout_seconds=given)
    assert (refused.value.advice and str(refused.value.advice)) == advice
