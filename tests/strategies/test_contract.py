"""What every strategy must hold to, and what each of them plans. Pure, so tested by equality."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from muster.errors import JobError
from muster.job import Job, Member, Script
from muster.planning import describe, make_facts, member_names, preview
from muster.strategies import STRATEGIES, get_strategy
from muster.strategies.base import Facts, Strategy
from muster.strategies.horovod import Horovod
from muster.strategies.parameter_server import ParameterServer

PROGRAM = Script("file", "/scripts/train.py")
TASK = Script("file", "/scripts/task.py", is_task=True)
JOBS = {"parameter_server": Job(PROGRAM, 2, n_ps=1, python="/py"), "horovod": Job(PROGRAM, 2, python="/py")}


def members(job: Job, strategy: Strategy) -> list[Member]:
    return [
        Member(name, role, index, f"127.1.1.{number}", (4000 + number,), 2222, f"ssh-ed25519 KEY{number}", ("lo",))
        for number, (name, role, index) in enumerate(member_names(job, strategy), start=1)
    ]


def facts(job: Job) -> Facts:
    return make_facts(job, "run-1", Path("/home/runs/run-1"), Path("/tmp/scratch"))


@pytest.fixture(params=sorted(STRATEGIES))
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return get_strategy(request.param)


class TestContract:
    """What holds for every strategy; a new one is in ``STRATEGIES``, and so is tested here."""

    def test_same_input_same_plan(self, strategy: Strategy) -> None:
        job = JOBS[strategy.name]
        there = members(job, strategy)
        assert strategy.plan(job, there, facts(job)) == strategy.plan(job, there, facts(job))

    def test_every_member_has_a_process(self, strategy: Strategy) -> None:
        job = JOBS[strategy.name]
        plan = strategy.plan(job, members(job, strategy), facts(job))
        assert list(plan.processes) == [name for name, _, _ in member_names(job, strategy)]

    def test_somebody_decides_the_end(self, strategy: Strategy) -> None:
        job = JOBS[strategy.name]
        plan = strategy.plan(job, members(job, strategy), facts(job))
        assert plan.driver or set(plan.decides) <= set(plan.processes)
        assert plan.driver or plan.decides

    def test_the_users_environment_is_on_no_command_line_and_not_recorded(self, strategy: Strategy) -> None:
        base = JOBS[strategy.name]
        job = Job(base.script, base.n_workers, base.n_ps, env={"API_KEY": "hunter2"}, python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job))
        assert all(process.env["API_KEY"] == "hunter2" for process in plan.processes.values())
        assert "hunter2" not in json.dumps(describe(plan, job))
        assert "hunter2" not in repr(plan) + repr(job) + repr(facts(job))
        assert plan.driver is None or "API_KEY" not in plan.driver.env

    def test_a_preview_starts_nothing_and_shows_placeholders(self, strategy: Strategy) -> None:
        assert "<worker-0>" in json.dumps(describe(preview(JOBS[strategy.name], strategy), JOBS[strategy.name]))

    @pytest.mark.parametrize("number", [0, -1, True, 1.5, 10**9])
    def test_absurd_numbers_of_workers_are_refused(self, strategy: Strategy, number: Any) -> None:
        with pytest.raises(JobError, match="n_workers"):
            member_names(Job(PROGRAM, number), strategy)

    def test_an_unknown_option_is_refused(self, strategy: Strategy) -> None:
        with pytest.raises(JobError, match="no_such_option"):
            get_strategy(strategy.name, no_such_option=1)


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    with pytest.raises(JobError, match="horovod"):
        get_strategy("magic")


class TestParameterServer:
    def test_a_task_runs_on_every_worker_and_all_of_them_decide(self) -> None:
        strategy, job = ParameterServer(), Job(TASK, 2, n_ps=1, args=("--sync",), python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job))
        assert plan.cluster_spec == {"ps": ("127.1.1.1:4001",), "worker": ("127.1.1.2:4002", "127.1.1.3:4003")}
        assert plan.decides == ("worker-0", "worker-1")
        assert plan.servers == {"ps-0": 4001, "worker-0": 4002, "worker-1": 4003}
        assert plan.processes["ps-0"].argv == ("/py", "-u", "/tmp/scratch/lib/runner.py", "serve")
        assert plan.processes["worker-1"].argv[3:] == ("task", "/scripts/task.py", "--sync")
        assert json.loads(plan.processes["worker-1"].env["TF_CONFIG"]) == {
            "cluster": {"ps": ["127.1.1.1:4001"], "worker": ["127.1.1.2:4002", "127.1.1.3:4003"]},
            "task": {"type": "worker", "index": 1},
        }

    def test_a_program_runs_on_a_chief_which_decides(self) -> None:
        strategy, job = ParameterServer(), Job(PROGRAM, 2, n_ps=1, python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job))
        assert list(plan.processes) == ["chief-0", "ps-0", "worker-0", "worker-1"]
        assert plan.decides == ("chief-0",)
        assert plan.processes["chief-0"].argv[3:] == ("program", "/scripts/train.py")
        assert plan.processes["worker-0"].argv[3:] == ("serve",)
        assert "chief-0" not in plan.servers  # its coordinator's server comes and goes with the script

    def test_a_program_needs_a_parameter_server(self) -> None:
        with pytest.raises(JobError, match="n_ps"):
            ParameterServer().roles(Job(PROGRAM, 2))

    def test_without_a_script_all_serve_and_nobody_decides(self) -> None:
        strategy, job = ParameterServer(), Job(None, 1, n_ps=1, python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job))
        assert plan.decides == ()
        assert {process.argv[3] for process in plan.processes.values()} == {"serve"}


class TestHorovod:
    def test_the_command_is_what_a_person_would_type(self) -> None:
        strategy, job = Horovod(slots=2), Job(PROGRAM, 2, args=("--epochs", "3"), python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job))
        assert plan.driver is not None
        assert shlex.join(plan.driver.argv) == (
            "horovodrun --gloo --disable-cache -np 4 -H 127.1.1.1:2,127.1.1.2:2 -p 2222 -i /tmp/scratch/identity "
            "--network-interfaces lo /py -u /tmp/scratch/lib/runner.py program /scripts/train.py --epochs 3"
        )
        assert plan.ranks == {0: "worker-0", 1: "worker-0", 2: "worker-1", 3: "worker-1"}
        assert plan.files["hostfile"] == "127.1.1.1 slots=2\n127.1.1.2 slots=2\n"
        assert plan.files["known_hosts"].splitlines()[1] == "[127.1.1.2]:2222 ssh-ed25519 KEY2"

    def test_host_keys_are_checked_and_the_users_ssh_configuration_stays_out(self) -> None:
        strategy, job = Horovod(), JOBS["horovod"]
        wrapper = strategy.plan(job, members(job, strategy), facts(job)).files["bin/ssh"]
        for option in ("-F none", "StrictHostKeyChecking=yes", "IdentityAgent=none", "UserKnownHostsFile=/tmp/scratch"):
            assert option in wrapper

    @pytest.mark.parametrize(
        ("job", "slots", "words"),
        [
            (Job(None, 2), 1, "needs a script"),
            (Job(TASK, 2), 1, "parameter servers"),
            (Job(PROGRAM, 2, n_ps=1), 1, "no parameter servers"),
            (Job(PROGRAM, 2), 0, "slots=0"),
        ],
    )
    def test_jobs_that_do_not_fit_are_refused(self, job: Job, slots: int, words: str) -> None:
        with pytest.raises(JobError, match=words):
            Horovod(slots=slots).roles(job)

    def test_workers_without_a_common_interface_are_named(self) -> None:
        strategy, job = Horovod(), JOBS["horovod"]
        first, second = members(job, strategy)
        apart = [first, Member(second.name, "worker", 1, second.host, (), 2222, "k", ("eth0",))]
        with pytest.raises(JobError, match="worker-1 has eth0"):
            strategy.plan(job, apart, facts(job))
