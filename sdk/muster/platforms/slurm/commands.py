"""Slurm's own commands, and errors made from what they print."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from muster.agent.slurm_site import SECONDS, has_ended
from muster.errors import LaunchRefused, PlatformError, PlatformUnsupported
from muster.platforms.refusals import Refusal, find_refusal, in_words
from muster.text.arguments import Argument, ArgumentText

PROGRAMS = ("sbatch", "srun", "squeue", "scontrol", "sinfo", "scancel")
TOLD = re.compile(rf"^(?:{'|'.join(PROGRAMS)}|allocation failure)(?:: error)?: ", re.MULTILINE)

SILENT = Refusal(
    r"unable to contact slurm controller|connection refused|communication connection failure",
    "Slurm's controller does not answer", "try again later; `scontrol ping` says whether it is up",
)  # fmt: skip
LIMIT = Refusal(
    r"submit limit|job violates|\bassoc|\bqos(?:max|grp|min)", "it goes beyond what your account, or you, may have",
    "wait until other jobs of yours have ended, or ask for less",
)  # fmt: skip
# By the text of Slurm's errors; the first that matches counts.
REFUSALS = (
    LIMIT,
    Refusal(
        r"invalid partition|not permitted to use this partition", "there is no such partition, or not for you",
        ArgumentText(Argument("partition", ""), " one that sinfo lists"),
    ),
    Refusal(
        r"invalid account", "the account is none that you may charge",
        ArgumentText(Argument("account", ""), " one that `sacctmgr show associations user=$USER` lists"),
    ),
    Refusal(
        r"invalid qos", "there is no such quality of service, or not for you",
        ArgumentText(Argument("qos", ""), " one that `sacctmgr show associations user=$USER format=qos` lists"),
    ),
    Refusal(
        r"invalid feature", "no node has these features",
        ArgumentText(Argument("constraint", ""), " features that `sinfo -o %f` lists"),
    ),
    Refusal(
        r"reservation is invalid|reservation", "there is no such reservation, or not for you",
        ArgumentText(Argument("reservation", ""), " one that `scontrol show reservation` lists"),
    ),
    Refusal(
        r"invalid generic resource|\bgres\b", "no node has such devices",
        ArgumentText("fewer GPUs, or ", Argument("gres", ""), " as `sinfo -o %G` says"),
    ),
    Refusal(r"memory specification", "no node has so much memory", ArgumentText("less ", Argument("memory"))),
    Refusal(
        r"node configuration is not available|more processors requested|node count specification",
        "no nodes of the partition could ever hold these workers",
        "fewer or smaller workers, or another partition; sinfo says what there is",
    ),
    Refusal(
        r"time limit|partitiontimelimit", "it takes longer than the partition allows",
        ArgumentText("a shorter ", Argument("time", ""), ", or another partition"),
    ),
    Refusal(
        r"invalid node name", "there is no node of that name",
        ArgumentText(Argument("nodelist", ""), " and ", Argument("exclude", ""), " nodes that `sinfo -N` lists"),
    ),
    Refusal(
        r"not a valid node count", "that is no number of nodes",
        ArgumentText(Argument("nodes", ""), " such as 2, or 2-4"),
    ),
    Refusal(
        r"unrecognized option", "sbatch has no such option",
        ArgumentText(Argument("sbatch_args", ""), " options that `sbatch --help` lists"),
    ),
    SILENT,
)  # fmt: skip
# The same of the errors with which srun starts no step, of the job that a session runs in or of one of its own.
STEP_REFUSALS = (
    Refusal(
        r"memory required by task is not available", "its job has not so much memory",
        ArgumentText("less ", Argument("memory", ""), " or fewer workers, or a job with more (--mem-per-cpu)"),
    ),
    Refusal(
        r"more processors requested than permitted", "its job has not so many cores, or too little memory for each",
        ArgumentText("less ", Argument("cpu", ""), " or fewer workers, or a job with more (--ntasks, --cpus-per-task)"),
    ),
    Refusal(
        r"\bgres\b|generic resource|\btres\b", "its job has not so many GPUs, or none",
        ArgumentText("fewer ", Argument("nvidia_gpu", ""), ", or a job with more (--gres=gpu:N, for each node)"),
    ),
    Refusal(
        r"node configuration is not available|node count specification|more tasks requested",
        "its job has not so many nodes, cores or GPUs",
        ArgumentText("fewer or smaller workers, fewer ", Argument("nodes", ""), ", or a larger job"),
    ),
)  # fmt: skip


class SlurmGone(PlatformError):
    """Slurm does not answer."""


class LimitReached(LaunchRefused):
    """A limit of the user's does not let Slurm take the job, perhaps only for as long as other jobs count for it."""


class Commands(ABC):
    """Slurm's commands, as the session runs them: on its own machine, or on one that it logs in to.

    Attributes:
        place: where that is, in words.
        missing_advice: what to try where one of the commands is missing.
    """

    place = "here"
    missing_advice: str = ArgumentText(
        Argument("login", ""), " a login node of the cluster, as ssh knows it; or run this on one, or within a job"
    )

    @abstractmethod
    def run(
        self, *argv: str, given: str | None = None, seconds: float = SECONDS, without: Collection[str] = ()
    ) -> tuple[int, str, str]:
        """Run one of Slurm's commands, and return its exit status, output and error output.

        Args:
            argv: the command.
            given: its standard input.
            seconds: how long it may take.
            without: variables of the environment that it does not get.

        Raises:
            SlurmGone: the command cannot be run, or does not end in time.
        """

    @abstractmethod
    def missing(self, programs: Sequence[str]) -> Sequence[str]:
        """Return those of these programs that are not on the search path. Raises PlatformError."""

    def check(self) -> None:
        """Raise PlatformUnsupported where one of Slurm's commands is missing."""
        missing = self.missing(PROGRAMS)
        if missing:
            raise PlatformUnsupported(
                f"There is no {missing[0]} {self.place}: this is no machine from which jobs of Slurm are submitted.",
                advice=self.missing_advice,
            )

    def ask(
        self,
        *argv: str,
        what: str,
        error: type[PlatformError] = PlatformError,
        worker: str | None = None,
        given: str | None = None,
        without: Collection[str] = (),
    ) -> str:
        """Run one of Slurm's commands, and return its output.

        Args:
            argv: the command.
            what: what could not be done if it fails, such as ``The job could not be submitted``.
            error: what is raised if it fails.
            worker: the worker that is being launched.
            given, without: as ``run`` takes them.

        Raises:
            SlurmGone: the command cannot be run, or Slurm does not answer in time.
            PlatformError, or what ``error`` says: the command fails.
        """
        code, out, said = self.run(*argv, given=given, without=without)
        if code:
            raise _refused(f"{argv[0]} ended with status {code}", said, what, error, worker)
        return out

    def cancel(self, *which: str) -> None:
        """Cancel a job, a step, or all jobs that scancel's options select; those that have ended are no error.

        Args:
            which: arguments of scancel.

        Raises:
            SlurmGone, PlatformError: Slurm fails to.
        """
        code, out, said = self.run("scancel", "--quiet", *which)
        if not has_ended({"status": code, "out": out, "said": said}):
            raise _refused("scancel failed", said, "The job could not be cancelled")


def job_of(out: str) -> str:
    """Return the job id in the output of ``sbatch --parsable``; sites may print more before it. Raises PlatformError.

    >>> job_of("Welcome to the cluster\\n1234;west\\n")
    '1234'
    """
    found = re.findall(r"^(\d+)(?:;.*)?$", out, re.MULTILINE)
    if not found:
        raise PlatformError(f"The job could not be submitted: sbatch says no id of it, but {out.strip()[-500:]!r}.")
    return str(found[-1])


def _refused(
    otherwise: str, said: str, what: str, kind: type[PlatformError] = PlatformError, worker: str | None = None
) -> PlatformError:
    text = " ".join(TOLD.sub("", said).split()) or otherwise
    refusal = find_refusal(REFUSALS, text)
    message, advice = in_words(what, text, refusal, "Slurm"), refusal.advice if refusal else None
    if refusal is SILENT:
        kind = SlurmGone
    if refusal is LIMIT and kind is LaunchRefused:
        kind = LimitReached
    return kind(message, worker=worker, advice=advice)
