"""Common parts of the strategies whose workers are all alike, and of those whose launcher logs in to them over ssh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.errors import JobError, PlatformUnsupported
from muster.job import SESSION, Job, Member
from muster.options.fields import option
from muster.security.ssh import IDENTITY, ssh_client
from muster.strategies.base import Facts
from muster.text.arguments import Argument, ArgumentText

USUAL_SSH = "/usr/bin/ssh"  # of a worker, where the session has none
SSH = """\
#!/bin/sh
ssh={ssh}
[ -x "$ssh" ] || ssh=$(PATH=/usr/local/bin:/usr/bin:/bin; command -v ssh)
exec "$ssh" {options} "$@"
"""  # a launcher on a worker may find it elsewhere than the session


def workers_only(job: Job, title: str) -> Mapping[str, int]:
    """The roles of a strategy in which every worker runs the same program.

    Raises:
        JobError: the job is one for parameter servers, or has no script.
    """
    if job.script is None:
        raise JobError(
            f"{title} needs a script to run.",
            advice=ArgumentText(
                Argument("worker_script", ""), " a file, a module, or a function that is not called yet"
            ),
        )
    if job.script.is_task:
        raise JobError(
            f"{job.script.target} has a run(cluster, server, task_index), which is for parameter servers.",
            advice=ArgumentText(Argument("strategy", "parameter_server"), ", or a script that trains when it is run"),
        )
    if job.n_ps:
        raise JobError(
            f"{title} has no parameter servers.",
            advice=ArgumentText(Argument("n_ps", 0), ", or ", Argument("strategy", "parameter_server")),
        )
    return {"worker": job.n_workers}


def slots_option() -> Any:
    """The option that says how many ranks each worker runs."""
    return option(1, "Processes per worker", minimum=1)


def network_interface_option() -> Any:
    """The option that says which interface the ranks use."""
    return option(None, "Interface of the ranks", default="found out", metavar="NAME")


def check_slots(slots: object) -> None:
    """Refuse a number of processes per worker that makes no sense, with JobError."""
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise JobError(
            ArgumentText(Argument("slots", slots), ": a worker needs a whole number of processes, at least one.")
        )


def check_text(name: str, text: object) -> None:
    """Refuse an option that must be a text, or None, with JobError."""
    if text is not None and not isinstance(text, str):
        raise JobError(ArgumentText(Argument(name), f" is of type {type(text).__name__}; it must be a string."))


def check_words(name: str, words: object) -> None:
    """Refuse an option that must be a list of words, with JobError."""
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise JobError(
            f"{name} is of type {type(words).__name__}; it must be a list of words.", advice="shlex.split() makes one"
        )


def place_ranks(members: Sequence[Member], slots: int) -> dict[int, str]:
    """Return the worker of each rank: one worker is filled after the other."""
    return {index * slots + slot: member.name for index, member in enumerate(members) for slot in range(slots)}


def common_interface(members: Sequence[Member]) -> str:
    """The first network interface that all workers have.

    Raises:
        JobError: they have none in common.
    """
    shared = [name for name in members[0].interfaces if all(name in member.interfaces for member in members)]
    if not shared:
        raise JobError(
            "The workers have no network interface in common: "
            + "; ".join(f"{member.name} has {', '.join(member.interfaces) or 'none'}" for member in members),
            advice=ArgumentText(Argument("network_interface", ""), " the one to talk over"),
        )
    return shared[0]


def launcher_environment(facts: Facts) -> dict[str, str]:
    """The whole environment of a launcher.

    Launchers put all of it on the command lines of ssh, where ps shows it, or send it to the ranks: nothing of the
    user's may be in it. The ranks get theirs from the agents.
    """
    return {
        "PATH": f"{facts.launcher_folder / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(facts.launcher_folder),
        "LANG": "C.UTF-8",
        "MUSTER_RUN_ID": facts.run_id,
    }


def reason_against_ssh(members: Sequence[Member], facts: Facts, ssh: str | None) -> str:
    """Return, in words, why a launcher cannot log in to these workers; empty where it can, as far as is known.

    Args:
        ssh: the ssh client of whoever logs in; None where there is none.
    """
    if facts.no_ssh:
        return facts.no_ssh
    if ssh is None and facts.launcher_at == SESSION:
        return "there is no ssh client here"
    without = [member for member in members if member.ssh_port is None]
    if not without:
        return ""
    first, others = without[0], len(without) - 1
    why = f" ({first.no_ssh})" if first.no_ssh else ""
    return f"nobody can log in to {first.name}{why}" + (f", nor to {others} more" if others else "")


def find_ssh(strategy: str) -> str:
    """Path of the session's ssh client.

    Raises:
        PlatformUnsupported: there is none.
    """
    found = ssh_client()
    if found is None:
        raise PlatformUnsupported(
            f"There is no ssh client here, which {strategy} starts its ranks with.",
            advice="install openssh-client and openssh-server",
        )
    return found


def identity(facts: Facts) -> Path:
    """Path of the run's private ssh key for its launcher, which is there where the strategy needs ssh."""
    return facts.launcher_folder / IDENTITY


def host_names(members: Sequence[Member]) -> list[str]:
    """The workers' names for launchers: their addresses, or their own names where several share an address."""
    hosts = [member.host for member in members]
    return hosts if len(set(hosts)) == len(hosts) else [member.name for member in members]


def ssh_files(members: Sequence[Member], facts: Facts, ssh: str | None) -> dict[str, str]:
    """The workers' host keys, and an ``ssh`` ahead of the real one on the launcher's PATH which trusts no others.

    Of an option given twice ssh takes the first, so these win over a launcher's own, such as
    ``StrictHostKeyChecking=no``; and the user's own configuration and agent stay out of it.
    """
    options = (
        f"-F {facts.launcher_folder / 'ssh_config'}",
        f"-i {identity(facts)}",
        "-o IdentitiesOnly=yes",
        "-o IdentityAgent=none",
        "-o StrictHostKeyChecking=yes",
        f"-o UserKnownHostsFile={facts.launcher_folder / 'known_hosts'}",
        "-o ConnectTimeout=10",
    )
    return {
        "known_hosts": "".join(f"[{member.host}]:{member.ssh_port} {member.host_key}\n" for member in members),
        "ssh_config": "".join(
            f"Host {name}\n"
            + (f"    HostName {member.host}\n" if name != member.host else "")
            + f"    Port {member.ssh_port}\n"
            for name, member in zip(host_names(members), members, strict=True)
        ),
        "bin/ssh": SSH.format(ssh=ssh or USUAL_SSH, options=" ".join(options)),
    }
