"""The contract of every strategy, and the plan of each. Pure, so tested by equality."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from muster.agent.environment import resolved
from muster.agent.places import resolve
from muster.checks.places import job_by_places
from muster.checks.planning import describe, make_facts, member_names, preview
from muster.errors import JobError, PlatformUnsupported
from muster.job import Job, Member, Plan, Script
from muster.strategies import STRATEGIES, get_strategy
from muster.strategies.base import Facts, Strategy
from muster.strategies.horovod import Horovod, HorovodFacts
from muster.strategies.mpi import MAY_HANG, MPI
from muster.strategies.mpiexec import find_mpiexec
from muster.strategies.multi_worker import MultiWorker
from muster.strategies.parameter_server import ParameterServer
from muster.strategies.processes import Processes

NO_CLIENT = HorovodFacts(None, Path("/known"))
PROGRAM = Script("file", "/scripts/train.py")
TASK = Script("file", "/scripts/task.py", is_task=True)
JOB = Job(PROGRAM, 2, python="/py")
JOBS = {**dict.fromkeys(STRATEGIES, JOB), "parameter_server": Job(PROGRAM, 2, n_ps=1, python="/py")}


def members(job: Job, strategy: Strategy) -> list[Member]:
    return [
        Member(name, role, index, f"127.1.1.{number}", (4000 + number,), 2222, f"ssh-ed25519 KEY{number}", ("lo",))
        for number, (name, role, index) in enumerate(member_names(job, strategy), start=1)
    ]


def facts(job: Job, strategy: Strategy) -> Facts:
    return make_facts(job, Path("/home/runs/run-1"), Path("/tmp/scratch"), probed=strategy.probe())


@pytest.fixture(params=[*sorted(STRATEGIES), "horovod by agents"])
def strategy(request: pytest.FixtureRequest, mpiexecs: dict[str, str]) -> Strategy:
    name = request.param.split()[0]
    options = {"mpiexec": mpiexecs["Open MPI"]} if name == "mpi" else {}
    return get_strategy(name, **options, **({"launcher": "agents"} if "agents" in request.param else {}))


def plan_of(strategy: Strategy, job: Job, given: Facts) -> Plan:
    return strategy.plan(job, members(job, strategy), given)


class TestContract:
    """The contract of every strategy; a new one is in ``STRATEGIES``, and so is tested here."""

    def test_same_input_same_plan(self, strategy: Strategy) -> None:
        job = JOBS[strategy.name]
        there = members(job, strategy)
        assert strategy.plan(job, there, facts(job, strategy)) == strategy.plan(job, there, facts(job, strategy))

    def test_every_member_has_a_process(self, strategy: Strategy) -> None:
        job = JOBS[strategy.name]
        plan = strategy.plan(job, members(job, strategy), facts(job, strategy))
        assert list(plan.processes) == [name for name, _, _ in member_names(job, strategy)]

    def test_where_nothing_is_shared_processes_name_places_and_no_folder_of_the_session(
        self, strategy: Strategy
    ) -> None:
        if isinstance(strategy, Horovod) and strategy.launcher != "agents" and find_spec("horovod") is None:
            pytest.skip("Horovod is not installed: there its agents start the ranks where no files are shared")
        job = replace(JOBS[strategy.name], cwd="/home/project", python="/other/python")
        assert job.script is not None
        if job.script.kind == "file":
            job = replace(job, script=replace(job.script, target="/home/project/scripts/train.py"))
        scratch, run_dir = Path("/tmp/scratch"), Path("/home/runs/run-1")
        given = make_facts(job, run_dir, scratch, probed=strategy.probe(), by_places=True)
        plan = plan_of(strategy, job_by_places(job), given)
        there = {"library": "/other/lib", "run": "/other/run", "project": "/other/project"}
        for process in plan.processes.values():
            words = [resolve(word, there) for word in (*process.argv, *process.env.values(), process.cwd or "")]
            assert not [word for word in words if "/tmp/scratch" in word or "/home" in word or "\0" in word]
            assert words[-1] == "/other/project"
            assert "/other/run/results" in words
            assert "/other/lib/runner.py" in words
        usual = plan_of(strategy, job, facts(job, strategy))
        here = given.places
        if plan.starter and usual.starter:
            words = [resolve(word, here) for word in plan.starter.argv]
            rank = usual.processes["worker-0"].argv
            assert not [word for word in words if "\0" in word]
            assert tuple(words[-len(rank) :]) == usual.starter.argv[-len(rank) :] == rank
        for name, process in plan.processes.items():
            assert tuple(resolve(word, here) for word in process.argv) == usual.processes[name].argv
            assert resolve(process.cwd or "", here) == usual.processes[name].cwd
            env = resolved(process.env, {"places": here, "environ": os.environ})
            assert env == usual.processes[name].env
        assert "<library>/runner.py" in json.dumps(describe(plan, job))

    def test_where_nothing_is_shared_the_launcher_has_the_sessions_interpreter(self) -> None:
        job = replace(JOB, cwd="/home/project", python="python3")
        strategy = Horovod()

        def planned(has_horovod: bool) -> Plan:
            probed = HorovodFacts("/usr/bin/ssh", Path("/known"), has_horovod)
            given = make_facts(job, Path("/home/runs/run-1"), Path("/tmp/scratch"), probed=probed, by_places=True)
            return plan_of(strategy, job, given)

        assert planned(True).launcher.prestart[0] == sys.executable  # type: ignore[union-attr]
        without = planned(False)
        assert without.launcher.prestart[0] == "python3"  # type: ignore[union-attr]
        assert without.notes == (
            f"The workers' agents start the ranks, as horovodrun cannot: {sys.executable}, which would run it, "
            "has no Horovod.",
        )

    def test_somebody_decides_the_end(self, strategy: Strategy) -> None:
        job = JOBS[strategy.name]
        plan = strategy.plan(job, members(job, strategy), facts(job, strategy))
        assert plan.launcher or set(plan.completed_by) <= set(plan.processes)
        assert plan.launcher or plan.completed_by

    def test_the_users_environment_is_on_no_command_line_and_not_recorded(self, strategy: Strategy) -> None:
        base = JOBS[strategy.name]
        job = Job(base.script, base.n_workers, base.n_ps, env={"API_KEY": "hunter2"}, python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job, strategy))
        assert all(process.env["API_KEY"] == "hunter2" for process in plan.processes.values())
        assert "hunter2" not in json.dumps(describe(plan, job))
        assert "hunter2" not in repr(plan) + repr(job) + repr(facts(job, strategy))
        assert plan.launcher is None or "API_KEY" not in plan.launcher.env

    def test_what_its_launcher_and_its_ranks_run_from_the_library_is_shipped(self, strategy: Strategy) -> None:
        job = JOBS[strategy.name]
        given = facts(job, strategy)
        plan = strategy.plan(job, members(job, strategy), given)
        launcher = strategy.launcher_for(job, given)
        words = [word for process in plan.processes.values() for word in process.argv]
        words += [*launcher.prestart, *plan.launcher.argv] if launcher and plan.launcher else []
        from_library = {Path(word).name for word in words if word.startswith(str(given.library))}
        assert all(program.is_file() for program in strategy.programs)
        shipped = {"runner.py", *(program.name for program in strategy.programs)}
        has_choice = strategy.uses_ssh and not strategy.needs_ssh
        assert from_library < shipped if has_choice else from_library == shipped
        assert plan.launcher is None or launcher == replace(plan.launcher, args=())

    def test_a_preview_starts_nothing_and_shows_placeholders(self, strategy: Strategy) -> None:
        job = JOBS[strategy.name]
        assert "<worker-0>" in json.dumps(describe(preview(job, strategy, strategy.probe()), job))

    @pytest.mark.parametrize("number", [0, -1, True, 1.5, 10**9])
    def test_absurd_numbers_of_workers_are_refused(self, strategy: Strategy, number: Any) -> None:
        with pytest.raises(JobError, match="n_workers"):
            member_names(Job(PROGRAM, number), strategy)

    def test_an_unknown_option_is_refused(self, strategy: Strategy) -> None:
        with pytest.raises(JobError, match="no_such_option"):
            get_strategy(strategy.name, no_such_option=1)


@pytest.mark.parametrize("strategy", [Horovod(), MPI(), Processes(), MultiWorker()])
@pytest.mark.parametrize(
    ("job", "words"),
    [
        (Job(None, 2), "needs a script"),
        (Job(TASK, 2), "parameter servers"),
        (Job(PROGRAM, 2, n_ps=1), "no parameter servers"),
    ],
)
def test_what_is_meant_for_parameter_servers_is_refused_by_the_others(strategy: Strategy, job: Job, words: str) -> None:
    with pytest.raises(JobError, match=words):
        strategy.roles(job)


@pytest.mark.parametrize("slots", [0, -1, True, 1.5, "2", 3 * 10**9])
@pytest.mark.parametrize("strategy", [Horovod, MPI, Processes])
def test_absurd_numbers_of_slots_are_refused(strategy: Any, slots: Any) -> None:
    with pytest.raises(JobError, match="slots="):
        strategy(slots=slots).roles(JOB)


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    with pytest.raises(JobError, match="horovod"):
        get_strategy("magic")


class TestParameterServer:
    def test_a_task_runs_on_every_worker_and_all_of_them_decide(self) -> None:
        strategy, job = ParameterServer(), Job(TASK, 2, n_ps=1, args=("--sync",), python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job, strategy))
        assert plan.cluster_spec == {"ps": ("127.1.1.1:4001",), "worker": ("127.1.1.2:4002", "127.1.1.3:4003")}
        assert plan.completed_by == ("worker-0", "worker-1")
        assert plan.servers == {"ps-0": 4001, "worker-0": 4002, "worker-1": 4003}
        assert plan.processes["ps-0"].argv == ("/py", "-u", "/tmp/scratch/lib/runner.py", "serve")
        assert plan.processes["worker-1"].argv[3:] == ("task", "/scripts/task.py", "--sync")
        assert json.loads(plan.processes["worker-1"].env["TF_CONFIG"]) == {
            "cluster": {"ps": ["127.1.1.1:4001"], "worker": ["127.1.1.2:4002", "127.1.1.3:4003"]},
            "task": {"type": "worker", "index": 1},
        }

    def test_a_program_runs_on_a_chief_which_decides(self) -> None:
        strategy, job = ParameterServer(), Job(PROGRAM, 2, n_ps=1, python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job, strategy))
        assert list(plan.processes) == ["chief-0", "ps-0", "worker-0", "worker-1"]
        assert plan.completed_by == ("chief-0",)
        assert plan.processes["chief-0"].argv[3:] == ("program", "/scripts/train.py")
        assert plan.processes["worker-0"].argv[3:] == ("serve",)
        assert "chief-0" not in plan.servers  # its coordinator's server comes and goes with the script

    def test_a_program_needs_a_parameter_server(self) -> None:
        with pytest.raises(JobError, match="n_ps"):
            ParameterServer().roles(Job(PROGRAM, 2))

    def test_without_a_script_all_serve_and_nobody_decides(self) -> None:
        strategy, job = ParameterServer(), Job(None, 1, n_ps=1, python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job, strategy))
        assert plan.completed_by == ()
        assert {process.argv[3] for process in plan.processes.values()} == {"serve"}


class TestHorovod:
    def test_the_command_is_what_a_person_would_type(self) -> None:
        strategy, job = Horovod(slots=2), Job(PROGRAM, 2, args=("--epochs", "3"), python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job, strategy))
        assert plan.launcher is not None
        assert shlex.join(plan.launcher.argv) == (
            "horovodrun --gloo --disable-cache -np 4 -H 127.1.1.1:2,127.1.1.2:2 -p 2222 -i /tmp/scratch/identity "
            "--network-interfaces lo /py -u /tmp/scratch/lib/runner.py program /scripts/train.py --epochs 3"
        )
        assert plan.ranks == {0: "worker-0", 1: "worker-0", 2: "worker-1", 3: "worker-1"}
        assert plan.files["hostfile"] == "127.1.1.1 slots=2\n127.1.1.2 slots=2\n"
        assert plan.files["known_hosts"].splitlines()[1] == "[127.1.1.2]:2222 ssh-ed25519 KEY2"

    @pytest.mark.parametrize(("address", "said"), [("10.7.0.1", ["--address=10.7.0.1"]), ("fd00::1", [])])
    def test_ranks_reach_the_session_at_its_address_unless_that_is_one_of_ipv6(
        self, address: str, said: list[str]
    ) -> None:
        strategy = Horovod()
        plan = strategy.plan(JOB, members(JOB, strategy), replace(facts(JOB, strategy), session_host=address))
        assert plan.launcher is not None
        assert [word for word in plan.launcher.prestart if word.startswith("--address=")] == said

    def test_where_the_workers_ssh_ports_or_accounts_differ_ssh_knows_each(self) -> None:
        strategy, job = Horovod(), JOB
        first, second = members(job, strategy)
        plan = strategy.plan(job, [first, replace(second, ssh_port=2223, account="ann")], facts(job, strategy))
        assert plan.launcher is not None
        assert "-p" not in plan.launcher.argv
        second_one = "Host 127.1.1.2\n    Port 2223\n    User ann\n"
        assert plan.files["ssh_config"] == f"Host 127.1.1.1\n    Port 2222\n{second_one}"

    def test_host_keys_are_checked_and_the_users_ssh_configuration_stays_out(self) -> None:
        strategy, job = Horovod(), JOB
        wrapper = strategy.plan(job, members(job, strategy), facts(job, strategy)).files["bin/ssh"]
        for option in (
            "-F /tmp/scratch/ssh_config",
            "StrictHostKeyChecking=yes",
            "IdentityAgent=none",
            "UserKnownHostsFile=/tmp/scratch",
        ):
            assert option in wrapper

    def test_workers_without_a_common_interface_are_named(self) -> None:
        strategy, job = Horovod(), JOB
        first, second = members(job, strategy)
        apart = [first, Member(second.name, "worker", 1, second.host, (), 2222, "k", ("eth0",))]
        with pytest.raises(JobError, match="worker-1 has eth0"):
            strategy.plan(job, apart, facts(job, strategy))


class TestHorovodByAgents:
    def test_each_rank_has_what_horovodrun_would_give_it(self) -> None:
        strategy, job = Horovod(slots=2, launcher="agents"), replace(JOB, env={"HOROVOD_CYCLE_TIME": "2"})
        plan = strategy.plan(job, members(job, strategy), facts(job, strategy))
        by_rank = {rank: process.env for _, rank, process in plan.starts()}
        assert {name: value for name, value in by_rank[2].items() if name.startswith(("HOROVOD_", "NCCL_"))} == {
            "HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2",
            "HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2", "HOROVOD_HOSTNAME": "127.1.1.2",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.1.1.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "4001",
            "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo",
            "NCCL_SOCKET_IFNAME": "lo", "HOROVOD_CYCLE_TIME": "2",
        }  # fmt: skip
        assert plan.ranks == {0: "worker-0", 1: "worker-0", 2: "worker-1", 3: "worker-1"}
        assert plan.completed_by == ("worker-0", "worker-1")

    def test_its_rendezvous_server_runs_beside_the_first_worker(self) -> None:
        strategy = Horovod(slots=2, launcher="agents")
        plan = strategy.plan(JOB, members(JOB, strategy), facts(JOB, strategy))
        assert plan.launcher is not None
        assert plan.launcher.argv == ("rendezvous", "127.1.1.1", "4001", "127.1.1.1:2", "127.1.1.2:2")
        assert (plan.launcher.where, plan.starter) == ("worker-0", None)
        assert plan.servers == {"worker-0": 4001}
        assert not plan.files
        assert not plan.notes

    def test_workers_at_one_address_are_told_apart(self) -> None:
        strategy = Horovod(launcher="agents")
        there = [replace(member, host="10.0.0.1") for member in members(JOB, strategy)]
        plan = strategy.plan(JOB, there, facts(JOB, strategy))
        assert [env["HOROVOD_HOSTNAME"] for env in plan.rank_env.values()] == ["worker-0", "worker-1"]
        assert plan.launcher is not None
        assert plan.launcher.argv[-2:] == ("worker-0:1", "worker-1:1")

    def test_they_are_chosen_where_there_is_no_sshd_and_the_plan_says_why(self) -> None:
        strategy = Horovod()
        first, second = members(JOB, strategy)
        deaf = replace(second, ssh_port=None, host_key=None, no_ssh="it has no sshd: its image needs openssh-server")
        plan = strategy.plan(JOB, [first, deaf], facts(JOB, strategy))
        assert plan.starter is None
        assert plan.notes == (
            "The workers' agents start the ranks, as horovodrun cannot: "
            "nobody can log in to worker-1 (it has no sshd: its image needs openssh-server).",
        )
        assert describe(plan, JOB)["notes"] == list(plan.notes)

    @pytest.mark.parametrize("change", [{"no_ssh": "This machine has none"}, {"probed": NO_CLIENT}])
    def test_what_is_known_before_a_launch_is_not_tried(self, change: dict[str, Any]) -> None:
        strategy = Horovod()
        given = replace(facts(JOB, strategy), **change)
        launcher = strategy.launcher_for(JOB, given)
        assert launcher.name == "rendezvous"
        plan = strategy.plan(JOB, members(JOB, strategy), given)
        assert plan.launcher == replace(launcher, args=plan.launcher.args if plan.launcher else ())
        assert plan.notes

    @pytest.mark.parametrize("strategy", [Horovod(launcher="horovodrun"), Horovod(horovodrun_args=("--verbose",))])
    def test_they_are_not_chosen_against_what_was_asked(self, strategy: Horovod) -> None:
        there = [replace(member, ssh_port=None) for member in members(JOB, strategy)]
        with pytest.raises(JobError, match="nobody can log in to worker-0, nor to 1 more") as refused:
            strategy.plan(JOB, there, facts(JOB, strategy))
        assert 'launcher="agents"' in str(refused.value)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"launcher": "mpiexec"}, "started by 'horovodrun' or by 'agents'"),
            ({"launcher": 3}, "started by 'horovodrun' or by 'agents'"),
            ({"launcher": "agents", "horovodrun_args": ("--verbose",)}, "horovodrun_args are for horovodrun"),
        ],
    )
    def test_what_cannot_be_is_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(JobError, match=message):
            Horovod(**options).roles(JOB)


class TestMpi:
    def test_the_command_for_open_mpi(self, mpiexecs: dict[str, str]) -> None:
        strategy = MPI(slots=2, mpiexec=mpiexecs["Open MPI"])
        job = Job(PROGRAM, 2, args=("--epochs", "3"), python="/py")
        plan = strategy.plan(job, members(job, strategy), facts(job, strategy))
        assert plan.launcher is not None
        assert shlex.join(plan.launcher.argv) == (
            f"{mpiexecs['Open MPI']} -n 4 --leave-session-attached --hostfile /tmp/scratch/hostfile --map-by slot "
            "--bind-to none --wdir / --mca plm_rsh_no_tree_spawn 1 "
            "--mca oob_tcp_if_include lo --mca btl_tcp_if_include lo --mca btl tcp,self --mca mpi_yield_when_idle 1 "
            "/py -I -S /tmp/scratch/lib/mpi_rank.py /py -u /tmp/scratch/lib/runner.py program /scripts/train.py "
            "--epochs 3"
        )
        assert plan.files["hostfile"] == "127.1.1.1 slots=2\n127.1.1.2 slots=2\n"
        assert plan.ranks == {0: "worker-0", 1: "worker-0", 2: "worker-1", 3: "worker-1"}

    def test_the_command_for_mpich(self, mpiexecs: dict[str, str]) -> None:
        strategy = MPI(mpiexec=mpiexecs["MPICH"], binding="core")
        plan = strategy.plan(JOB, members(JOB, strategy), facts(JOB, strategy))
        assert plan.launcher is not None
        assert shlex.join(plan.launcher.argv) == (
            f"{mpiexecs['MPICH']} -n 2 -f /tmp/scratch/hostfile -launcher ssh -launcher-exec /tmp/scratch/bin/ssh "
            "-iface lo -wdir / -bind-to core "
            "/py -I -S /tmp/scratch/lib/mpi_rank.py /py -u /tmp/scratch/lib/runner.py program /scripts/train.py"
        )
        assert plan.files["hostfile"] == "127.1.1.1:1\n127.1.1.2:1\n"

    @pytest.mark.parametrize(
        ("flavour", "interface", "launcher_at", "said"),
        [
            ("Open MPI", None, "session", "--mca oob_tcp_if_include 10.7.0.0/28 --mca btl_tcp_if_include eth0 "),
            ("Open MPI", None, "worker-0", "--mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 "),
            ("Open MPI", "eth0", "session", "--mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 "),
            ("MPICH", None, "session", " -localhost 10.7.0.1 -wdir / "),
            ("MPICH", None, "worker-0", " -iface eth0 -wdir / "),
            ("MPICH", "eth0", "session", " -iface eth0 -wdir / "),
        ],
    )
    def test_the_session_need_not_have_the_workers_interface(
        self, mpiexecs: dict[str, str], flavour: str, interface: str | None, launcher_at: str, said: str
    ) -> None:
        strategy = MPI(mpiexec=mpiexecs[flavour], network_interface=interface)
        there = [
            replace(member, host=f"10.7.0.{number}", interfaces=("eth0",))
            for number, member in zip((2, 9), members(JOB, strategy), strict=True)
        ]
        known = replace(facts(JOB, strategy), session_host="10.7.0.1", launcher_at=launcher_at)
        plan = strategy.plan(JOB, there, known)
        assert plan.launcher is not None
        assert said in shlex.join(plan.launcher.argv)

    @pytest.mark.parametrize(
        ("version", "device", "workers", "interface", "is_told"),
        [
            ("4.0.2", "ch4:ucx", 2, "eth0", True),
            ("4.1.3", "ch4:ucx", 2, "eth0", True),
            ("3.4", "ch4:ucx", 2, "eth0", True),
            ("4.0.2", "ch4:ofi", 2, "eth0", False),
            ("4.2.0", "ch4:ucx", 2, "eth0", False),
            ("4.10", "ch4:ucx", 2, "eth0", False),
            ("4.0.2", "ch4:ucx", 1, "eth0", False),
            ("4.0.2", "ch4:ucx", 2, "lo", False),
        ],
    )
    def test_an_mpich_that_may_hang_between_machines_is_told(
        self, tmp_path: Path, version: str, device: str, workers: int, interface: str, is_told: bool
    ) -> None:
        mpiexec = tmp_path / "mpiexec"
        said = f"HYDRA build details:\n    Version:     {version}\n    Configure options:  '--with-device={device}'"
        mpiexec.write_text(f"#!/bin/sh\ncat << end\n{said}\nend\n")
        mpiexec.chmod(0o755)
        strategy = MPI(mpiexec=str(mpiexec), network_interface=interface)
        plan = strategy.plan(JOB, members(JOB, strategy)[:workers], facts(JOB, strategy))
        assert plan.notes == ((MAY_HANG,) if is_told else ())

    @pytest.mark.parametrize("flavour", ["Open MPI", "MPICH"])
    def test_of_a_session_with_an_ipv6_address_it_takes_the_interface(
        self, mpiexecs: dict[str, str], flavour: str
    ) -> None:
        strategy = MPI(mpiexec=mpiexecs[flavour])
        there = [replace(member, host="10.7.0.2", interfaces=("eth0",)) for member in members(JOB, strategy)]
        plan = strategy.plan(JOB, there, replace(facts(JOB, strategy), session_host="fd00::1"))
        assert plan.launcher is not None
        assert "fd00" not in shlex.join(plan.launcher.argv)

    def test_the_users_arguments_win(self, mpiexecs: dict[str, str]) -> None:
        mpi_args = ("--bind-to", "core", "--mca", "btl", "tcp,vader,self")
        strategy = MPI(mpiexec=mpiexecs["Open MPI"], mpi_args=mpi_args)
        plan = strategy.plan(JOB, members(JOB, strategy), facts(JOB, strategy))
        assert plan.launcher is not None
        command = shlex.join(plan.launcher.argv)
        assert shlex.join(mpi_args) in command
        assert command.count("--bind-to") == command.count("--mca btl ") == 1

    @pytest.mark.parametrize(
        ("flavour", "mpi_args", "replaced"),
        [
            ("Open MPI", ("-bind-to", "core", "-mca", "btl", "tcp,self"), (" --bind-to ", " --mca btl ")),
            ("MPICH", ("--bind-to", "core", "--iface=lo"), (" -bind-to ", " -iface ")),
        ],
    )
    def test_they_win_with_one_dash_or_two(
        self, mpiexecs: dict[str, str], flavour: str, mpi_args: tuple[str, ...], replaced: tuple[str, ...]
    ) -> None:
        strategy = MPI(mpiexec=mpiexecs[flavour], mpi_args=mpi_args)
        plan = strategy.plan(JOB, members(JOB, strategy), facts(JOB, strategy))
        assert plan.launcher is not None
        command = shlex.join(plan.launcher.argv)
        assert shlex.join(mpi_args) in command
        assert not [option for option in replaced if option in command]

    @pytest.mark.parametrize("option", ["-n", "-np", "--np"])
    def test_the_number_of_ranks_is_not_theirs_to_say(self, option: str) -> None:
        with pytest.raises(JobError, match="says how many ranks there are") as refused:
            MPI(mpi_args=(option, "4")).roles(JOB)
        assert "slots=" in str(refused.value)

    def test_each_host_is_reached_on_its_own_port(self, mpiexecs: dict[str, str]) -> None:
        strategy = MPI(mpiexec=mpiexecs["MPICH"])
        first, second = members(JOB, strategy)
        files = strategy.plan(JOB, [first, replace(second, ssh_port=2223)], facts(JOB, strategy)).files
        assert files["ssh_config"] == "Host 127.1.1.1\n    Port 2222\nHost 127.1.1.2\n    Port 2223\n"
        assert files["known_hosts"].splitlines()[1].startswith("[127.1.1.2]:2223 ")

    def test_arguments_in_one_string_are_refused(self) -> None:
        with pytest.raises(JobError, match="list of words"):
            MPI(mpi_args="--mca btl tcp").roles(JOB)  # type: ignore[arg-type]

    def test_what_mpiexec_is_missing_or_strange_is_said_before_anything_starts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(JobError, match="no-such-mpiexec") as missing:
            MPI(mpiexec="no-such-mpiexec").probe()
        assert "install openmpi-bin or mpich" in str(missing.value)
        monkeypatch.setenv("PATH", str(tmp_path))
        find_mpiexec.cache_clear()
        with pytest.raises(PlatformUnsupported):
            MPI().probe()
        monkeypatch.undo()
        with pytest.raises(JobError, match="neither Open MPI nor MPICH"):
            MPI(mpiexec="true").probe()


class TestProcesses:
    def test_each_rank_finds_its_place_and_one_gpu(self) -> None:
        strategy = Processes(slots=3)
        there = [replace(member, gpus=("GPU-a", "GPU-b")) for member in members(JOB, strategy)]
        plan = strategy.plan(JOB, there, facts(JOB, strategy))
        assert plan.rank_env[4] == {
            "MUSTER_RANK": "4", "MUSTER_LOCAL_RANK": "1", "MUSTER_WORLD_SIZE": "6",
            "RANK": "4", "LOCAL_RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3",
            "MASTER_ADDR": "127.1.1.1", "MASTER_PORT": "4001", "CUDA_VISIBLE_DEVICES": "GPU-b",
        }  # fmt: skip
        assert [env["CUDA_VISIBLE_DEVICES"] for env in plan.rank_env.values()] == ["GPU-a", "GPU-b", "GPU-a"] * 2
        assert [(worker, rank) for worker, rank, _ in plan.starts()] == [
            (f"worker-{rank // 3}", rank) for rank in range(6)
        ]

    def test_without_gpus_the_worker_says_that_there_are_none(self) -> None:
        plan = Processes().plan(JOB, members(JOB, Processes()), facts(JOB, Processes()))
        assert "CUDA_VISIBLE_DEVICES" not in plan.rank_env[0]


class TestMultiWorker:
    def test_every_worker_runs_the_script_and_knows_the_others(self) -> None:
        strategy = MultiWorker()
        plan = strategy.plan(JOB, members(JOB, strategy), facts(JOB, strategy))
        assert plan.processes["worker-1"].argv[3:] == ("program", "/scripts/train.py")
        assert json.loads(plan.processes["worker-1"].env["TF_CONFIG"]) == {
            "cluster": {"worker": ["127.1.1.1:4001", "127.1.1.2:4002"]},
            "task": {"type": "worker", "index": 1},
        }
        assert plan.completed_by == ("worker-0", "worker-1")


def test_a_program_that_is_no_python_is_run_as_it_is() -> None:
    job = Job(Script("executable", "/bin/allreduce"), 1, args=("10",), python="/py")
    plan = Processes().plan(job, members(job, Processes()), facts(job, Processes()))
    assert plan.processes["worker-0"].argv == ("/bin/allreduce", "10")
