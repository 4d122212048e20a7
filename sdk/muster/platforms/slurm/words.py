"""Slurm's states and reasons in words: why a job waits, and what ended it."""

from __future__ import annotations

import contextlib
import pwd
import re
import time
from collections.abc import Mapping, Sequence

from muster.job import EndCause
from muster.text.arguments import Argument, ArgumentText

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
})  # fmt: skip

# Why a job is pending, by Slurm's reason or the sentence that it writes in place of one; the first that matches counts.
# As they were submitted, jobs with these will never run; with what to try:
NEVER = (
    (
        r"DependencyNeverSatisfied", "a job that it depends on has not ended as it should have",
        ArgumentText(Argument("sbatch_args", ""), " with another dependency, or none"),
    ),
    (
        r"ReservationDeleted|ReservationInvalid|Reservation .+ was deleted", "its reservation is gone",
        ArgumentText(Argument("reservation", ""), " one that `scontrol show reservation` lists, or none"),
    ),
    (
        r"InvalidQOS|InvalidAccount", "its account or quality of service is none of yours",
        ArgumentText(
            Argument("account", ""), " and ", Argument("qos", ""),
            " that `sacctmgr show associations user=$USER` lists",
        ),
    ),
)  # fmt: skip
# The same in the partition that Slurm speaks of; of several, that is the one that it has tried last:
NEVER_THERE = (
    (
        r"PartitionTimeLimit", "it asks for more time than the partition allows",
        ArgumentText("a shorter ", Argument("time", ""), ", or another partition"),
    ),
    (
        r"PartitionConfig", "the partition takes no such jobs",
        ArgumentText("another ", Argument("partition", ""), ", or what `scontrol show partition` says of this one"),
    ),
    (
        r"(QOS|Assoc)Max\w+Per(Job(Limit)?|Node)",
        "it asks for more than its account or quality of service lets one job have",
        ArgumentText(
            "fewer or smaller workers, a shorter ", Argument("time", ""), ", or another ", Argument("account", ""),
            " or ", Argument("qos", ""),
        ),
    ),
    (
        r"QOSMin\w+", "it asks for less than its quality of service demands",
        ArgumentText("more or larger workers, or another ", Argument("qos", "")),
    ),
    (
        r"MaxMemPerLimit", "it asks for more memory than a job may have there",
        ArgumentText("less ", Argument("memory", ""), ", or another partition"),
    ),
    (
        r"BadConstraints", "no nodes could ever be what it asks for",
        ArgumentText("fewer or smaller workers, or another ", Argument("constraint", ""), " or partition"),
    ),
    (
        r"(Account|QOS)NotAllowed|Job's (account|QOS) not permitted.*",
        "its account or quality of service may not use the partition",
        ArgumentText(
            "another ", Argument("partition", ""), ", ", Argument("account", ""), " or ", Argument("qos", "")
        ),
    ),
)  # fmt: skip
# These wait for their turn, for nodes, for somebody who holds them, or for a limit:
WAITS = (
    (r"None", "Slurm has not said yet what it waits for"),
    (r"Resources", "it waits for nodes that are free"),
    (r"Priority", "jobs with a higher priority come first"),
    (r"ReqNodeNotAvail|Nodes required for job are DOWN", "nodes that it needs are down, drained or reserved"),
    # Also where nodes are down or drained. With all in service, sbatch has refused jobs that are too large.
    (r"PartitionNodeLimit", "the partition has not so many nodes in service, or takes no jobs of that many"),
    (r"NodeDown|FrontEndDown", "a node that it needs is down"),
    (r"Constraints", "no nodes are at present what it asks for"),
    (r"Prolog", "its nodes are being prepared"),
    (r"PowerNotAvail|PowerReserved", "the cluster has no power left for it at present"),
    (r"JobHeldUser", "you hold it: scontrol release lets it go"),
    (r"JobHeldAdmin", "an administrator holds it"),
    (r"launch failed requeued held", "it could not be launched, and is held: ask an administrator"),
    (
        r"JobHoldMaxRequeue|.+ requeued held|job requeued in (held|special exit) state",
        "it was queued again, and is held: scontrol release lets it go",
    ),
    (r"Dependency", "another job has to end first"),
    (r"BeginTime", "its time to begin has not come"),
    (r"Licenses", "licences are all in use"),
    (r"Reservation", "its reservation has not begun"),
    (r"PartitionDown|PartitionInactive", "the partition takes no jobs at present"),
    (r"BurstBufferResources|BurstBufferStageIn", "its burst buffer is not ready yet"),
    (r"FedJobLock", "the clusters of its federation have not agreed yet on where it runs"),
    (r"QOSMax\w+PerUser(Limit)?", "you have as much as your quality of service lets one user have"),
    (r"Max\w+PerAccount", "your account has as much as your quality of service lets one account have"),
    (r"QOS(Grp\w+|UsageThreshold|(Job|Resource|Time)Limit)", "a limit of the quality of service is reached"),
    (r"Assoc(Grp\w+|Max(Submit)?Jobs?Limit|iation(Job|Resource|Time)Limit)", "a limit of your account is reached"),
    (r"AccountingPolicy", "a limit of your account or quality of service is reached"),
    (r"JobArrayTaskLimit", "as many jobs of its array run as may at a time"),
    (r"SchedDefer", "it is to start at once, which this cluster does not try"),
    (r"Cleaning", "it is being cleaned up after an earlier start"),
    (
        r"JobLaunchFailure|NonZeroExitCode|RaisedSignal|TimeLimit|InactiveLimit|OutOfMemory",
        "an earlier start of it has failed",
    ),
    (r"BurstBufferOperation", "an operation on its burst buffer has failed"),
    (r"DeadLine", "it can no longer end by its deadline"),
    (r"SystemFailure", "Slurm, a file system or the network has failed"),
)
IN_TURN = ("None", "Resources", "Priority")  # reasons of jobs that only wait for their turn

# What ended a job, by its state: in words, the cause, and what to try.
ENDS: Mapping[str, tuple[str, EndCause | None, str | None]] = {
    "TIMEOUT": (
        "its job had run for as long as it may", EndCause.OVERTIME,
        ArgumentText("a longer ", Argument("time", ""), ", as far as the partition allows, and checkpoints"),
    ),
    "DEADLINE": ("its job's deadline has passed", EndCause.OVERTIME, "a later deadline"),
    "NODE_FAIL": ("a node of its job failed", EndCause.LOST, "run again: Slurm takes other nodes"),
    "BOOT_FAIL": ("a node of its job did not boot", EndCause.LOST, "run again: Slurm takes other nodes"),
    "PREEMPTED": (
        "a job with a higher priority has taken its place", EndCause.PREEMPTED,
        ArgumentText("run again, with ", Argument("restarts"), " and checkpoints, or another partition or qos"),
    ),
    "OUT_OF_MEMORY": ("a node ended it for its memory", EndCause.MEMORY, None),  # what to try depends on the worker
    "CANCELLED": ("somebody has cancelled its job", EndCause.CANCELLED, "run again"),
    "REVOKED": ("its job was revoked", EndCause.CANCELLED, "run again"),
}  # fmt: skip
UNKNOWN = "what ended it is not known: its job is gone from Slurm's memory, and there is no accounting (sacct)"


def why_never(reason: str, partition: str) -> tuple[str, str] | None:
    """Return why a job that is pending in these partitions will never run as it was submitted, and what to try.

    None where it may run.
    """
    for pattern, words, advice in NEVER if "," in partition else NEVER + NEVER_THERE:
        if re.fullmatch(pattern, _word(reason)):
            return f"The job can never run: {words} (Slurm says {_bare(reason)}).", advice
    return None


def why_pending(reason: str, starts_at: float | None = None, before: int | None = None, partition: str = "") -> str:
    """Return, in words and Slurm's own, why a job is pending.

    Args:
        reason: Slurm's reason.
        starts_at: when Slurm expects to start it, in seconds since the epoch.
        before: number of the pending jobs in its partitions that come first; None where that is not known.
        partition: its partitions, separated by commas.
    """
    word = _word(reason)
    meaning = _meaning(word, (*NEVER, *NEVER_THERE, *WAITS))
    parts = [f"The job is queued{f': {meaning}' if meaning else ''} (Slurm says {_bare(reason) or 'nothing'})"]
    if "," in partition and _meaning(word, NEVER_THERE):
        parts.append("another of its partitions may still take it")
    if before and word in IN_TURN:
        parts.append(f"{before} pending {'job comes' if before == 1 else 'jobs come'} first")
    elif before == 0 and word in IN_TURN and word != "Priority":  # else there are jobs that this user does not see
        parts.append("it is the next one")
    if starts_at:
        parts.append(f"Slurm expects to start it at {time.strftime('%H:%M on %d %B', time.localtime(starts_at))}")
    return "; ".join(parts) + "."


def _bare(reason: str) -> str:
    return reason[1:-1] if reason.startswith("(") and reason.endswith(")") else reason


def _word(reason: str) -> str:
    """Return a reason without its additions, such as names of nodes, and with spaces, which scontrol replaces."""
    return _bare(reason).partition(",")[0].replace("_", " ")


def _meaning(word: str, known: Sequence[tuple[str, ...]]) -> str | None:
    return next((words for pattern, words, *_ in known if re.fullmatch(pattern, word)), None)


def state_word(state: str) -> str:
    """Return the first word of a job's state, without additions.

    >>> state_word("CANCELLED by 1000"), state_word("CANCELLED+")
    ('CANCELLED', 'CANCELLED')
    """
    return state.partition(" ")[0].rstrip("+")


def how_ended(state: str, said: Mapping[str, str]) -> tuple[str, EndCause | None, str | None]:
    """Return, in words, how a job ended, with the cause and what to try.

    Args:
        state: Slurm's state of the job.
        said: its other fields from ``scontrol show job`` or ``sacct``.
    """
    word, _, by = state.partition(" ")
    words, cause, advice = ENDS.get(state_word(state), ("its job has ended", None, None))
    uid = by.removeprefix("by ")
    if uid.isdecimal():
        words = f"its job was cancelled by {_user(int(uid))}"
    beside = [f"{name} {said[name]}" for name in ("Reason", "ExitCode", "FailedNode") if _tells(said.get(name))]
    return f"{words} (Slurm says {', '.join([word, *beside])}).", cause, advice


def _user(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"the user {uid}"


def ran_out_of_memory(output: str, task: int) -> bool:
    """Return whether srun reports, in a job's output, that a node ended this task because it ran out of memory.

    The job's state does not tell: where the job's script ends by itself after the step, the state is FAILED.

    >>> ran_out_of_memory("srun: error: n1: tasks 0-1,3: Out Of Memory", 1)
    True
    >>> ran_out_of_memory("srun: error: n1: tasks 0-1,3: Out Of Memory", 2)
    False
    """
    for listed in re.findall(r"^srun: error: \S+: tasks? ([\d,-]+): Out Of Memory", output, re.MULTILINE):
        for part in listed.split(","):
            first, _, last = part.partition("-")
            if first.isdecimal() and int(first) <= task <= int(last if last.isdecimal() else first):
                return True
    return False


def nodes_over_memory(output: str) -> list[str]:
    """Return the nodes whose tasks exceeded their memory, as slurmstepd reports in a job's output.

    Where Slurm itself checks memory (OverMemoryKill), it then ends the tasks of all nodes, and the job is FAILED.

    >>> nodes_over_memory("slurmstepd-n2: error: StepId=2.0 exceeded memory limit (77 > 16), being killed")
    ['n2']
    """
    found = re.findall(r"^slurmstepd-([^\s:]+): error: \S+ exceeded memory limit", output, re.MULTILINE)
    return [*dict.fromkeys(found)]


def step_cancelled_at(output: str) -> str | None:
    """Return when somebody cancelled a step, as slurmstepd reports in its output; None where nobody did.

    >>> step_cancelled_at("slurmstepd-n1: error: *** STEP 1.2 ON n1 CANCELLED AT 2026-11-28T13:25:24 ***")
    '2026-11-28T13:25:24'
    >>> step_cancelled_at("slurmstepd: error: *** STEP 1.2 ON n1 CANCELLED AT 13:25:24 DUE TO TIME LIMIT ***")
    """
    found = re.search(r"^slurmstepd\S*: error: \*\*\* STEP \S+ ON \S+ CANCELLED AT (\S+) \*\*\*", output, re.MULTILINE)
    return found[1] if found else None


def _tells(text: str | None) -> bool:
    return bool(text) and text not in ("None", "0:0", "(null)", "Unknown")


def minutes_of(text: str) -> float | None:
    """Return the minutes of a time limit, written as in Slurm or as a number with a unit; None for any other text.

    >>> minutes_of("4h"), minutes_of("90"), minutes_of("1:30"), minutes_of("1-12"), minutes_of("2:00:00")
    (240.0, 90.0, 1.5, 2160.0, 120.0)
    >>> minutes_of("infinite") is None
    True
    """
    with_unit = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if with_unit:
        return float(with_unit[1]) * {"s": 1 / 60, "m": 1, "h": 60, "d": 1440, "w": 10080}[with_unit[2]]
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        return None
    days, *rest = match.groups()
    first, second, third = (int(word) if word else 0 for word in rest)
    if days is not None:
        return int(days) * 1440 + first * 60 + second + third / 60
    if match[4] is not None:
        return first * 60 + second + third / 60
    return first + second / 60
