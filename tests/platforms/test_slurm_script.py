"""The batch script of Slurm's platform, and what it refuses to write there. Pure functions."""

from __future__ import annotations

import json
import marshal
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from muster.agent import frames, removal, slurm_bootstrap, unpacking
from muster.errors import JobError, ResourceError
from muster.job import Resources
from muster.platforms import agent_package
from muster.platforms.agent_package import packed_agent
from muster.platforms.slurm.nodes import (
    Node,
    Partition,
    Selection,
    check_fits,
    limits_in_words,
    selection_of,
    with_features,
    with_limits,
    workers_per_node,
)
from muster.platforms.slurm.platform import SlurmPlatform
from muster.platforms.slurm.script import SiteOptions, batch_script, check_raw, variables
from muster.platforms.slurm.site import HERE

from tests.platforms.slurm_stand_in import StandIn
from tests.support import Run


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Commands that stand in for Slurm's."""
    made = StandIn(tmp_path / "slurm")
    monkeypatch.setenv("PATH", made.path)
    for name in ("SLURM_JOB_ID", "SBATCH_EXCLUSIVE", "SBATCH_PARTITION", "SBATCH_CONSTRAINT", "SBATCH_TIMELIMIT"):
        monkeypatch.delenv(name, raising=False)
    return made


def script_of(folder: str = "/shared/muster", **flags: str) -> str:
    site = SiteOptions(flags=flags)
    return batch_script(folder, "muster-a", "me", [Resources(1, 1)] * 2, site)


def test_a_script_is_directives_and_one_command() -> None:
    lines = script_of(partition="main", gres="gpu:a 100:1").splitlines()
    assert lines[0] == "#!/bin/sh"
    assert all(line.startswith(("#SBATCH --", "#SBATCH '--")) for line in lines[1:-3])
    assert "#SBATCH --partition=main" in lines
    assert "#SBATCH '--gres=gpu:a 100:1'" in lines
    assert lines[-3:-1] == ["unset SLURM_NTASKS_PER_NODE", "umask 077"]
    assert shlex.split(lines[-1])[:2] == ["exec", "srun"]


def test_a_number_of_workers_on_each_node_comes_with_their_memory() -> None:
    sizes = [Resources(1, 3)] * 3 + [Resources(2, 3)]
    site = SiteOptions(per_node={sizes[0]: 2})
    *directives, command = batch_script("/shared", "muster-a", "me", sizes, site).splitlines()
    asked = [line.removeprefix("#SBATCH ") for line in directives if "mem" in line or "per-node" in line]
    assert asked == ["--ntasks-per-node=2", "--mem=5852M", "--mem-per-cpu=1463M"]
    assert [word for word in command.split() if "mem" in word or "per-node" in word] == [  # of each worker's task
        "--mem-per-cpu=2926M", "--mem-per-cpu=1463M",
    ]  # fmt: skip


def nodes(*sizes: tuple[int, int, int]) -> list[Node]:
    """Nodes with these numbers of cores, GB of memory, and GPUs."""
    return [
        Node(f"n{number}", "10.0.0.1", cores, memory * 1000, gpus, "idle")
        for number, (cores, memory, gpus) in enumerate(sizes)
    ]


THIN, FAT, SMALL = (32, 128, 0), (128, 512, 0), (4, 8, 0)


@pytest.mark.parametrize(
    ("count", "each", "there", "spread", "number"),
    [
        # Each core's share of a node is enough: Slurm counts, on whichever nodes the job may have.
        (4, Resources(16, 32), [FAT, *[THIN] * 8], None, None),
        (4, Resources(16, 32), [FAT, *[THIN] * 8], "1", None),
        # It is not: as many as most nodes hold.
        (4, Resources(1, 50), [FAT, *[THIN] * 8], None, 2),
        (3, Resources(1, 2.8), [SMALL] * 2, None, 2),
        (3, Resources(1, 2.5), [SMALL] * 2, None, 3),
        (2, Resources(1, 5), [SMALL] * 2, None, 1),
        (1, Resources(1, 5), [SMALL] * 2, None, 1),
        # Nodes that hold no worker count for nothing.
        (2, Resources(1, 100), [FAT, *[SMALL] * 8], None, 2),
        (2, Resources(1, 200), [FAT, *[THIN] * 8], None, 2),
        # All workers have to find a place.
        (4, Resources(1, 100), [FAT, THIN], None, 4),
        (4, Resources(1, 100), [FAT, *[THIN] * 8], None, 1),
        # The user's number of nodes counts.
        (3, Resources(1, 2.5), [SMALL] * 2, "2", 2),
        (3, Resources(1, 2.5), [SMALL] * 2, "1", 3),
        (3, Resources(1, 5), [SMALL] * 2, "1", 3),
        (4, Resources(1, 2.5), [SMALL] * 4, "2-3", 2),
        (4, Resources(1, 5), [SMALL] * 4, "2-4", 1),
        (2, Resources(1, 5), [SMALL] * 4, "8", 1),
        # By node, GPUs are for one worker.
        (2, Resources(1, 5, 1), [(8, 32, 4)] * 2, None, 1),
    ],
)
def test_on_whole_nodes_are_as_many_workers_as_their_memory_is_for(
    count: int, each: Resources, there: list[tuple[int, int, int]], spread: str | None, number: int | None
) -> None:
    selection = Selection(has_gpus_per_task=False)
    assert workers_per_node(count, each, nodes(*there), selection, spread) == number


@pytest.mark.parametrize(
    ("raw", "variable", "sharing", "configuration", "is_whole"),
    [
        ((), None, "NO", "SelectType = select/cons_tres", False),
        (("--exclusive",), None, "NO", "SelectType = select/cons_tres", True),
        (("--exclusive=user",), None, "NO", "SelectType = select/cons_tres", False),
        ((), "exclusive", "NO", "SelectType = select/cons_tres", True),
        ((), "user", "NO", "SelectType = select/cons_tres", False),
        ((), None, "EXCLUSIVE", "SelectType = select/cons_tres", True),
        ((), None, "NO", "SelectType = select/linear\nSelectTypeParameters = CR_MEMORY", True),
        ((), None, "NO", "SelectType = select/linear\nSelectTypeParameters = NONE", False),
        (("--exclusive",), None, "EXCLUSIVE", "SelectTypeParameters    = CR_CORE", False),  # memory does not count
    ],
)
def test_nodes_are_whole_by_option_variable_partition_and_selection(
    run: Run, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, raw: tuple[str, ...], variable: str | None,
    sharing: str, configuration: str, is_whole: bool,
) -> None:  # fmt: skip
    if variable is not None:
        monkeypatch.setenv("SBATCH_EXCLUSIVE", variable)
    stand_in.says("sinfo", f"main*|infinite|{sharing}|n1|127.0.0.1|4|8000|idle|(null)\n")
    stand_in.says("scontrol", f"{configuration}\n")
    text = SlurmPlatform(sbatch_args=raw).submission_text([run.spec(resources=Resources(1, 5))])
    assert ("#SBATCH --mem=4833M\n" in text, "#SBATCH --mem-per-cpu=4833M\n" in text) == (is_whole, not is_whole)


@pytest.mark.parametrize("select", ["linear", "cons_res"])
def test_workers_that_have_a_node_s_gpus_each_are_on_nodes_of_their_own(
    run: Run, stand_in: StandIn, select: str
) -> None:
    stand_in.says("sinfo", "".join(f"main*|infinite|NO|n{n}|127.0.0.1|64|256000|idle|gpu:4\n" for n in range(4)))
    stand_in.says("scontrol", f"SelectType = select/{select}\nSelectTypeParameters = CR_CORE_MEMORY\n")
    for memory, of_the_node in ((1, "--mem-per-cpu=1018M"), (100, "--mem=95432M")):
        platform = SlurmPlatform(sbatch_args=("--exclusive",))
        text = platform.submission_text([run.spec(resources=Resources(1, memory, 1)) for _ in range(4)])
        *directives, _ = [line.removeprefix("#SBATCH ") for line in text.splitlines()]
        assert not [word for word in directives if word.startswith("--nodes")]
        assert {"--gres=gpu:1", "--ntasks-per-node=1", of_the_node} <= {*directives}


def test_workers_fit_into_the_partition_that_sbatch_reads_from_the_environment(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("main*|infinite|NO|n1|127.0.0.1|4|8000|idle|(null)", "big|infinite|NO|n2|127.0.0.1|64|8000|idle|(null)")
    stand_in.says("sinfo", "".join(f"{line}\n" for line in lines))
    with pytest.raises(ResourceError):
        SlurmPlatform().shortages([Resources(32, 1)])
    monkeypatch.setenv("SBATCH_PARTITION", "big")
    assert SlurmPlatform().shortages([Resources(32, 1)]) == []
    assert SlurmPlatform().describe() == "slurm, partition big"
    with pytest.raises(ResourceError):
        SlurmPlatform(partition="main").shortages([Resources(32, 1)])


def test_a_number_of_nodes_may_be_a_number(stand_in: StandIn) -> None:
    stand_in.says("sinfo", "".join(f"main*|infinite|NO|n{n}|127.0.0.1|4|8000|idle|(null)\n" for n in range(4)))
    options: Any = {"nodes": 2}
    assert SlurmPlatform(**options).shortages([Resources(1, 1)] * 2 + [Resources(1, 2)] * 2) == []


@pytest.mark.parametrize("ending", ["\n", "\r", "\0", "\x0b", "\u2028", "\x1b[2J", "\\"])
@pytest.mark.parametrize(
    "name", ["partition", "account", "qos", "constraint", "gres", "reservation", "nodelist", "exclude", "nodes"]
)
def test_an_option_of_several_lines_is_refused(name: str, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = f"main{ending}touch /tmp/stolen"
    with pytest.raises(JobError, match=f"^{name} is 'main"):
        script_of(**{name: value})
    monkeypatch.setattr(HERE, "check", lambda: None)
    options: Any = {name: value}
    with pytest.raises(JobError, match=f"^{name} is 'main"):
        SlurmPlatform(**options).check()


def test_a_folder_of_several_lines_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="^folder is "):
        script_of(f"{tmp_path}/a\ntouch /tmp/stolen")
    monkeypatch.setattr(HERE, "check", lambda: None)
    with pytest.raises(JobError, match="^folder is "):
        SlurmPlatform(folder=f"{tmp_path}/a\nb").check()


@pytest.mark.parametrize(
    "word",
    [
        "--output=x", "--out=x", "-ox", "-o", "--job-name=x", "-J", "--array=1-4", "--arr=1-4", "-a1-4", "--requeue",
        "--req", "--mem=1G", "--ntasks=3", "-n3", "-c2", "--wrap=ls", "--wait", "-W", "--test-only", "--parsable",
        "--clusters=west", "-Mwest", "--comment=x", "exclusive", "--", "-", "", "--nice=1\n#SBATCH --array=1-4",
        "--Nice", "--=x",
    ],
)  # fmt: skip
def test_raw_options_that_are_muster_s_to_say_are_refused(word: str) -> None:
    with pytest.raises(JobError, match="sbatch_args has"):
        check_raw(["--exclusive", word])
    with pytest.raises(JobError, match="sbatch_args has"):
        batch_script("/shared", "muster-a", "me", [], SiteOptions(raw=[word]))


def test_other_raw_options_are_the_user_s() -> None:
    check_raw(["--exclusive", "--nice=100", "--hold", "--no-requeue", "--mail-user=me@here", "--ntasks-per-node=1"])


def test_workers_of_several_sizes_are_parts_of_one_job() -> None:
    wanted = [Resources(1, 1), Resources(4, 2, 1), Resources(4, 2, 1)]
    text = batch_script("/shared", "muster-a", "me", wanted, SiteOptions(flags={"partition": "main", "nodes": "2"}))
    first, second = text.split("#SBATCH hetjob\n")
    assert [line.removeprefix("#SBATCH --") for line in first.splitlines() if "ntasks" in line or "node" in line] == [
        "ntasks=1", "nodes=1",
    ]  # fmt: skip
    assert "gpu" not in first
    for said in ("--ntasks=2", "--cpus-per-task=4", "--gpus-per-task=1", "--partition=main", "--nodes=2"):
        assert f"#SBATCH {said}\n" in second
    command = shlex.split(text.splitlines()[-1])
    assert command[:2] == ["exec", "srun"]
    halves = " ".join(command[2:]).split(" : ")
    assert [re.findall(r"--(?:het-group|ntasks|cpus-per-task)=\d", half) for half in halves] == [
        ["--het-group=0", "--ntasks=1", "--cpus-per-task=1"],
        ["--het-group=1", "--ntasks=2", "--cpus-per-task=4"],
    ]


@pytest.mark.parametrize("by_variable", [False, True])
def test_each_part_of_a_job_goes_to_one_of_the_partitions(
    run: Run, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    """Slurm 22.05 never starts a heterogeneous job whose parts may go to several."""
    lines = ["gpu|infinite|NO|n1|127.0.0.1|64|256000|idle|gpu:4", "cpu|infinite|NO|n2|127.0.0.1|64|64000|idle|(null)"]
    lines.append("small*|infinite|NO|n3|127.0.0.1|2|1000|idle|(null)")
    stand_in.says("sinfo", "".join(f"{line}\n" for line in lines))
    if by_variable:
        monkeypatch.setenv("SBATCH_PARTITION", "small,gpu,cpu")
    platform = SlurmPlatform(partition=None if by_variable else "small,gpu,cpu")
    sizes = {"ps-0": Resources(4, 16), "worker-0": Resources(4, 4, 1)}
    specs = [run.spec(name, resources=size) for name, size in sizes.items()]
    asked = re.findall(r"--partition=(\S+)", platform.submission_text(specs))
    assert asked == ["cpu", "gpu"]
    assert "SBATCH_PARTITION" in variables(platform._options.of_workers([*sizes.values()]))
    one_size = platform.submission_text(specs[1:])
    assert re.findall(r"--partition=(\S+)", one_size) == ([] if by_variable else ["small,gpu,cpu"])


@pytest.mark.parametrize(
    ("select", "gres", "asked"),
    [
        ("select/cons_tres", None, ["--gpus-per-task=2"]),
        ("select/linear", None, ["--gres=gpu:2", "--ntasks-per-node=1"]),
        ("select/cons_res", None, ["--gres=gpu:2", "--ntasks-per-node=1"]),
        ("select/linear", "gpu:a100:2", ["--gres=gpu:a100:2"]),
        ("select/cons_tres", "gpu:a100:2", ["--gres=gpu:a100:2"]),
    ],
)
def test_gpus_are_asked_for_as_slurm_selects_nodes(
    run: Run, stand_in: StandIn, select: str, gres: str | None, asked: list[str]
) -> None:
    stand_in.says("sinfo", "main*|infinite|NO|n1|127.0.0.1|64|256000|idle|gpu:a100:4(S:0-1)\n")
    stand_in.says("scontrol", f"SchedulerType           = sched/backfill\nSelectType              = {select}\n")
    text = SlurmPlatform(gres=gres).submission_text([run.spec(resources=Resources(1, 1, 2))])
    directives = [line.removeprefix("#SBATCH ") for line in text.splitlines()]
    assert [word for word in directives if re.match("--(gpus|gres|ntasks-per-node)", word)] == asked
    steps = [word for word in shlex.split(directives[-1]) if re.match("--(gpus|gres|ntasks-per-node)", word)]
    assert steps == ([] if gres else asked)


NODES = (Node("n1", "10.0.0.1", 8, 32000, 4, "idle"), Node("n2", "10.0.0.2", 8, 16000, 0, "down"))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ([Resources(1, 1, 2)] * 2, None),
        ([Resources(8, 1)] * 2, None),
        (
            [Resources(1, 1, 1)] * 8,
            "8 workers ask for 8 GPUs together; all nodes that this platform has (main) have 4.",
        ),
        (
            [Resources(1, 1)] * 2 + [Resources(1, 1, 3)] * 2,
            "4 workers ask for 6 GPUs together; all nodes that this platform has (main) have 4.",
        ),
        (
            [Resources(0.5, 1)] * 17,
            "17 workers ask for 17 cores together; all nodes that this platform has (main) have 16.",
        ),
        (
            [Resources(1, 10)] * 6,
            "6 workers ask for 60.41 GB of memory together; all nodes that this platform has (main) have 50.33.",
        ),
        ([Resources(1, 1, 5)], "the worker asks for 5 GPUs; the largest node that this platform has (main) has 4."),
        ([Resources(8.5, 1)], "the worker asks for 9 cores; the largest node that this platform has (main) has 8."),
        (
            [Resources(1, 2000)],
            "the worker asks for 2000.07 GB of memory; the largest node that this platform has (main) has 33.55.",
        ),
    ],
)
def test_workers_that_all_nodes_together_cannot_hold_are_refused_with_the_number(
    wanted: list[Resources], said: str | None
) -> None:
    partition = Partition("main", True, None, NODES)
    named = [("the worker", each) for each in wanted]
    if said is None:
        check_fits([partition], named, None)
        return
    with pytest.raises(ResourceError) as refused:
        check_fits([partition], named, None)
    assert refused.value.message == said


FEATURED = (replace(NODES[0], features=frozenset({"fast", "new"})), replace(NODES[1], features=frozenset({"fast"})))


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        (None, ["n1", "n2"]),
        ("new", ["n1"]),
        ("fast&new", ["n1"]),
        ("new|fast", ["n1", "n2"]),
        ("[new|fast]", ["n1", "n2"]),
        ("fast*2&new*1", ["n1", "n2"]),
        ("nowhere", ["n1", "n2"]),  # which sbatch refuses
    ],
)
def test_only_nodes_with_the_features_count(constraint: str | None, named: list[str]) -> None:
    partition = Partition("main", True, None, FEATURED)
    assert [node.name for one in with_features([partition], constraint) for node in one.nodes] == named


def test_what_only_nodes_without_the_features_could_hold_is_refused_with_the_number(stand_in: StandIn) -> None:
    lines = [
        "main*|infinite|NO|n1|127.0.0.1|64|256000|idle|(null)|new",
        "main*|infinite|NO|n2|127.0.0.1|8|8000|idle|(null)|old",
    ]
    stand_in.says("sinfo", "".join(f"{line}\n" for line in lines))
    SlurmPlatform().shortages([Resources(16, 1)])
    with pytest.raises(
        ResourceError, match=r"16 cores; the largest node that this platform has \(main with old\) has 8"
    ):
        SlurmPlatform(constraint="old").shortages([Resources(16, 1)])


@pytest.mark.parametrize("name", ["constraint", "time"])
def test_what_a_variable_says_to_sbatch_counts_as_if_it_were_said_here(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stand_in.says(
        "sinfo",
        "main*|1:00:00|NO|n1|127.0.0.1|64|256000|idle|(null)|new\nmain*|1:00:00|NO|n2|127.0.0.1|8|8000|idle|(null)|old\n",
    )
    monkeypatch.setenv(
        {"constraint": "SBATCH_CONSTRAINT", "time": "SBATCH_TIMELIMIT"}[name],
        {"constraint": "old", "time": "2:00:00"}[name],
    )
    with pytest.raises(
        (ResourceError, JobError), match=r"main with old\) has 8|time is 2:00:00, 120 minutes; main allows 60"
    ):
        SlurmPlatform().shortages([Resources(16, 1)])
    SlurmPlatform(**{name: {"constraint": "new", "time": "30m"}[name]}).shortages([Resources(16, 1)])  # type: ignore[arg-type]


def test_a_partition_may_count_memory_where_others_do_not(stand_in: StandIn) -> None:
    """Each of three workers has more than a third of the memory."""
    wanted = [Resources(1, 4)] * 3
    stand_in.says("sinfo", "main*|infinite|NO|n1|127.0.0.1|64|8000|idle|(null)\n")
    said = "PartitionName=main MaxTime=UNLIMITED SelectTypeParameters={}\nSelectTypeParameters = {}\n"
    for own, usual in (("CR_CORE_MEMORY", "CR_CORE"), ("NONE", "CR_CORE_MEMORY")):
        stand_in.says("scontrol", said.format(own, usual))
        with pytest.raises(ResourceError, match="3 workers ask for 12.21 GB of memory together"):
            SlurmPlatform().shortages(wanted)
    stand_in.says("scontrol", said.format("CR_CORE", "CR_CORE_MEMORY"))
    SlurmPlatform().shortages(wanted)


def test_a_partition_s_limits_are_told() -> None:
    shown = (
        "PartitionName=gpu AllowAccounts=physics AllowQos=ALL QoS=N/A DefaultTime=00:10:00 MaxNodes=4 MaxTime=04:00:00 "
        "State=UP SelectTypeParameters=NONE MaxMemPerNode=UNLIMITED\nPartitionName=other MaxNodes=1\n"
    )
    (partition,) = with_limits({"gpu": Partition("gpu", True, 240.0, NODES)}, shown).values()
    assert limits_in_words(partition) == (
        "partition gpu: 2 nodes, the largest with 8 cores, 33.55 GB and 4 GPUs; a job may take 240 minutes; one "
        "without a time limit gets 10; Slurm says MaxNodes 4; Slurm says AllowAccounts physics; n2 is down"
    )


def test_memory_is_added_up_only_where_slurm_does() -> None:
    partition = Partition("main", True, None, NODES)
    wanted = [("the worker", Resources(1, 10))] * 6
    without = selection_of("SelectType = select/cons_tres\nSelectTypeParameters = CR_CORE\n")
    check_fits([partition], wanted, None, selection=without)
    with pytest.raises(ResourceError, match="6 workers ask for 60.41 GB"):
        check_fits([partition], wanted, None, selection=Selection())
    with pytest.raises(ResourceError, match="the worker asks for 2000.07 GB"):  # on any node, though
        check_fits([partition], [("the worker", Resources(1, 2000))], None, selection=without)
    sizes = [("the worker", Resources(1, 15))] * 2 + [("the ps", Resources(2, 20))]
    check_fits([partition], sizes, None, selection=without)


def test_workers_of_two_sizes_with_gpus_by_node_need_a_node_each() -> None:
    partition = Partition("main", True, None, tuple(nodes((8, 32, 4), (8, 32, 4))))
    sizes = [("the worker", Resources(1, 1, 1))] * 2 + [("the ps", Resources(1, 2))]
    check_fits([partition], sizes, None)
    with pytest.raises(ResourceError, match=r"sizes ask for 2 \+ 1 nodes"):
        check_fits([partition], sizes, None, selection=Selection(has_gpus_per_task=False))


def test_memory_counts_only_where_the_site_has_configured_it_for_all_nodes() -> None:
    nodes = (NODES[0], replace(NODES[1], memory=1))
    check_fits([Partition("main", True, None, nodes)], [("the worker", Resources(1, 10))] * 6, None)


@pytest.mark.parametrize(
    ("agent", "end"),
    [
        (
            "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM}); time.sleep(60)",
            {"status": "failed", "signal": signal.SIGTERM},
        ),
        ("raise SystemExit(1)", {"status": "stopped"}),  # its config was taken back
    ],
)
def test_a_task_that_is_to_end_before_its_agent_runs_tells_its_end(
    tmp_path: Path, agent: str, end: dict[str, Any]
) -> None:
    files = {"worker.py": f"import signal, time\ndef main(path):\n    {agent}\n".encode()}
    for name in ("__init__.py", "forking.py", "linux.py", "removal.py"):
        files[name] = Path(removal.__file__).with_name(name).read_bytes()
    packed = {name: (zlib.compress(source), b"") for name, source in files.items()}
    (tmp_path / slurm_bootstrap.PACKED).write_bytes(marshal.dumps(("", packed)))
    (tmp_path / "worker-0.stop").touch()
    program = (
        "import os, signal, sys; from muster.agent import slurm_bootstrap as bootstrap\n"
        "from muster.agent.unpacking import unpacked\n"
        "tell = bootstrap.tell\n"
        "def tell_and_be_told(path, **news):\n"
        "    tell(path, **news)\n"
        "    'node' in news and len(sys.argv) > 2 and os.kill(os.getpid(), signal.SIGTERM)\n"
        "bootstrap.tell = tell_and_be_told\n"
        "packed = open(os.path.join(sys.argv[1], bootstrap.PACKED), 'rb').read()\n"
        "bootstrap.become_worker(unpacked, packed, 'muster-agent-', sys.argv[1], '127.0.0.1')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), *(["signal"] if "signal" in end else [])]
    assert subprocess.run(command, env={**os.environ, "SLURM_PROCID": "0"}, timeout=50).returncode == 1
    told = [json.loads(line) for line in (tmp_path / "worker-0.news").read_text().splitlines()]
    assert end.items() <= told[-1].items()


@pytest.mark.parametrize("version", ["this", "3.6", "3.8", "3.13"])
def test_the_package_is_imported_from_memory_and_its_files_are_written_once_a_program_needs_them(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version", "as of another build or patch release")
    (tmp_path / "packed").write_bytes(agent_package._packed.__wrapped__(True))
    (tmp_path / "folder").mkdir()
    program = (
        Path(unpacking.__file__).read_text() + "import builtins, pathlib, subprocess, traceback\n"
        "compiled = []\n"
        "compile = lambda *args, **kwargs: compiled.append(args) or builtins.compile(*args, **kwargs)\n"
        "make_importable(pathlib.Path('packed').read_bytes(), 'folder')\n"
        "import agent.worker\n"
        "from agent.package import program\n"
        "print(bool(compiled), os.listdir('folder'))\n"
        "try: agent.worker.lock('nowhere')\n"
        "except OSError: print('os.open(folder' in traceback.format_exc())\n"
        "command = [sys.executable, '-I', '-S', program(), 'nothing', '']\n"
        "print(os.path.relpath(program()), subprocess.call(command))\n"
        "print(sorted(os.listdir('folder')), len(os.listdir('folder/agent')))\n"
    )
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found and version != "this":
        pytest.skip(f"there is no Python {version}")
    python = sys.executable if version == "this" else str(found[0])
    done = subprocess.run([python, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    sources = len([*agent_package.AGENT.glob("*.py")]) + 1
    said = [f"{version != 'this'} []", "True", "folder/agent/__main__.py 1", f"['agent'] {sources}", ""]
    assert (done.stdout.split("\n"), done.stderr) == (said, "no such role: nothing\n")


def test_a_template_of_either_interpreter_finds_the_package(tmp_path: Path, other_python: str) -> None:
    unpacking.Package(packed_agent(has_bytecode=True), str(tmp_path)).write()
    for python in (sys.executable, other_python):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            argv = [python, str(tmp_path / "agent" / "__main__.py"), "template", str(theirs.fileno()), python]
            with subprocess.Popen(argv, env={"PATH": os.environ["PATH"]}, pass_fds=[theirs.fileno()]) as template:
                theirs.close()
                ours.settimeout(20)
                ours.sendall(frames.encode("import", imports=[]))
                assert b"ready" in ours.recv(1000)
                template.kill()


def test_a_folder_is_no_pattern_of_slurm_s() -> None:
    text = script_of("/shared/100%j/of a")
    assert "#SBATCH '--output=/shared/100%%j/of a/output'" in text
    assert text.splitlines()[-1].endswith("'/shared/100%j/of a/start.sh'")


def test_variables_that_sbatch_would_take_for_options_do_not_undo_the_script_s() -> None:
    environ = {
        "PATH", "SBATCH_PARTITION", "SBATCH_ACCOUNT", "SBATCH_ARRAY_INX", "SBATCH_REQUEUE", "SBATCH_MEM_PER_NODE",
        "SBATCH_EXCLUSIVE",
    }  # fmt: skip
    kept = environ - {*variables(SiteOptions(flags={"partition": "main"}))}
    assert sorted(kept) == ["PATH", "SBATCH_ACCOUNT", "SBATCH_EXCLUSIVE"]


def test_a_child_forked_while_a_package_is_packed_packs_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_package, "_packed", lambda has_bytecode: b"packed")
    with agent_package._packing:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)
            os._exit(packed_agent() != b"packed")
    assert os.waitpid(child, 0)[1] == 0
