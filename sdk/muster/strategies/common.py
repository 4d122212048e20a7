"""Common parts of strategies whose workers are all alike, and of those whose launcher logs in to workers over ssh."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.errors import JobError, PlatformUnsupported
from muster.job import SESSION, Job, Member
from muster.options.fields import option
from muster.security.ssh import IDENTITY, reason_against_client, ssh_client
from muster.strategies.base import Facts
from muster.text.arguments import Argument, ArgumentText

USUAL_SSH = "/usr/bin/ssh"  # path of ssh on a worker, if the session has no ssh
SSH = """\
#!/bin/sh
ssh={ssh}
[ -x "$ssh" ] || ssh=$(PATH=/usr/local/bin:/usr/bin:/bin; command -v ssh)
exec "$ssh" {options} "$@"
"""  # on a worker ssh may have another path than in the session


def workers_only(job: Job, title: str) -> Mapping[str, int]:
    """Return the roles of a strategy in which every worker runs the same program.

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


MOST_SLOTS = 1024  # processes of a worker


def slots_option() -> Any:
    """Return the field of the option for the number of ranks on each worker."""
    return option(1, "Processes per worker", minimum=1)


def network_interface_option() -> Any:
    """Return the field of the option for the network interface that the ranks use."""
    return option(None, "Interface of the ranks", default="found out", metavar="NAME")


def check_slots(slots: object) -> None:
    """Raise JobError unless the number of processes per worker is a whole number of at least 1."""
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= MOST_SLOTS:
        raise JobError(
            ArgumentText(
                Argument("slots", slots), f": a worker needs a whole number of processes, from 1 to {MOST_SLOTS}."
            )
        )


def check_text(name: str, text: object) -> None:
    """Raise JobError unless an option is a string or None."""
    if text is not None and not isinstance(text, str):
        raise JobError(ArgumentText(Argument(name), f" is of type {type(text).__name__}; it must be a string."))


def check_words(name: str, words: object) -> None:
    """Raise JobError unless an option is a list or tuple of strings."""
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise JobError(
            f"{name} is of type {type(words).__name__}; it must be a list of words.", advice="shlex.split() makes one"
        )


def place_ranks(members: Sequence[Member], slots: int) -> dict[int, str]:
    """Return the name of each rank's worker; the slots of one worker are filled before those of the next."""
    return {index * slots + slot: member.name for index, member in enumerate(members) for slot in range(slots)}


def common_interface(members: Sequence[Member]) -> str:
    """Return the first network interface that all workers have.

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


def smallest_network(hosts: Sequence[str]) -> str:
    """Return the smallest IPv4 network that has all these addresses; empty where one of them is another address."""
    try:
        addresses = [int(ipaddress.IPv4Address(host)) for host in hosts]
    except ValueError:
        return ""
    differing = max(addresses) ^ min(addresses)
    return str(ipaddress.ip_network((min(addresses), 32 - differing.bit_length()), strict=False))


def launcher_environment(facts: Facts) -> dict[str, str]:
    """Return the whole environment of a launcher.

    Launchers put all of it on the command lines of ssh, where ps shows it, or send it to the ranks: it must contain
    nothing of the user's. The ranks get their environment from the agents.
    """
    return {
        "PATH": f"{facts.launcher_folder / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(facts.launcher_folder),
        "LANG": "C.UTF-8",
        "MUSTER_RUN_ID": facts.run_id,
    }


def reason_against_ssh(members: Sequence[Member], facts: Facts, ssh: str | None) -> str:
    """Return, in words, why a launcher cannot log in to these workers; empty if it can, as far as is known.

    Args:
        ssh: path of the session's ssh client; None if it has none.
    """
    if facts.no_ssh:
        return facts.no_ssh
    if facts.launcher_at == SESSION and (why_not := reason_against_client(ssh)):
        return why_not
    without = [member for member in members if member.ssh_port is None]
    if not without:
        return ""
    first, others = without[0], len(without) - 1
    why = f" ({first.no_ssh})" if first.no_ssh else ""
    return f"nobody can log in to {first.name}{why}" + (f", nor to {others} more" if others else "")


def find_ssh(strategy: str) -> str:
    """Return the path of the session's ssh client.

    Raises:
        PlatformUnsupported: there is none, or this user cannot run it.
    """
    found = ssh_client()
    if found is None:
        raise PlatformUnsupported(
            f"There is no ssh client here, which {strategy} starts its ranks with.",
            advice="install openssh-client and openssh-server",
        )
    if why_not := reason_against_client(found):
        raise PlatformUnsupported(
            f"{strategy} starts its ranks by ssh: {why_not}.", advice="add a line for it to /etc/passwd"
        )
    return found


def identity(facts: Facts) -> Path:
    """Return the path of the launcher's private ssh key, which exists if the strategy uses ssh."""
    return facts.launcher_folder / IDENTITY


def host_names(members: Sequence[Member]) -> list[str]:
    """Return the workers' names for launchers: their addresses, or their own names if several share an address."""
    hosts = [member.host for member in members]
    return hosts if len(set(hosts)) == len(hosts) else [member.name for member in members]


def ssh_files(members: Sequence[Member], facts: Facts, ssh: str | None) -> dict[str, str]:
    """Return the launcher's files for ssh, by path: the workers' host keys, a configuration, and an ``ssh`` wrapper.

    The wrapper comes before the real ssh on the launcher's PATH, and makes it trust only these host keys. If an option
    is given twice, ssh takes the first, so these win over a launcher's own, such as ``StrictHostKeyChecking=no``. The
    user's own ssh configuration and ssh agent are not used.
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
            + (f"    User {member.account}\n" if member.account else "")
            for name, member in zip(host_names(members), members, strict=True)
        ),
        "bin/ssh": SSH.format(ssh=ssh or USUAL_SSH, options=" ".join(options)),
    }
