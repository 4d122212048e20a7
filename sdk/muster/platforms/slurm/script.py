"""The batch script of a submission, and the options in it."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster.agent.slurm_bootstrap import PACKED
from muster.agent.worker import UNPACKED
from muster.errors import JobError
from muster.job import Resources, WorkerSpec
from muster.platforms.agent_package import from_package
from muster.platforms.slurm.words import minutes_of
from muster.text.arguments import Argument, ArgumentText

MEBIBYTE = 1 << 20
AGENT_MEMORY = 64  # MiB that a worker's task gets for its agent, on top of the worker's memory
DEADLINE_MARGIN = 10  # minutes that a session may take to cancel a job that it waits for no longer
# Options of sbatch that only Muster sets. Abbreviations of them are refused, too, as sbatch accepts these.
OWN = (
    "array", "clusters", "comment", "cpus-per-task", "job-name", "mem-per-cpu", "ntasks", "open-mode", "output",
    "parsable", "requeue", "test-only", "wait", "wrap",
)  # fmt: skip
# Variables that sbatch prefers to the options in a script, by the option that they replace.
VARIABLES = {
    "account": "SBATCH_ACCOUNT", "array": "SBATCH_ARRAY_INX", "clusters": "SBATCH_CLUSTERS",
    "constraint": "SBATCH_CONSTRAINT", "gpus-per-task": "SBATCH_GPUS_PER_TASK", "gres": "SBATCH_GRES",
    "job-name": "SBATCH_JOB_NAME",
    "mem": "SBATCH_MEM_PER_NODE", "mem-per-cpu": "SBATCH_MEM_PER_CPU",
    "open-mode": "SBATCH_OPEN_MODE", "output": "SBATCH_OUTPUT", "partition": "SBATCH_PARTITION", "qos": "SBATCH_QOS",
    "requeue": "SBATCH_REQUEUE", "reservation": "SBATCH_RESERVATION", "time": "SBATCH_TIMELIMIT", "wait": "SBATCH_WAIT",
}  # fmt: skip


@dataclass(frozen=True)
class SiteOptions:
    """Options of a submission that do not depend on its workers.

    Attributes:
        flags: options of sbatch, by name.
        raw: further options of sbatch, as the user gave them.
        has_memory: whether Slurm counts memory on its nodes.
        has_gpus_per_task: whether Slurm gives each task its own GPUs.
        per_node: number of workers on each node, by their size; of sizes that are not in it Slurm counts how many fit.
        partitions: the partition of each part of a heterogeneous job, by its workers' size, where that is not in
            ``flags``: such a job never starts if a part has several to go to.
    """

    flags: dict[str, str] = field(default_factory=dict)
    raw: Sequence[str] = ()
    has_memory: bool = True
    has_gpus_per_task: bool = True
    per_node: Mapping[Resources, int] = field(default_factory=dict)
    partitions: Mapping[Resources, str] = field(default_factory=dict)


def time_of(text: str) -> str:
    """Return a time limit as Slurm writes it. Raises JobError for any other text."""
    minutes = minutes_of(text)
    if not minutes:
        raise JobError(
            ArgumentText(Argument("time"), f" is {text!r}, which is no time limit."),
            advice=ArgumentText(Argument("time", ""), " such as 4h, 30m, 1-12:00:00 or 2:00:00"),
        )
    whole = math.ceil(minutes)
    return f"{whole // 1440}-{whole % 1440 // 60:02}:{whole % 60:02}:00"


def deadline_of(queue_seconds: float | None, time: str | None) -> dict[str, str]:
    """Return the option by which Slurm itself removes a job that is queued for longer than the session waits for it.

    ``--deadline`` is the time by which a job must have ended. Slurm removes a queued job that could no longer end by
    then, and never ends a running one for it. So this needs a time limit; without one, nothing is returned.

    >>> deadline_of(3600, "2h"), deadline_of(None, "2h"), deadline_of(3600, None)
    ({'deadline': 'now+190minutes'}, {}, {})
    """
    minutes = minutes_of(time) if time else None
    if not queue_seconds or not minutes:
        return {}
    return {"deadline": f"now+{math.ceil(queue_seconds / 60) + math.ceil(minutes) + DEADLINE_MARGIN}minutes"}


def check_words(options: Mapping[str, str | None]) -> None:
    """Raise JobError for an option that does not fit in one line: its rest would be taken for more of the script."""
    for name, value in options.items():
        if value is not None and not _fits_in_a_line(value):
            raise JobError(f"{name} is {value!r}, which has a character that no line of a batch script can have.")


def check_raw(words: Sequence[str]) -> None:
    """Raise JobError unless these are options of sbatch, each in one word, that Muster does not set itself."""
    for word in words:
        match = re.fullmatch(r"--([a-z][a-z0-9-]*)(=.*)?", word)
        name = match[1] if match else ""
        if not match or not _fits_in_a_line(word):
            why = "is no option in one word with its full name."
        elif any(own.startswith(name) for own in OWN):
            why = "is Muster's to say."
        else:
            continue
        raise JobError(
            f"sbatch_args has {word!r}, which {why}",
            advice=ArgumentText(Argument("sbatch_args", ("--exclusive", "--nice=100")), " for example"),
        )


def _fits_in_a_line(word: str) -> bool:
    """Return whether sbatch reads a word unchanged; it removes some backslashes, whatever the quotes."""
    return word.isprintable() and "\\" not in word


def variables(site: SiteOptions) -> list[str]:
    """Return the variables of the environment that sbatch must not get, as they would override the script's options."""
    ours = (VARIABLES.get(name) for name in (*OWN, "mem", "gpus-per-task", *site.flags))
    return sorted({name for name in ours if name})


def asks_for_whole_nodes(raw: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether the user asks for nodes that no other job is on, in options of sbatch or in the environment.

    >>> asks_for_whole_nodes(["--nice", "--exclusive"], {}), asks_for_whole_nodes(["--exclusive=user"], {})
    (True, False)
    """
    said = [value for name, _, value in (word.partition("=") for word in raw) if name == "--exclusive"]
    last = environ.get("SBATCH_EXCLUSIVE", said[-1] if said else None)  # sbatch prefers the variable
    return last in ("", "exclusive")


def cores_of(resources: Resources) -> int:
    """Return the number of cores that a worker asks for."""
    return max(math.ceil(resources.cpu), 1)


def memory_per_core(resources: Resources) -> int:
    """Return the MiB of memory that a worker and its agent ask for with each core."""
    return math.ceil((resources.memory_bytes / MEBIBYTE + AGENT_MEMORY) / cores_of(resources))


def worker_arguments(count: int, resources: Resources, site: SiteOptions) -> list[str]:
    """Return the options of srun, and of most jobs, for ``count`` workers of this size."""
    found = [f"--ntasks={count}", f"--cpus-per-task={cores_of(resources)}"]
    if site.has_memory:
        found.append(f"--mem-per-cpu={memory_per_core(resources)}M")
    if resources.gpu and "gres" not in site.flags:
        if site.has_gpus_per_task:
            found.append(f"--gpus-per-task={resources.gpu}")
        else:
            found += [f"--gres=gpu:{resources.gpu}", "--ntasks-per-node=1"]
    return found


def _job_arguments(count: int, resources: Resources, site: SiteOptions) -> list[str]:
    """Return the options of a job for ``count`` workers of this size.

    A number of workers on each node comes with the memory of that many, in place of each core's share.
    """
    found, most = worker_arguments(count, resources, site), site.per_node.get(resources)
    if most is None:
        return found
    kept = [word for word in found if not word.startswith(("--mem-per-cpu=", "--ntasks-per-node="))]
    memory = most * cores_of(resources) * memory_per_core(resources)
    return [*kept, f"--ntasks-per-node={most}", f"--mem={memory}M"]


def parts_of(wanted: Sequence[Resources]) -> list[tuple[int, Resources]]:
    """Return the parts of a submission, each with workers of one size, as their number and that size.

    >>> [(count, resources.cpu) for count, resources in parts_of([Resources(4), Resources(1), Resources(4)])]
    [(2, 4), (1, 1)]
    """
    return [(count, resources) for resources, count in Counter(wanted).items()]


def by_part(specs: Sequence[WorkerSpec]) -> list[WorkerSpec]:
    """Return workers in the order of their parts, which is the order of tasks."""
    sizes = [resources for _, resources in parts_of([spec.resources for spec in specs])]
    return sorted(specs, key=lambda spec: sizes.index(spec.resources))


def nodes_of(count: int, nodes: str) -> str:
    """Return the user's number of nodes, but no more than one for each of ``count`` workers."""
    return str(min(int(nodes), count)) if nodes.isdecimal() else nodes


def launch_command(folder: str, parts: Sequence[Sequence[str]], label: str) -> list[str]:
    """Return the srun command that starts a worker in each task, in one step; ``parts`` are its options by part."""
    common = ["--mpi=none", "--kill-on-bad-exit=0", "--wait=0", "--unbuffered", "/bin/sh", f"{folder}/start.sh"]
    command = ["srun"]
    for number, options in enumerate(parts):
        command += [*([":"] if number else []), f"--job-name={label}", *options, *common]
    return command


def batch_script(folder: str, label: str, owner: str, wanted: Sequence[Resources], site: SiteOptions) -> str:
    """Return the batch script that is submitted. It holds no secrets, as Slurm stores it and shows it to users.

    Workers of several sizes become a heterogeneous job, whose parts all start together.

    Raises:
        JobError: an option, or the folder, does not fit in one line.
    """
    check_words({"folder": folder, **site.flags})
    check_raw(site.raw)
    output = f"{folder}/output".replace("%", "%%")  # % begins a pattern of Slurm's in a file name
    parts = parts_of(wanted)
    words, steps = [], []
    for number, (count, resources) in enumerate(parts):
        flags = dict(site.flags)
        if len(parts) > 1 and "nodes" in flags:
            flags["nodes"] = nodes_of(count, flags["nodes"])
        if resources in site.partitions:
            flags["partition"] = site.partitions[resources]
        words += [
            *(["hetjob"] if number else []), f"--job-name={label}", f"--comment=muster:{owner}",
            *_job_arguments(count, resources, site), *(f"--{name}={value}" for name, value in flags.items()),
            "--no-requeue", f"--output={output}", "--open-mode=append", *site.raw,
        ]  # fmt: skip
        group = [f"--het-group={number}"] if len(parts) > 1 else []
        steps.append([*group, *worker_arguments(count, resources, site)])
    lines = ["#!/bin/sh", *(f"#SBATCH {_quoted(word)}" for word in words)]
    # sbatch sets the variable, and srun complains of it where nodes have different numbers of workers.
    lines += ["unset SLURM_NTASKS_PER_NODE", "umask 077", f"exec {shlex.join(launch_command(folder, steps, label))}"]
    return "\n".join([*lines, ""])


def _quoted(word: str) -> str:
    """Return a word of a directive, quoted if needed: sbatch reads quotes there as a shell does."""
    return shlex.quote(word) if re.search(r"[\s#'\"]", word) else word


def start_script(folder: str) -> str:
    """Return the shell script of each task: it runs ``start.py`` with the session's Python where the node has it."""
    own, here = shlex.quote(sys.executable), shlex.quote(f"{folder}/start.py")
    return f"if [ -x {own} ]; then exec {own} -I -S {here}; fi\nexec python3 -I -S {here}\n"


def start_program(folder: str, session: str) -> str:
    """Return the Python program that turns a task into a worker, with the agent's package in a file beside it."""
    call = f"become_worker(unpacked, packed, {UNPACKED!r}, {folder!r}, {session!r})\n"
    return from_package("slurm_bootstrap.py", f"{folder}/{PACKED}", call)
